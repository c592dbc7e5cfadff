"""Values by subgroup: who belongs where, equal to values on the rows alone, and intervals that hold together."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import ponn
from ponn.evaluation.intervals import error_of, t_quantile
from ponn.evaluation.subgroups import at_least, joined_runs, levels_of, surprise_in, value_by_group
from ponn.evaluation.valuation import Asked, CurrentPractice, Nuisances, nuisances, scored, value_on
from ponn.simulate.synthetic import synthetic


@pytest.fixture(scope="module")
def world() -> ponn.World:
    return synthetic(
        rows=3_000, features=5, actions=3, relevant=2, bias=0.4, categorical=0.4, known_propensity=True, seed=3
    )


@pytest.fixture(scope="module")
def corrections(world) -> Nuisances:
    return nuisances(world.log)


def with_column(log: ponn.Log, name: str, cells) -> ponn.Log:
    return replace(log, table=log.table.append_column(name, pa.array(cells)))


# Who belongs where ------------------------------------------------------------------------------------------


def test_numbers_are_cut_at_their_quartiles(world):
    cells = np.arange(3_000.0)
    found = levels_of(with_column(world.log, "age", cells), "age", 4, 50)
    assert [one.name for one in found] == ["under 750", "750 to 1.5e+03", "1.5e+03 to 2.25e+03", "2.25e+03 or more"]
    assert [len(one.rows) for one in found] == [750] * 4
    assert np.array_equal(np.sort(np.concatenate([one.rows for one in found])), np.arange(3_000))
    assert all(cells[one.rows].max() < cells[next_.rows].min() for one, next_ in pairwise(found))


def test_few_values_stay_themselves_and_missing_stands_alone(world):
    cells = [None if j % 10 == 0 else j % 2 for j in range(3_000)]
    found = levels_of(with_column(world.log, "sex", cells), "sex", 4, 50)
    assert [(one.name, len(one.rows)) for one in found] == [("0", 1_200), ("1", 1_500), ("missing", 300)]


def test_rare_categories_are_joined_and_counted(world):
    cells = ["north"] * 2_000 + ["south"] * 960 + ["east"] * 25 + ["west"] * 15
    found = levels_of(with_column(world.log, "ward", cells), "ward", 4, 50)
    assert [(one.name, len(one.rows), one.joined) for one in found] == [
        ("north", 2_000, 1),
        ("south", 960, 1),
        ("(other)", 40, 2),
    ]
    alone = levels_of(with_column(world.log, "ward", ["north"] * 2_960 + ["east"] * 40), "ward", 4, 50)
    assert [(one.name, len(one.rows)) for one in alone] == [("east", 40), ("north", 2_960)]


def test_neighbours_with_few_rows_are_joined():
    assert joined_runs([60, 60, 60, 60], 50) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert joined_runs([30, 30, 60, 20], 50) == [(0, 2), (2, 4)]
    assert joined_runs([10, 10], 50) == [(0, 2)]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("action", "would mislead"),
        ("reward", "would mislead"),
        ("height", "no column 'height'"),
        ((), "No column is named"),
    ],
)
def test_columns_that_cannot_make_subgroups_are_told(world, corrections, by, message):
    with pytest.raises(ponn.PonnError, match=message):
        value_by_group(world.propensities, world.log, by, corrections=corrections)


# Values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["dr", "ips", "snips", "switch-dr"])
def test_a_subgroup_is_valued_like_a_log_of_its_rows(world, corrections, estimator):
    weight = np.random.default_rng(1).uniform(0.2, 3, len(world.log))
    log = replace(world.log, reward_range=(100.0, 300.0), minimize=True, weight=weight)
    found = value_by_group(world.propensities, log, "x1", estimator, corrections=corrections)
    whole = surprise_in(scored(world.propensities, log, corrections).valuation(Asked(estimator)), None)
    for one, level in zip(found.groups, levels_of(log, "x1", 4, 50), strict=True):
        rows = level.rows
        fitted = Nuisances(corrections.p[rows], corrections.Q[rows], "known", ())
        part, h = log.take(rows), world.propensities[rows]
        plain = scored(h, part, fitted).valuation(Asked(estimator))
        error = error_of(at_least(plain, whole))
        value, spread = plain.value, 200 * error
        assert (one.policy.value, one.policy.standard_error) == pytest.approx((300 - 200 * value, spread))
        assert one.logging.value == pytest.approx(value_on(CurrentPractice(), part, fitted, "dr", 0.95).value)
        assert one.difference.value == pytest.approx(one.policy.value - one.logging.value)
        assert (one.policy.n, one.rows) == (len(rows), len(rows))


def test_a_subgroup_in_which_all_fared_alike_is_not_certain(world, corrections):
    """Two in a hundred fail, but none in the lowest quarter of x1: by chance, for all that its own rows can tell."""
    x1 = np.asarray(world.log.table.column("x1").to_numpy())
    R = np.where((np.arange(3_000) % 40 == 0) & (x1 > np.quantile(x1, 0.3)), 0.0, 1.0)
    found = value_by_group(world.propensities, replace(world.log, R=R), "x1", "ips", corrections=corrections)
    lowest = found.groups[0].logging
    assert lowest.value == 1
    assert 1 < lowest.high < 1.01


def test_the_correction_counts_all_subgroups_of_all_columns(world, corrections):
    one = value_by_group(world.propensities, world.log, "x1", corrections=corrections)
    two = value_by_group(world.propensities, world.log, ["x1", "x2", "x1"], corrections=corrections)
    assert one.single_level == pytest.approx(0.95 ** (1 / 12))
    assert two.single_level == pytest.approx(0.95 ** (1 / (3 * len(two.groups))))
    assert len(two.groups) > len(one.groups) == 4
    assert two.groups[0].policy.value == one.groups[0].policy.value
    first = one.groups[0].policy
    reach = t_quantile(one.single_level, np.empty(first.n), None) * first.standard_error
    assert (first.low, first.high) == pytest.approx((first.value - reach, first.value + reach))
    assert (first.level, first.interval) == (0.95, "simultaneous")
    json.dumps(two.as_json(), allow_nan=False)


def test_low_overlap_is_marked_where_it_is(world, corrections):
    """A policy that does what is never done to the first hundred rows: only their subgroup is not trusted."""
    log = with_column(world.log, "ward", ["new"] * 100 + ["old"] * 2_900)
    h = world.propensities.copy()
    h[:100] = np.eye(3)[(world.log.A[:100] + 1) % 3]
    marks = {one.level: one for one in value_by_group(h, log, "ward", corrections=corrections).groups}
    assert not marks["new"].policy.trusted
    assert not marks["new"].difference.trusted
    assert any("rows count as 0" in one for one in marks["new"].policy.warnings)
    assert marks["new"].logging.trusted
    assert marks["old"].policy.trusted


def test_a_handful_of_rows_is_not_trusted_even_for_current_practice(world, corrections):
    log = with_column(world.log, "ward", ["new"] * 10 + ["old"] * 2_990)
    tiny = value_by_group(world.propensities, log, "ward", corrections=corrections).groups[0]
    assert (tiny.level, tiny.rows) == ("new", 10)
    assert tiny.logging.warnings == ("the subgroup has only 10 rows",)
    assert not tiny.policy.trusted


# Intervals that hold together -------------------------------------------------------------------------------

P1 = np.array([0.3, 0.5, 0.6, 0.4])  # P(A = 1 | g)
REWARD = np.array([[0.2, 0.5], [0.6, 0.4], [0.3, 0.7], [0.8, 0.5]])  # r(g, a)
TAKEN = np.array([0.8, 0.3, 0.9, 0.2])  # h(1 | g)


def test_a_handful_of_rows_that_would_speak_of_single_people_is_left_out(world, corrections):
    log = with_column(world.log, "ward", ["new"] * 9 + ["old"] * 2_991)
    found = value_by_group(world.propensities, log, "ward", corrections=corrections).groups
    assert [one.level for one in found] == ["old"]


def drawn(n: int, rng: np.random.Generator) -> tuple[ponn.Log, np.ndarray, Nuisances]:
    """A log in which the subgroup g decides everything, and the number z nothing."""
    g = rng.integers(4, size=n)
    A = (rng.random(n) < P1[g]).astype(int)
    R = (rng.random(n) < REWARD[g, A]).astype(int)
    p = np.where(A == 1, P1[g], 1 - P1[g])
    table = {"g": [f"g{one}" for one in g], "z": rng.random(n), "a": A, "r": R, "p": p}
    log = ponn.read_log(table, action="a", reward="r", propensity="p")
    h = np.stack([1 - TAKEN[g], TAKEN[g]], axis=1)
    return log, h, Nuisances(log.p0, np.full((n, 2), 0.5), "known", ())


def truths() -> list[float]:
    """Policy, current practice, difference of g0 .. g3, then of the four parts of z, which are all alike."""
    policy = (1 - TAKEN) * REWARD[:, 0] + TAKEN * REWARD[:, 1]
    logging = (1 - P1) * REWARD[:, 0] + P1 * REWARD[:, 1]
    sides = [*zip(policy, logging, strict=True), *[(policy.mean(), logging.mean())] * 4]
    return [number for one, other in sides for number in (one, other, one - other)]


def test_all_intervals_hold_together_in_95_of_100_logs():
    """200 logs of 1,000 rows, 24 intervals each: 95 % ± 3 standard errors (1.5 points), and too few uncorrected."""
    rng, expected = np.random.default_rng(12), np.array(truths())
    together = apart = 0
    for _ in range(200):
        log, h, fitted = drawn(1_000, rng)
        groups = value_by_group(h, log, ("g", "z"), corrections=fitted).groups
        told = [number for one in groups for number in (one.policy, one.logging, one.difference)]
        low, high, value, se = np.array([(one.low, one.high, one.value, one.standard_error) for one in told]).T
        together += np.all((low <= expected) & (expected <= high))
        apart += np.all(np.abs(value - expected) <= 1.96 * se)
    assert 0.905 <= together / 200 <= 0.995
    assert apart / 200 < 0.7
