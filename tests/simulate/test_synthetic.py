"""The parametric world says the truth about itself.

Chance tests use fixed seeds; `LIMIT` standard errors are exceeded by a correct program once in 150,000 seeds.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from ponn.errors import PonnError
from ponn.simulate.normal import panels
from ponn.simulate.synthetic import (
    LEVELS,
    SCORES,
    SHAPES,
    Synthetic,
    draw_sample,
    enumerate_value,
    fresh,
    mechanism,
    synthetic,
    true_relevance,
    true_value,
)
from ponn.simulate.worlds import softmax

LIMIT = 4.5
MIXED = Synthetic(
    rows=400, features=10, actions=3, relevant=3, xor_pairs=1, categorical=0.5, missing=0.15, correlation=0.6
)
SMALL = Synthetic(features=5, actions=3, relevant=2, xor_pairs=1, categorical=1.0, missing=0.1, shape="linear")


def off_by(sample: np.ndarray, truth: np.ndarray | float) -> float:
    """How many standard errors the mean of a sample is away from the truth."""
    difference = np.asarray(sample) - truth
    return float(abs(difference.mean()) / (difference.std() / math.sqrt(len(difference))))


# What a reader of the table alone can compute, in plain loops ----------------------------------------------


def phi(shape: str, cell: object) -> float:
    if cell is None:
        return 0.0
    if isinstance(cell, str):
        level = LEVELS.index(cell)
        return {"step": (-1, -1, 1, 1), "bump": (1, -1, -1, 1), "linear": SCORES}[shape][level]
    if shape == "linear":
        return cell
    return 1.0 if (cell > 0 if shape == "step" else abs(cell) > stats.norm.ppf(0.75)) else -1.0


def score(cell: object) -> float:
    return 0.0 if cell is None else SCORES[LEVELS.index(cell)] if isinstance(cell, str) else cell


def expected_reward(truth, a: int, row: tuple) -> float:
    shape = truth.parameters.shape
    total = 0.5 + sum(truth.w[a, i] * phi(shape, cell) for i, cell in enumerate(row))
    for action, i, o, size in truth.pairs:
        if action == a:
            total += size * phi("step", row[i]) * phi("step", row[o])
    return total


def rows_of(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_rewards_and_logging_depend_on_the_observed_features_only(shape):
    parameters = replace(MIXED, shape=shape)
    world, truth = fresh(parameters, rows=200, seed=3), mechanism(parameters)
    for j, row in enumerate(rows_of(world.log.X)):
        r = [expected_reward(truth, a, row) for a in range(3)]
        power = [math.exp(sum(score(c) * truth.theta[i, a] for i, c in enumerate(row))) for a in range(3)]
        np.testing.assert_allclose(world.expected[j], r, atol=1e-12)
        np.testing.assert_allclose(world.propensities[j], np.array(power) / sum(power), atol=1e-12)


# Relevance -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_relevance_of_independent_features_equals_enumeration(shape):
    parameters = replace(SMALL, shape=shape)
    truth, m = mechanism(parameters), parameters.missing
    chance = {None: m, **dict.fromkeys(LEVELS, (1 - m) / 4)}
    rows = list(itertools.product(chance, repeat=5))
    p = np.array([math.prod(chance[cell] for cell in row) for row in rows])
    for a, i in itertools.product(range(3), range(5)):
        r = np.array([expected_reward(truth, a, row) for row in rows])
        shift = {}
        for cell in chance:
            here = np.array([row[i] == cell for row in rows])
            shift[cell] = p[here] @ r[here] / p[here].sum() - p @ r
        l1 = sum(chance[cell] * abs(shift[cell]) for cell in chance)
        l2 = sum(chance[cell] * shift[cell] ** 2 for cell in chance)
        # 1e-9: the quadrature's weights of a quarter
        assert true_relevance(truth)["l1"][a, i] == pytest.approx(l1, abs=1e-9)
        assert true_relevance(truth)["l2"][a, i] == pytest.approx(l2, abs=1e-9)


@pytest.mark.parametrize("categorical", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_sd_of_r_given_a_relevant_feature_is_the_effect(shape, categorical):
    world = synthetic(rows=300, features=12, relevant=3, xor_pairs=1, effect=0.08, shape=shape, bias=0.0,
                      categorical=categorical)  # fmt: skip
    moved = mechanism(Synthetic(rows=300, features=12, relevant=3, xor_pairs=1, effect=0.08, shape=shape,
                                bias=0.0, categorical=categorical)).w != 0  # fmt: skip
    sd = np.sqrt(world.relevance["l2"])
    np.testing.assert_allclose(sd[moved], 0.08, atol=1e-9)
    assert (sd[~moved] == 0).all()
    assert (world.causes.sum(axis=1) == 3 + 2).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_relevance_of_correlated_categories_equals_bivariate_normal_cells(shape):
    """E[phi_o | level of X_i] from scipy's bivariate normal distribution function, block by block."""
    parameters = Synthetic(features=7, actions=3, relevant=3, effect=0.1, shape=shape, categorical=1.0,
                           correlation=-0.7, missing=0.2)  # fmt: skip
    truth = mechanism(parameters)
    edges = [-8.0, *stats.norm.ppf([0.25, 0.5, 0.75]), 8.0]
    values = np.array([phi(shape, level) for level in LEVELS])
    for a, i in itertools.product(range(3), range(7)):
        shift = np.zeros(4)
        for o in np.flatnonzero(truth.w[a]):
            rho = (-0.7) ** abs(i - o) if i // 5 == o // 5 else 0.0
            shift += truth.w[a, o] * (values if o == i else 0.8 * cells(edges, rho) @ values * 4)
        # 1e-6: scipy's own accuracy
        assert true_relevance(truth)["l1"][a, i] == pytest.approx(0.8 * np.abs(shift).mean(), abs=1e-6)
        assert true_relevance(truth)["l2"][a, i] == pytest.approx(0.8 * np.square(shift).mean(), abs=1e-6)


def cells(edges: list[float], rho: float) -> np.ndarray:
    """P(Z_i in quarter c, Z_o in quarter e)."""
    if rho == 0:
        return np.full((4, 4), 1 / 16)
    corners = [[(u, v) for v in edges] for u in edges]
    below = stats.multivariate_normal([0, 0], [[1, rho], [rho, 1]]).cdf(corners)
    return np.diff(np.diff(below, axis=0), axis=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_relevance_of_correlated_mixed_features_agrees_with_a_large_sample(shape):
    """Means of r(a, x) in 60 groups of X_i, the noise of 200,000 rows removed.

    Defects seen: a missing share forgotten, a level treated as its number, a correlation of the wrong sign.
    """
    parameters = replace(MIXED, shape=shape, relevant=5, xor_pairs=0)  # XOR features would cut the blocks
    truth = mechanism(parameters)
    sample = draw_sample(truth, 200_000, np.random.default_rng(5))
    r = truth.expected(sample)
    for i in range(10):
        group = np.searchsorted(stats.norm.ppf(np.arange(1, 60) / 60), sample.Z[:, i])
        group = np.where(sample.known[:, i], group // 15 if truth.is_category[i] else group, 60)
        size = np.bincount(group, minlength=61)
        for a in range(3):
            mean = np.bincount(group, r[:, a], 61) / np.maximum(size, 1)
            noise = (np.count_nonzero(size) - 1) * r[:, a].var() / len(r)
            l2 = size @ np.square(mean - r[:, a].mean()) / len(r) - noise
            # sd of l2 is about 2 g sd(r) / sqrt(n) = 1e-4 for g = 0.1^2; 60 groups lose about as much
            assert true_relevance(truth)["l2"][a, i] == pytest.approx(l2, abs=2e-4)


def test_l1_relevance_of_correlated_numbers_agrees_with_a_fine_grid():
    """Opposite effects and a correlation of 0.95: |r(a, x_i) - r(a)| has kinks and steep slopes."""
    parameters = Synthetic(features=5, actions=3, relevant=4, effect=0.1, correlation=0.95)
    truth = mechanism(parameters)
    z = stats.norm.ppf((np.arange(50_000) + 0.5) / 50_000)
    for i in range(5):
        shift = np.zeros((3, len(z)))
        for o in range(5):
            rho = 0.95 ** abs(i - o)
            phi_o = np.sign(z) if o == i else 2 * stats.norm.cdf(rho * z / math.sqrt(1 - rho**2)) - 1
            shift += truth.w[:, [o]] * phi_o
        # 1e-5: a kink between two nodes; a quarter in 1 part instead of 32 would be 2e-4 off
        np.testing.assert_allclose(true_relevance(truth)["l1"][:, i], np.abs(shift).mean(axis=1), atol=1e-5)


def test_panels_integrate_moments_of_the_normal():
    z, weight = panels((-1.0, 0.3), parts=8)
    for power, moment in enumerate([1, 0, 1, 0, 3, 0, 15]):
        assert np.sum(weight * z**power) == pytest.approx(moment, abs=1e-12)
    np.testing.assert_allclose(weight.sum(axis=1), np.diff(stats.norm.cdf([-9, -1, 0.3, 9])), atol=1e-14)


def test_an_xor_pair_is_irrelevant_alone_and_moves_r_together():
    parameters = Synthetic(features=6, relevant=0, xor_pairs=1, actions=2, effect=0.3, correlation=0.8)
    truth = mechanism(parameters)
    assert not np.any(true_relevance(truth)["l1"])
    sample = draw_sample(truth, 20_000, np.random.default_rng(2))
    r = truth.expected(sample)
    for a, i, o, size in truth.pairs:
        product = np.sign(sample.table[i].to_numpy() * sample.table[o].to_numpy())
        np.testing.assert_allclose(r[:, a], 0.5 + size * product)
        assert off_by(product, 0.0) < LIMIT  # independent although the correlation is 0.8
        for other in range(6):
            assert off_by(product * np.sign(sample.Z[:, other]), 0.0) < LIMIT
        assert abs(size) == 0.3


# Values --------------------------------------------------------------------------------------------------


def by_level(table: pa.Table) -> np.ndarray:
    """A policy that depends on every cell, also on missing ones."""
    taste = np.random.default_rng(0).normal(size=(table.num_columns, 5, 3))
    cells = np.array([[(*LEVELS, None).index(cell) for cell in row] for row in rows_of(table)])
    return softmax(sum(taste[i, cells[:, i]] for i in range(table.num_columns)))


def test_enumerated_value_equals_the_plain_sum():
    truth, m = mechanism(SMALL), SMALL.missing
    chance = {None: m, **dict.fromkeys(LEVELS, (1 - m) / 4)}
    rows = list(itertools.product(chance, repeat=5))
    h = by_level(pa.table(dict(zip(SMALL.names, map(list, zip(*rows, strict=True)), strict=True))))
    value = sum(
        math.prod(chance[cell] for cell in row) * h[j, a] * expected_reward(truth, a, row)
        for j, row in enumerate(rows)
        for a in range(3)
    )
    assert enumerate_value(SMALL, by_level) == pytest.approx(value, abs=1e-12)
    assert abs(value - 0.5) > 0.005  # the policy is not a trivial one


def test_integrated_value_agrees_with_enumeration():
    value, error = true_value(SMALL, by_level, rows=120_000)
    assert 0 < error < 0.001
    assert abs(value - enumerate_value(SMALL, by_level)) < LIMIT * error


def test_value_on_fresh_rows_agrees_with_integration():
    parameters = replace(SMALL, actions=3)
    world = fresh(parameters, rows=20_000, seed=7)
    value = enumerate_value(parameters, by_level)
    assert off_by(np.sum(by_level(world.log.X) * world.expected, axis=1), value) < LIMIT


def test_only_countable_worlds_are_enumerated():
    for parameters in (replace(SMALL, correlation=0.1), replace(SMALL, categorical=0.6), replace(SMALL, features=20)):
        with pytest.raises(PonnError, match="true_value"):
            enumerate_value(parameters, by_level)


def test_a_policy_of_the_wrong_shape_is_refused():
    with pytest.raises(PonnError, match=r"shape \(100, 2\)"):
        true_value(SMALL, lambda table: np.full((len(table), 2), 0.5), rows=100)


# Draws ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", ["binary", "continuous"])
def test_rewards_have_mean_r_and_the_stated_variance(reward):
    world = synthetic(rows=40_000, features=8, relevant=4, effect=0.125, reward=reward, seed=4)
    r, R = world.expected, world.rewards
    scale = 1.0 if reward == "binary" else 0.2
    for a in range(5):
        assert off_by(R[:, a], r[:, a]) < LIMIT
        high = r[:, a] > 0.6
        assert off_by(R[high, a], r[high, a]) < LIMIT
        assert off_by((R[:, a] - r[:, a]) ** 2, scale * r[:, a] * (1 - r[:, a])) < LIMIT
    assert (R[r == 0] == 0).all()
    assert (R[r == 1] == 1).all()
    assert (r == 0).any()
    assert (set(np.unique(R)) == {0, 1}) == (reward == "binary")
    assert R.min() >= 0
    assert R.max() <= 1


def test_actions_follow_the_propensities():
    world = synthetic(rows=40_000, features=8, bias=1.5, seed=2)
    p0 = world.propensities
    np.testing.assert_allclose(p0.sum(axis=1), 1.0)
    for a in range(5):
        taken = a == world.log.A
        assert off_by(taken, p0[:, a]) < LIMIT
        likely = p0[:, a] > 0.3
        assert off_by(taken[likely], p0[likely, a]) < LIMIT


def test_the_log_shows_the_reward_and_the_propensity_of_the_action_taken():
    world = synthetic(known_propensity=True, rows=500, missing=0.1, categorical=0.3)
    j = np.arange(500)
    np.testing.assert_array_equal(world.log.R, world.rewards[j, world.log.A])
    np.testing.assert_array_equal(world.log.p0, world.propensities[j, world.log.A])
    assert synthetic(rows=500).log.p0 is None


def test_bias_is_the_sd_of_the_logits():
    assert (synthetic(rows=300, bias=0.0).propensities == 0.2).all()
    for categorical in (0.0, 1.0):
        truth = mechanism(Synthetic(features=30, bias=1.7, categorical=categorical))
        sample = draw_sample(truth, 40_000, np.random.default_rng(1))
        logits = np.log(truth.propensities(sample))
        contrast = logits[:, 0] - logits[:, 1]
        sd = np.linalg.norm(truth.theta[:, 0] - truth.theta[:, 1])
        assert off_by(contrast**2, sd**2) < LIMIT
        np.testing.assert_allclose(np.linalg.norm(truth.theta, axis=0), 1.7)


def test_only_drivers_drive_the_logging():
    assert (np.any(mechanism(Synthetic(drivers=3)).theta, axis=1)).sum() == 3
    assert not mechanism(Synthetic(drivers=0)).theta.any()
    assert mechanism(Synthetic()).theta.all()


def test_shares_of_missing_cells_and_categories():
    world = synthetic(rows=5_000, features=40, missing=0.1, categorical=0.25)
    missing = sum(column.null_count for column in world.log.X.columns)
    assert abs(missing - 20_000) < LIMIT * math.sqrt(200_000 * 0.1 * 0.9)
    texts = [column for column in world.log.X.columns if pa.types.is_string(column.type)]
    assert len(texts) == 10
    for column in texts:
        assert set(column.to_pylist()) == {None, *LEVELS}


def test_neighbours_in_a_block_are_correlated():
    truth = mechanism(Synthetic(features=12, correlation=0.6))
    Z = draw_sample(truth, 100_000, np.random.default_rng(3)).Z
    for i, o in itertools.combinations(range(12), 2):
        assert off_by(Z[:, i] * Z[:, o], 0.6 ** (o - i) if i // 5 == o // 5 else 0.0) < LIMIT


# The truth is the seed's -----------------------------------------------------------------------------------


def test_sets_have_the_size_asked_for_and_differ_between_actions():
    for seed in range(20):
        truth = mechanism(Synthetic(features=4, actions=4, relevant=1, xor_pairs=1, seed=seed))
        sets = [frozenset(np.flatnonzero(row)) for row in truth.w]
        assert len(set(sets)) == 4
        for a, i, o, _ in truth.pairs:
            assert len({*sets[a], i, o}) == 3


def test_the_seed_fixes_everything_and_fresh_rows_keep_the_truth():
    first, other = (synthetic(rows=300, seed=seed) for seed in (1, 2))
    mechanism.cache_clear()
    assert first.log.table.equals(synthetic(rows=300, seed=1).log.table)
    assert not first.log.X.equals(other.log.X)
    assert (first.causes != other.causes).any()
    new = fresh(Synthetic(rows=300, seed=1), rows=200, seed=9)
    assert len(new.log) == 200
    assert (new.causes == first.causes).all()
    assert not new.log.table.equals(first.log.table.slice(0, 200))
    overlap = set(new.log.X.column(0).to_pylist()) & set(first.log.X.column(0).to_pylist())
    assert not overlap


def test_names_and_action_numbers():
    world = synthetic(rows=2_000, features=11, actions=12, bias=0.5)
    assert world.log.actions == tuple(f"a{a:02d}" for a in range(1, 13)) == tuple(sorted(world.log.actions))
    assert world.log.features == tuple(f"x{i}" for i in range(1, 12))
    assert (world.log.columns.action, world.log.columns.reward) == ("action", "reward")
    labels = world.log.table.column("action").to_pylist()
    assert [world.log.actions[a] for a in world.log.A] == labels
    parts = np.concatenate([world.train, world.valid, world.test])
    assert sorted(parts) == list(range(2_000))


def test_an_action_that_never_occurs_is_refused():
    with pytest.raises(PonnError, match="never taken in the 40 rows"):
        synthetic(rows=40, actions=30, features=40)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("categorical", [0.0, 1.0])
def test_the_largest_legal_effect_is_legal_and_more_is_not(shape, categorical):
    chosen = {"shape": shape, "relevant": 3, "xor_pairs": 1, "features": 8, "categorical": categorical, "rows": 4_000}
    largest = Synthetic(**chosen).largest_effect
    phi_max = 1.0 if shape != "linear" else 3 / math.sqrt(5) if categorical else math.sqrt(3)
    assert largest * (3 * phi_max + 1) == pytest.approx(0.5)
    world = synthetic(effect=largest, **chosen)
    assert world.expected.max() > (0.9 if shape == "linear" else 1 - 1e-9)
    with pytest.raises(PonnError, match="between 0 and 1"):
        Synthetic(effect=largest * 1.001, **chosen)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0}, {"features": 0}, {"actions": 1}, {"relevant": -1}, {"xor_pairs": -1}, {"drivers": 21},
        {"drivers": -1}, {"relevant": 2.5}, {"categorical": 1.1}, {"missing": 1.0}, {"missing": float("nan")},
        {"correlation": 1.0}, {"bias": -1.0}, {"bias": math.inf}, {"shape": "wave"}, {"reward": "count"},
        {"effect": -0.1}, {"effect": float("nan")}, {"features": 4}, {"features": 5}, {"seed": -1},
    ],
)  # fmt: skip
def test_illegal_parameters_are_refused(wrong):
    with pytest.raises(PonnError, match=r"expected|only"):
        Synthetic(**wrong)


def test_a_large_world_is_drawn_in_less_than_a_second_of_processor_time():
    import time

    start = time.process_time()
    synthetic(rows=10_000, features=100, actions=5, correlation=0.5, missing=0.05, categorical=0.2)
    assert time.process_time() - start < 1.0  # measured 0.15 s
