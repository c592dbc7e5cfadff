"""Step A: known propensities stay, unknown ones are estimated on the right rows, diagnostics are the stated sums."""

import warnings

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import ponn
from ponn.log.encoding import Encoding
from ponn.settings import Settings
from ponn.simulate.synthetic import synthetic
from ponn.steps.propensity import (
    Propensities,
    calibration_error,
    chance_of_so_few,
    fit_converges,
    fold_numbers,
    overlap,
    propensities,
)


def world_log(rows: int = 2_000, bias: float = 1.0, seed: int = 0, **options: object) -> tuple[ponn.World, ponn.Log]:
    world = synthetic(rows=rows, features=6, actions=3, relevant=2, bias=bias, seed=seed, **options)
    return world, world.log


def test_known_propensities_are_taken_as_they_are_and_never_cut():
    _, log = world_log(known_propensity=True)
    found = propensities(log, Encoding.fit(log))
    assert found.model == "known"
    assert found.m == np.inf
    assert np.array_equal(found.weights, 1 / log.p0)
    assert not found.truncated.any()
    assert propensities(log, Encoding.fit(log), Settings(m=2.0)).weights.max() == 2.0


def test_partly_known_propensities_keep_the_known_ones_and_report_the_share():
    _, log = world_log(known_propensity=True)
    gaps = np.random.default_rng(0).random(len(log)) < 0.25
    table = log.table.drop_columns(["propensity"]).append_column("p", pa.array(log.p0, mask=gaps))
    part = ponn.read_log(table, action="action", reward="reward", propensity="p")
    found = propensities(part, Encoding.fit(part))
    assert np.array_equal(found.p[~gaps], log.p0[~gaps])
    assert np.array_equal(found.known, ~gaps)
    assert any(f"{gaps.mean():.1%} of the propensities were missing" in note for note in found.notes)
    assert np.abs(found.p[gaps] - log.p0[gaps]).mean() < 0.05


def test_logistic_regression_finds_a_softmax_logging_policy():
    """20,000 rows, 7 coefficients per action: mean error about 0.007; 0.02 would mean a wrong model."""
    world, log = world_log(20_000)
    found = propensities(log, Encoding.fit(log), Settings(propensity_penalty=0.0))
    assert np.abs(found.P - world.propensities).mean() < 0.02
    assert np.allclose(found.P.sum(axis=1), 1)
    assert np.array_equal(found.p, found.P[np.arange(len(log)), log.A])


class Spy(ClassifierMixin, BaseEstimator):
    """Remembers which rows it was fitted on (the first feature is the row number) and which it predicted."""

    seen: list[tuple[set[float], set[float]]] = []  # noqa: RUF012 - shared on purpose, clones must write to it

    def fit(self, X, y):
        self.classes_, self.rows_ = np.unique(y), set(X[:, 0].round(6))
        return self

    def predict_proba(self, X):
        Spy.seen.append((self.rows_, set(X[:, 0].round(6))))
        return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))


@pytest.mark.parametrize("group", [None, "g"])
def test_cross_fitting_never_predicts_a_row_it_was_fitted_on(group):
    n = 90
    table = pa.table({"x": np.arange(n) + 0.5, "g": np.arange(n) // 4, "a": np.arange(n) % 3, "r": np.arange(n) % 2})
    log = ponn.read_log(table, action="a", reward="r", group=group, features=["x"])
    Spy.seen.clear()
    found = propensities(log, Encoding.fit(log), folds=5, classifier=Spy())
    assert found.model == "Spy"
    assert len(Spy.seen) == 5
    assert all(not fitted & predicted for fitted, predicted in Spy.seen)
    assert len(set.union(*(predicted for _, predicted in Spy.seen))) == n
    if group:
        folds = fold_numbers(log, 5, 0)
        assert all(len(set(folds[start : start + 4])) == 1 for start in range(0, 88, 4))


def test_in_sample_is_the_papers_default():
    _, log = world_log(300)
    Spy.seen.clear()
    propensities(log, Encoding.fit(log), classifier=Spy())
    assert len(Spy.seen) == 1
    fitted, predicted = Spy.seen[0]
    assert fitted == predicted


def test_folds_hold_all_actions():
    _, log = world_log(1_000)
    folds = fold_numbers(log, 5, seed=3)
    counts = np.array([np.bincount(log.A[folds == fold], minlength=3) for fold in range(5)])
    assert np.all(counts.max(axis=0) - counts.min(axis=0) <= 1)
    with pytest.raises(ponn.PonnError, match="folds is 0"):
        fold_numbers(log, 0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"settings": Settings(propensity="boosting")},
        {"settings": Settings(calibrate=True)},
        {"classifier": RandomForestClassifier(n_estimators=20, min_samples_leaf=20, random_state=0), "folds": 3},
    ],
)
def test_other_models_estimate_too(options):
    world, log = world_log(3_000)
    found = propensities(log, Encoding.fit(log), **options)
    assert np.abs(found.P - world.propensities).mean() < 0.1
    assert np.allclose(found.P.sum(axis=1), 1)


def test_an_action_a_fold_never_saw_gets_its_share_and_is_told():
    n = 60
    table = pa.table(
        {"x": np.random.default_rng(0).normal(size=n), "a": ["u", "v"] * 29 + ["w", "u"], "r": [0, 1] * 30}
    )
    log = ponn.read_log(table, action="a", reward="r")
    found = propensities(log, Encoding.fit(log), folds=5)
    assert found.p.min() > 0
    assert np.allclose(found.P.sum(axis=1), 1)
    assert any("overall share" in note for note in found.notes)


@pytest.mark.parametrize(("rare", "fits"), [(2, 5), (3, 3), (4, 0)])
def test_fits_with_too_few_rows_of_an_action_are_not_calibrated_and_counted(rare, fits):
    """Of 3 rare rows, three fits are left with 2; of 4, every fit but the last has 3 and that has 4."""
    n = 60
    actions = ["w"] * rare + ["u", "v"] * (n // 2)
    table = pa.table({"x": np.random.default_rng(0).normal(size=n), "a": actions[:n], "r": [0, 1] * (n // 2)})
    log = ponn.read_log(table, action="a", reward="r")
    found = propensities(log, Encoding.fit(log), Settings(calibrate=True), folds=5)
    assert np.allclose(found.P.sum(axis=1), 1)
    told = [note for note in found.notes if "not calibrated" in note]
    assert told == (
        [
            f"The propensity model was not calibrated in {fits} of 5 fits: an action had fewer rows than "
            "calibration has folds."
        ]
        if fits
        else []
    )


def test_truncation_by_rule_or_by_hand_is_counted():
    _, log = world_log(2_000, bias=3.0)
    encoding = Encoding.fit(log)
    found = propensities(log, encoding)
    assert found.m == pytest.approx(np.sqrt(2_000))
    by_hand = propensities(log, encoding, Settings(m=5.0))
    cut = int((1 / by_hand.p > 5).sum())
    assert cut > 0
    assert by_hand.truncated.sum() == cut
    assert any(note.startswith(f"Weights above 5 were cut to it in {cut} of") for note in by_hand.notes)
    assert by_hand.U(log) == pytest.approx(np.minimum(1 / by_hand.p, 5) * log.R)


# Diagnostics ---------------------------------------------------------------------------------------------


def test_diagnostics_are_the_stated_sums():
    _, log = world_log(400, known_propensity=True)
    encoding = Encoding.fit(log)
    found = propensities(log, encoding, Settings(m=6.0))
    seen = overlap(log, encoding, found)
    X, w = encoding.design(log).astype(float), found.weights
    for a in range(3):
        mine = [j for j in range(len(log)) if log.A[j] == a]
        weights = [min(1 / log.p0[j], 6.0) for j in mine]
        assert seen.rows[a] == len(mine)
        assert seen.effective[a] == pytest.approx(sum(weights) ** 2 / sum(v * v for v in weights))
        assert seen.largest_weight[a] == pytest.approx(max(weights))
        assert seen.truncated[a] == pytest.approx(sum(1 / log.p0[j] > 6.0 for j in mine) / len(mine))
        assert seen.mean_inverse[a] == pytest.approx(sum(1 / log.p0[j] for j in mine) / len(log))
        for i in range(X.shape[1]):
            mean, sd = X[:, i].mean(), X[:, i].std()
            plain = abs(sum(X[j, i] for j in mine) / len(mine) - mean) / sd
            weighted = abs(sum(w[j] * X[j, i] for j in mine) / sum(w[j] for j in mine) - mean) / sd
            assert seen.balance_before[a, i] == pytest.approx(plain, abs=1e-9)
            assert seen.balance_after[a, i] == pytest.approx(weighted, abs=1e-9)


def test_weighting_with_the_true_propensities_balances_and_averages_to_one():
    """20,000 rows: the mean of 1{A = a}/p has s.e. about 0.02; five of them."""
    _, log = world_log(20_000, known_propensity=True)
    seen = overlap(log, Encoding.fit(log), propensities(log, Encoding.fit(log)))
    assert np.all(np.abs(seen.mean_inverse - 1) < 0.1)
    assert seen.balance_before.max() > 0.3
    assert seen.balance_after.max() < 0.15
    assert seen.unsupported is None  # nobody knows the propensities of actions that were not taken


def test_calibration_error_is_zero_for_true_and_large_for_wrong_propensities():
    """50,000 rows in 10 bins: sampling alone gives about 0.005."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, 50_000)
    taken = rng.random(50_000) < p
    assert calibration_error(p, taken) < 0.01
    assert calibration_error(1 - p, taken) > 0.3


def test_unsupported_rows_are_counted():
    _, log = world_log(3_000, bias=4.0)
    encoding = Encoding.fit(log)
    found = propensities(log, encoding)
    assert overlap(log, encoding, found).unsupported == int((found.P < 0.01).any(axis=1).sum()) > 0


def test_what_is_almost_never_done_to_whom_is_said_in_a_sentence():
    rng = np.random.default_rng(0)
    n = 3_000
    age = np.round(rng.uniform(20, 80, n))
    action = np.where(rng.random(n) < 0.5, "CAF", "AC")
    action[(age < 40) & (rng.random(n) < 0.999)] = "AC"
    er = np.where(rng.random(n) < 0.3, "negative", "positive")
    table = pa.table({"age": age, "er": er, "regimen": action, "alive": rng.integers(0, 2, n)})
    log = ponn.read_log(table, action="regimen", reward="alive")
    encoding = Encoding.fit(log)
    sentences = overlap(log, encoding, propensities(log, encoding)).sentences
    assert len(sentences) == 1
    assert sentences[0].startswith("Action 'CAF' is almost never taken where age is under 40")


def uniform_log(rng, n=3_000, k=30, levels=12):
    columns = {"where": rng.integers(0, levels, n).astype(str), "arm": rng.integers(0, k, n)}
    columns |= {"won": rng.integers(0, 2, n), "p": np.full(n, 1 / k)}
    return ponn.read_log(pa.table(columns), action="arm", reward="won", propensity="p")


def test_what_chance_leaves_out_of_small_cells_is_not_told():
    """30 actions, all alike in 12 kinds of case of 250 rows: 8.3 are expected in each, and some have 2 or less."""
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(40):
        log = uniform_log(rng)
        encoding = Encoding.fit(log)
        seen += overlap(log, encoding, propensities(log, encoding)).sentences
    assert not seen  # one in a hundred logs may have a sentence; without the rule most logs have several


@pytest.mark.parametrize(
    ("seen", "rows", "share"), [(0, 50, 0.1), (1, 225, 0.03), (3, 40, 0.3), (0, 9, 1.0), (5, 9, 0.2)]
)
def test_the_bound_on_so_few_holds_and_is_not_far_off(seen, rows, share):
    exact = stats.binom.cdf(seen, rows, share)
    bound = chance_of_so_few(seen, rows, share)
    assert exact <= bound + 1e-15
    assert bound <= min(1, 10 * exact)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    _, log = world_log(200)
    with pytest.raises(ponn.PonnError, match=r"pip install 'ponn-policy\[learn\]'"):
        propensities(log, Encoding.fit(log))


def test_weights_are_one_over_p():
    p = np.array([0.5, 0.1])
    found = Propensities(p, None, np.ones(2, bool), 4.0, "known", 1, ())
    assert found.weights.tolist() == [2.0, 4.0]


def test_fits_that_stop_early_are_counted():
    _, log = world_log(300)
    found = propensities(log, Encoding.fit(log), classifier=LogisticRegression(max_iter=1), folds=3)
    assert "The propensity model stopped before it converged in 3 of 3 fits." in found.notes


def test_other_warnings_of_a_fit_stay_warnings():
    class Careless(LogisticRegression):
        def fit(self, X, y):
            warnings.warn("look here", UserWarning, stacklevel=1)
            return super().fit(X, y)

    with pytest.warns(UserWarning, match="look here"):
        assert fit_converges(Careless(), np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1]))
