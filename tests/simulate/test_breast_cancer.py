"""The breast cancer world has the shape the paper describes and says the truth about itself.

Chance tests use fixed seeds; `LIMIT` standard errors are exceeded by a correct program once in 150,000 seeds.
"""

import math
import time

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.optimize import brentq

from ponn.errors import PonnError
from ponn.simulate.breast_cancer import (
    BETA,
    FEATURES,
    INTERCEPTS,
    NAMES,
    REGIMENS,
    Feature,
    breast_cancer,
    coded,
    draw_patients,
    joint_success,
    logging_features,
    sigmoid,
    success,
    true_relevance,
)
from ponn.simulate.worlds import softmax

LIMIT = 4.5
CORRELATIONS = {
    ("age", "menopausal_status"): 0.75,
    ("estrogen_receptor", "progesterone_receptor"): 0.53,
    ("tumor_stage", "positive_lymph_nodes"): 0.45,
    ("estrogen_receptor", "tumor_grade"): -0.37,
    ("surgery_type", "prior_radiotherapy"): -0.44,
}
CAUSES = {  # the paper's selected sets; AT is ours
    "AC": {"age", "tumor_stage", "tumor_grade"},
    "ACT": {"age", "tumor_grade", "positive_lymph_nodes"},
    "AT": {"estrogen_receptor", "her2"},
    "CAF": {"menopausal_status", "surgery_type"},
    "CEF": {"age", "estrogen_receptor"},
    "CMF": {"estrogen_receptor", "progesterone_receptor"},
}
FAMILIES = [
    {"age", "menopausal_status"},
    {"estrogen_receptor", "progesterone_receptor", "tumor_grade"},
    {"tumor_stage", "positive_lymph_nodes"},
    {"surgery_type", "prior_radiotherapy"},
]
MEANS = {"AC": 0.72, "ACT": 0.74, "AT": 0.72, "CAF": 0.73, "CEF": 0.74, "CMF": 0.71}


@pytest.fixture(scope="module")
def cell():
    return draw_patients(300_000, np.random.default_rng(11))


@pytest.fixture(scope="module")
def r(cell):
    return success(cell)


def off_by(sample, truth) -> float:
    """How many standard errors the mean of a sample is away from the truth."""
    difference = np.asarray(sample) - truth
    return abs(difference.mean()) / (difference.std() / math.sqrt(len(difference)))


# Patients ------------------------------------------------------------------------------------------------


def correlation(parent: Feature, child: Feature, latent: float) -> float:
    """Pearson's correlation of the codes, by Hoeffding's formula.

    cov(X, Y) = sum over cuts u, v of rise_u rise_v (P(Z > u, Z' > v) - P(Z > u) P(Z' > v)).
    """
    normal = stats.multivariate_normal([0, 0], [[1, latent], [latent, 1]])
    both = normal.cdf([[(-u, -v) for v in child.cuts] for u in parent.cuts])
    excess = np.reshape(both, (len(parent.cuts), -1))
    excess = excess - np.outer(stats.norm.sf(parent.cuts), stats.norm.sf(child.cuts))
    return np.diff(parent.codes) @ excess @ np.diff(child.codes) / (sd(parent) * sd(child))


def sd(feature: Feature) -> float:
    p = np.diff(stats.norm.cdf([-np.inf, *feature.cuts, np.inf]))
    return math.sqrt(p @ feature.codes**2 - (p @ feature.codes) ** 2)


@pytest.mark.parametrize(("pair", "target"), CORRELATIONS.items())
def test_latent_correlations_are_the_solution(pair, target):
    parent, child = (FEATURES[NAMES.index(name)] for name in pair)
    assert child.parent == parent.name
    solved = brentq(lambda rho: correlation(parent, child, rho) - target, -0.995, 0.995, xtol=1e-9)
    assert child.latent == pytest.approx(solved, abs=2e-6)  # six decimals are kept


def test_observed_correlations(cell):
    observed = np.corrcoef(coded(cell).T)
    related = {frozenset(pair): target for pair, target in CORRELATIONS.items()}
    for i, one in enumerate(NAMES):
        for o, other in enumerate(NAMES[:i]):
            if (pair := frozenset((one, other))) in related:
                assert observed[i, o] == pytest.approx(related[pair], abs=0.01)  # 5 standard errors
            elif not any(pair <= family for family in FAMILIES):
                assert abs(observed[i, o]) < LIMIT / math.sqrt(len(cell))


def test_levels_are_as_frequent_as_stated(cell):
    for i, feature in enumerate(FEATURES):
        observed = np.bincount(cell[:, i], minlength=len(feature.levels)) / len(cell)
        error = np.sqrt(feature.shares * (1 - feature.shares) / len(cell))
        assert (np.abs(observed - feature.shares) < LIMIT * error + 1e-9).all()
        assert feature.shares @ feature.scaled == pytest.approx(0, abs=1e-12)
        assert feature.shares @ feature.scaled**2 == pytest.approx(1)


def test_the_table_is_what_a_clinician_writes():
    X = breast_cancer(rows=3_000).log.X
    assert X.column_names == [
        "age", "menopausal_status", "race", "estrogen_receptor", "progesterone_receptor", "her2", "tumor_stage",
        "tumor_grade", "positive_lymph_nodes", "who_score", "surgery_type", "prior_chemotherapy",
        "prior_radiotherapy", "histology",
    ]  # fmt: skip
    values = {name: set(X.column(name).to_pylist()) for name in X.column_names}
    assert values["menopausal_status"] == {"pre", "post"}
    assert values["her2"] == values["estrogen_receptor"] == {"positive", "negative"}
    assert values["surgery_type"] == {"mastectomy", "lumpectomy"}
    assert values["prior_chemotherapy"] == {"yes", "no"}
    assert values["tumor_stage"] == {1, 2, 3, 4}
    assert values["who_score"] == {0, 1, 2, 3, 4}
    ages = X.column("age").to_numpy()
    post = np.array(X.column("menopausal_status").to_pylist()) == "post"
    assert ages[post].mean() > ages[~post].mean() + 10
    assert pa.types.is_integer(X.schema.field("age").type)


# Survival ------------------------------------------------------------------------------------------------


def test_intercepts_are_the_solution():
    for a, (name, regimen) in enumerate(REGIMENS.items()):
        P, r = joint_success(a)
        effects = np.log(r / (1 - r)) - INTERCEPTS[a]
        solved = brentq(lambda b, P=P, e=effects, mean=MEANS[name]: np.sum(P * sigmoid(b + e)) - mean, -9, 9)
        assert regimen.mean == MEANS[name]
        assert regimen.b == pytest.approx(solved, abs=2e-6)  # six decimals are kept


def test_mean_success(r):
    for a, name in enumerate(REGIMENS):
        assert r[:, a].mean() == pytest.approx(MEANS[name], abs=0.003)  # 5 standard errors


def test_success_depends_on_exactly_the_paper_s_features():
    """Every feature moved to each of its levels, all others kept."""
    cell = draw_patients(50, np.random.default_rng(0))
    for i, feature in enumerate(FEATURES):
        moved = np.zeros(len(REGIMENS), bool)
        for level in range(len(feature.levels)):
            other = cell.copy()
            other[:, i] = level
            moved |= np.any(success(other) != success(cell), axis=0)
        assert {name for name, m in zip(REGIMENS, moved, strict=True) if m} == {
            name for name, causes in CAUSES.items() if feature.name in causes
        }


def test_odds_ratios_are_at_most_three_per_standard_deviation():
    assert np.abs(BETA).max() <= math.log(3)
    cell = draw_patients(2_000, np.random.default_rng(0))
    r = success(cell)
    logit = np.log(r / (1 - r))
    for a in range(len(REGIMENS)):  # the log-odds really are linear in the scaled codes, with these slopes
        fit, *_ = np.linalg.lstsq(np.column_stack([np.ones(2_000), coded(cell)]), logit[:, a])
        np.testing.assert_allclose(fit, [INTERCEPTS[a], *BETA[a]], atol=1e-8)


def test_the_best_regimen_varies_between_patients(r):
    shares = np.bincount(np.argmax(r, axis=1), minlength=6) / len(r)
    assert shares.min() > 0.05  # measured 0.088 (AT) to 0.215 (CMF)
    assert r.max(axis=1).mean() > r.mean(axis=0).max() + 0.1  # measured 0.958 against 0.740


# Relevance -----------------------------------------------------------------------------------------------


def test_relevance_is_zero_exactly_where_a_feature_is_independent_of_every_cause():
    for loss in ("l1", "l2"):
        for a, causes in enumerate(CAUSES.values()):
            related = set.union(causes, *(family for family in FAMILIES if family & causes))
            found = {name for name, g in zip(NAMES, true_relevance()[loss][a], strict=True) if g != 0}
            assert found == related


def test_relevance_agrees_with_a_large_sample(cell, r):
    """Mean success per level; l1 within the levels' noise, l2 with the noise removed.

    Defects seen: a latent correlation or effect of the wrong size, two features interchanged.
    """
    n = len(cell)
    for i in range(len(FEATURES)):
        size = np.bincount(cell[:, i])
        for a in range(len(REGIMENS)):
            mean = np.bincount(cell[:, i], r[:, a]) / np.maximum(size, 1)
            shift = mean - r[:, a].mean()
            noise = (np.count_nonzero(size) - 1) * r[:, a].var() / n
            l1, l2 = size @ np.abs(shift) / n, size @ shift**2 / n - noise
            # sd of l2 about 2 sqrt(g) sd(r) / sqrt(n) = 2.5e-4 at most; an l1 is off by sd(r) sqrt(levels / n)
            assert true_relevance()["l2"][a, i] == pytest.approx(l2, abs=1e-3)
            assert true_relevance()["l1"][a, i] == pytest.approx(l1, abs=4e-3)


# The log -------------------------------------------------------------------------------------------------


def test_the_log_and_its_truth_fit_together():
    world = breast_cancer(rows=4_000, seed=3, known_propensity=True)
    assert world.log.actions == tuple(REGIMENS) == ("AC", "ACT", "AT", "CAF", "CEF", "CMF")
    assert world.log.features == NAMES
    assert (world.log.columns.action, world.log.columns.reward) == ("regimen", "survived")
    j = np.arange(4_000)
    labels = world.log.table.column("regimen").to_pylist()
    assert [world.log.actions[a] for a in world.log.A] == labels
    np.testing.assert_array_equal(world.log.R, world.rewards[j, world.log.A])
    np.testing.assert_array_equal(world.log.p0, world.propensities[j, world.log.A])
    assert pa.types.is_integer(world.log.table.schema.field("survived").type)
    np.testing.assert_array_equal(world.causes, [[name in causes for name in NAMES] for causes in CAUSES.values()])
    assert breast_cancer(rows=500).log.p0 is None
    assert sorted([*world.train, *world.valid, *world.test]) == list(range(4_000))


def test_the_table_alone_determines_success_and_propensities():
    """Nothing the log does not hold moves rewards or logging: levels read back from the table give both."""
    world = breast_cancer(rows=1_000, seed=8)
    cell = levels_of(world.log.X)
    np.testing.assert_allclose(world.expected, success(cell))
    Z = logging_features(cell)
    logits = np.log(world.propensities)
    theta, *_ = np.linalg.lstsq(Z, logits - logits[:, :1])
    np.testing.assert_allclose(softmax(Z @ theta), world.propensities, atol=1e-9)


def test_logging_features_are_standardised(cell):
    Z = logging_features(cell)
    assert Z.shape[1] == 12 + 4 + 3  # race and histology as indicators
    assert all(off_by(column, 0.0) < LIMIT for column in Z.T)
    for column in Z.T:  # the variance of an indicator with share 1/2 has no error at all
        assert abs(np.mean(column**2) - 1) <= LIMIT * np.std(column**2) / math.sqrt(len(Z)) + 1e-9


def test_actions_and_outcomes_follow_their_probabilities():
    world = breast_cancer(rows=40_000, seed=5)
    for a in range(6):
        taken = a == world.log.A
        assert off_by(taken, world.propensities[:, a]) < LIMIT
        likely = world.propensities[:, a] > 0.5
        assert off_by(taken[likely], world.propensities[likely, a]) < LIMIT
        assert off_by(world.rewards[:, a], world.expected[:, a]) < LIMIT
        doubtful = world.expected[:, a] < 0.65
        assert off_by(world.rewards[doubtful, a], world.expected[doubtful, a]) < LIMIT


def test_kappa_is_the_variance_of_theta():
    """The centred logits of one patient, squared, over kappa |z|^2, are chi-squared with k - 1 degrees of freedom.

    60 seeds give 300 degrees of freedom; false alarm once in 100,000 sets of seeds; sees a kappa 30 % off.
    """
    assert (breast_cancer(rows=300, kappa=0.0).propensities == 1 / 6).all()
    total = 0.0
    for seed in range(60):
        world = breast_cancer(rows=300, seed=seed)
        logits = np.log(world.propensities[0])
        z = logging_features(levels_of(world.log.X.slice(0, 1)))[0]
        total += np.sum((logits - logits.mean()) ** 2) / (0.25 * z @ z)
    low, high = stats.chi2(300).ppf([5e-6, 1 - 5e-6])
    assert low < total < high


def levels_of(X: pa.Table) -> np.ndarray:
    """The levels' numbers, read back from a table."""
    columns = [[one.levels.index(value) for value in X.column(one.name).to_pylist()] for one in FEATURES]
    return np.array(columns).T


def test_the_seed_fixes_patients_and_logging_but_not_the_effects():
    first, again, other = (breast_cancer(rows=400, seed=seed) for seed in (1, 1, 2))
    assert first.log.table.equals(again.log.table)
    assert not first.log.X.equals(other.log.X)
    assert (first.relevance["l2"] == other.relevance["l2"]).all()


def test_it_says_that_effects_are_invented():
    about = breast_cancer(rows=300).about
    assert "simulation" in about
    assert "effect sizes are invented" in about


def test_an_action_that_never_occurs_is_refused():
    with pytest.raises(PonnError, match="never taken in the 5 rows"):
        breast_cancer(rows=5)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"kappa": -1.0}, {"kappa": math.nan}, {"kappa": math.inf}])
def test_illegal_calls_are_refused(wrong):
    with pytest.raises(PonnError, match="expected"):
        breast_cancer(**wrong)


def test_it_is_quick():
    true_relevance.cache_clear()
    start = time.process_time()
    breast_cancer()
    assert time.process_time() - start < 2.0  # measured 0.1 s
