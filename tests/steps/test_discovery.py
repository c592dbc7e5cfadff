"""The studentised test: its formulas, its calibration under the null, its power; joint relevance of pairs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ponn
from ponn.log.encoding import Encoding
from ponn.settings import Settings
from ponn.simulate.synthetic import synthetic
from ponn.steps.discovery import (
    MOST_GROUPS,
    centre,
    discoveries,
    p_values,
    pool,
    q_values,
    rows_per_group,
    welch,
    welch_james,
)
from ponn.steps.pairs import MOST_FEATURES, coarse_levels, pair_relevance
from ponn.steps.propensity import propensities
from ponn.steps.relevance import LOSSES, relevance
from ponn.steps.tally import LevelTally, Taken
from tallies import tally_levels


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.sampled_from([0.05, 0.1, 0.3]))
def test_discoveries_are_benjamini_hochberg(p, rate):
    ranked = sorted(p)
    passing = [value for place, value in enumerate(ranked, 1) if value <= rate * place / len(p) * (1 + 1e-12)]
    cut = max(passing, default=-1.0)
    expected = [value <= cut for value in p]
    assert discoveries(np.array(p), rate * (1 + 1e-12)).tolist() == expected


def test_q_values_keep_the_shape_and_the_order():
    p = np.random.default_rng(0).random((4, 7))
    q = q_values(p)
    assert q.shape == p.shape
    assert np.all(q >= p)
    assert np.array_equal(np.argsort(p, axis=None), np.argsort(q + 1e-12 * p, axis=None))


def test_welch_is_welchs_anova():
    """Against the textbook formula written as plain sums."""
    rng = np.random.default_rng(0)
    groups = [rng.normal(size=size, scale=scale) for size, scale in ((8, 1.0), (20, 3.0), (11, 0.5))]
    w = [len(g) / np.var(g, ddof=1) for g in groups]
    grand = sum(wi * g.mean() for wi, g in zip(w, groups, strict=True)) / sum(w)
    between = sum(wi * (g.mean() - grand) ** 2 for wi, g in zip(w, groups, strict=True)) / 2
    lack = sum((1 - wi / sum(w)) ** 2 / (len(g) - 1) for wi, g in zip(w, groups, strict=True))
    from scipy.stats import f

    expected = f.sf(between / (1 + 2 * 1 * lack / 8), 2, 8 / (3 * lack))
    got = welch(
        np.array([[g.mean() for g in groups]]), np.array([w]), np.array([[len(g) - 1 for g in groups]], dtype=float)
    )
    assert got[0] == pytest.approx(expected, rel=1e-9)


def test_with_endless_rows_welch_james_is_the_chi_square():
    from scipy.stats import chi2

    p = welch_james(np.array([1, 3, 9]), np.array([3.0, 8.0, 20.0]), np.full(3, 1e-12))
    assert p == pytest.approx(chi2.sf([3.0, 8.0, 20.0], [1, 3, 9]), rel=1e-5)
    assert welch_james(np.array([0]), np.array([0.0]), np.array([0.0]))[0] == 1


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(1, 60))
def test_pooling_joins_neighbours_and_no_group_is_too_small(taken, target):
    group = pool(np.array([taken], dtype=float), np.array([target]))[0]
    assert group[0] == 0
    assert np.all((np.diff(group) == 0) | (np.diff(group) == 1))
    held = np.bincount(group, taken)
    assert np.all(held >= target) or len(held) == 1


def test_a_rare_level_of_few_is_tested_and_many_levels_are_pooled():
    """A binary feature whose rarer level has one row in twenty, with a great effect."""
    rng = np.random.default_rng(0)
    n, levels = 4_000, (rng.random(4_000) < 0.05).astype(np.int16)
    taken = Taken(np.zeros(n, int), np.where(levels, 0.8, 0.0) + rng.normal(0, 0.3, n), 1)
    assert p_values(with_all_rows(levels, 2, taken), np.array([2]))[0, 0] < 1e-6
    many = with_all_rows(rng.integers(0, 100, n).astype(np.int16), 100, taken)
    groups = pool(many.N_taken[:, :100], rows_per_group(many, 100))
    assert MOST_GROUPS - 2 <= groups.max() + 1 <= MOST_GROUPS


def with_all_rows(levels: np.ndarray, b: int, taken: Taken) -> LevelTally:
    """One feature's tally with the column of all rows."""
    one, whole = tally_levels(levels, b, taken), tally_levels(np.zeros_like(levels), 1, taken)
    parts = ((one.N, whole.N), (one.N_taken, whole.N_taken), (one.U, whole.U), (one.M2, whole.M2))
    return LevelTally(*(np.concatenate(part, axis=-1) for part in parts))


def test_centre_is_the_self_normalised_mean():
    R, A, w = np.array([1.0, 0.0, 1.0]), np.array([0, 0, 1]), np.array([2.0, 6.0, 5.0])
    assert centre(R, A, w, 2).tolist() == [0.25, 0.25, 1.0]


def test_levels_that_are_almost_empty_do_not_break_the_test():
    log = ponn.simulate.world("kidney-stones").log.take(np.arange(0, 700, 60))
    encoding = Encoding.fit(log)
    assert np.all(relevance(log, encoding, propensities(log, encoding)).tested() == 1)


# Calibration and power -----------------------------------------------------------------------------------


def discovered(seed: int, **options: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Discoveries, p-values and truth of one log with estimated propensities."""
    world = synthetic(rows=10_000, features=100, actions=5, relevant=5, effect=0.1, seed=seed, **options)
    encoding = Encoding.fit(world.log)
    found = relevance(world.log, encoding, propensities(world.log, encoding), Settings(select="fdr"))
    return found.selected, found.tested(), world.relevance["l2"] > 0


def test_rows_that_count_alike_are_rows_with_the_same_weight_and_see_more_under_strong_bias():
    world = synthetic(rows=4_000, features=20, actions=8, relevant=3, bias=2.0, shape="linear", seed=0)
    log, encoding = world.log, Encoding.fit(world.log)
    step_a = propensities(log, encoding)
    found = relevance(log, encoding, step_a, Settings(select="fdr", fdr=0.5, even=True))
    alike = relevance(log, encoding, replace(step_a, p=np.ones(len(log))), Settings(select="fdr", fdr=0.5))
    np.testing.assert_allclose(found.tested(), alike.tested(), rtol=1e-12)
    with pytest.raises(ponn.PonnError, match="even=True"):
        alike.under(Settings(select="fdr", even=True)).tested()
    table = found.table().to_pylist()
    assert all((row["q_value"] <= 0.5) == row["selected"] for row in table)
    true = world.relevance["l2"] > 0
    weighted = found.under(Settings(select="fdr", fdr=0.5)).selected
    assert (weighted & true).sum() < 4 < 12 < (found.selected & true).sum()  # of 24
    assert (found.selected & true).sum() > (found.selected & ~true).sum()


def test_false_discoveries_are_held_and_relevant_features_are_found():
    """12 logs of 10,000 rows, 100 features that all drive the logging, 5 relevant per action with sd 0.10.

    Mean false-discovery proportion at most 0.10 plus two Monte-Carlo standard errors, power at least 0.9; p-values of
    null pairs uniform. An uncorrected analysis (weights 1) has a false-discovery proportion above 0.5 here.
    """
    runs = [discovered(seed) for seed in range(12)]
    false = np.array([(found & ~true).sum() / max(found.sum(), 1) for found, _, true in runs])
    power = np.mean([(found & true).sum() / true.sum() for found, _, true in runs])
    assert false.mean() <= 0.10 + 2 * false.std(ddof=1) / np.sqrt(len(false))
    assert power >= 0.9
    null = np.concatenate([p[~true] for _, p, true in runs])  # 5,700 p-values
    assert np.mean(null < 0.05) == pytest.approx(0.05, abs=0.015)
    assert np.mean(null < 0.5) == pytest.approx(0.5, abs=0.04)


def test_without_the_correction_logging_drivers_would_look_relevant():
    world = synthetic(rows=10_000, features=20, actions=3, relevant=4, correlation=0.6, bias=2.0, seed=1)
    log, encoding = world.log, Encoding.fit(world.log)
    null = world.relevance["l2"] == 0
    from ponn.steps.tally import tally_log

    raw = 3.0 * log.R  # as if every action had been taken with probability 1/3
    p = p_values(tally_log(encoding, log, raw, gram=False).levels, encoding.b)
    corrected = relevance(log, encoding, propensities(log, encoding)).tested()
    assert np.mean(p[null] < 0.05) > 0.5
    assert np.mean(corrected[null] < 0.05) < 0.2


# Pairs ---------------------------------------------------------------------------------------------------


def test_an_xor_pair_that_is_irrelevant_alone_is_found():
    """Six logs, three actions with a pair each among 50 features; benchmarks/discovery_calibration.py has 100 logs."""
    found = 0
    for seed in range(6):
        world = synthetic(rows=10_000, features=50, actions=3, relevant=1, effect=0.2, xor_pairs=1, seed=seed)
        encoding = Encoding.fit(world.log)
        pairs = pair_relevance(world.log, encoding, propensities(world.log, encoding))
        rows = pairs.table(most=10).to_pylist()
        for a, action in enumerate(world.log.actions):
            alone = set(np.array(world.log.features)[world.causes[a] & (world.relevance["l2"][a] == 0)])
            found += any(
                r["action"] == action and {r["feature"], r["other"]} == alone and r["q_value"] < 0.1 for r in rows
            )
    assert found >= 17  # of 18


def test_pair_relevance_is_the_stated_sum():
    world = synthetic(rows=400, features=4, actions=2, relevant=1, categorical=0.5, xor_pairs=1, seed=0)
    log, encoding = world.log, Encoding.fit(world.log)
    found = propensities(log, encoding)
    pairs = pair_relevance(log, encoding, found, loss=LOSSES["l1"])
    codes, sizes = coarse_levels(encoding.levels(log), encoding.b)
    assert sizes.max() <= 4
    U = [[found.weights[j] * log.R[j] * (log.A[j] == a) for j in range(400)] for a in range(2)]
    for a in range(2):
        for i in range(4):
            for other in range(i):
                expected = 0.0
                for c in range(sizes[i]):
                    for e in range(sizes[other]):
                        cell = [j for j in range(400) if codes[j, i] == c and codes[j, other] == e]
                        if not cell:
                            continue
                        row = [j for j in range(400) if codes[j, i] == c]
                        column = [j for j in range(400) if codes[j, other] == e]
                        mean = [sum(U[a][j] for j in rows) / len(rows) for rows in (cell, row, column, range(400))]
                        expected += len(cell) / 400 * abs(mean[0] - mean[1] - mean[2] + mean[3])
                assert pairs.G[a, i, other] == pytest.approx(expected, rel=1e-6)
                assert pairs.G[a, other, i] == pytest.approx(pairs.G[a, i, other])


def test_null_pairs_have_uniform_p_values():
    """Two logs, 3 x 1,225 pairs each: the share below 0.05 has s.e. about 0.003 (pairs share features: allow 0.012)."""
    p = []
    for seed in range(2):
        world = synthetic(rows=10_000, features=50, actions=3, relevant=3, effect=0.1, bias=0.7, seed=seed)
        encoding = Encoding.fit(world.log)
        values = pair_relevance(world.log, encoding, propensities(world.log, encoding)).p_value
        p.append(values[:, *np.triu_indices(50, k=1)].ravel())
    assert np.mean(np.concatenate(p) < 0.05) == pytest.approx(0.05, abs=0.012)


def test_too_many_features_for_all_pairs_are_refused():
    world = synthetic(rows=300, features=MOST_FEATURES + 1, actions=2, relevant=1)
    encoding = Encoding.fit(world.log)
    with pytest.raises(ponn.PonnError, match="at most 200 features"):
        pair_relevance(world.log, encoding, propensities(world.log, encoding))
