"""Worlds: the shipped data are the stated rows, the logging policies are the stated ones, the truth is the truth."""

import numpy as np
import pyarrow as pa
import pytest

import ponn
from ponn.policy.inference import draw_actions
from ponn.simulate.catalogue import ARMS, WORLDS, actg_policy, to_bandit, world

UCI = {
    "pendigits": (16, (780, 779, 780, 719, 780, 720, 720, 778, 719, 719), 3498),
    "satimage": (36, (1072, 479, 961, 415, 470, 1038), 2000),
    "optdigits": (64, (376, 389, 380, 389, 387, 376, 377, 387, 380, 382), 1797),
}


@pytest.mark.parametrize("name", UCI)
def test_uci_training_parts_have_the_official_label_counts(name):
    d, counts, test_rows = UCI[name]
    train, test = ponn.datasets.load(name, "train"), ponn.datasets.load(name, "test")
    assert train.num_columns == d + 1
    assert tuple(np.unique(train.column("label").to_numpy(), return_counts=True)[1]) == counts
    assert test.num_rows == test_rows
    assert ponn.datasets.load(name).num_rows == train.num_rows + test_rows


@pytest.mark.parametrize("name", UCI)
@pytest.mark.parametrize("scaling", ["paper", "hard"])
def test_uci_worlds_follow_the_protocol(name, scaling):
    made = world(name, seed=1, scaling=scaling)
    d, counts, _ = UCI[name]
    n, k = sum(counts), len(counts)
    assert made.propensities.shape == made.rewards.shape == (n, k)
    assert np.allclose(made.propensities.sum(axis=1), 1)
    assert len(made.log.features) == d + 16
    assert np.array_equal(made.rewards.sum(axis=0), counts)
    assert np.array_equal(made.rewards.sum(axis=1), np.ones(n))
    taken = made.rewards[np.arange(n), made.log.A]
    assert np.array_equal(taken, made.log.R)
    assert abs(len(made.test) / n - 0.3) < 0.001
    assert abs(len(made.valid) / n - 0.21) < 0.001
    parts = np.concatenate([made.train, made.valid, made.test])
    assert np.array_equal(np.sort(parts), np.arange(n))


@pytest.mark.parametrize("name", UCI)
def test_logged_actions_follow_the_stated_propensities(name):
    """Mean of 1{A = a} / p0(a) is 1 for each action: |z| < 4.5, false-fail rate under 1e-4 for all actions and sets."""
    made = world(name, seed=2)
    n, k = made.propensities.shape
    taken = made.log.A[:, None] == np.arange(k)
    ratio = taken / made.propensities
    sd = np.sqrt(np.mean(1 / made.propensities - 1, axis=0) / n)
    assert np.all(np.abs(ratio.mean(axis=0) - 1) < 4.5 * sd)


def test_hard_scaling_is_far_more_biased_than_the_papers():
    paper, hard = (world("pendigits", seed=0, scaling=scaling).propensities for scaling in ("paper", "hard"))
    assert paper.max(axis=1).mean() < 0.3
    assert hard.max(axis=1).mean() > 0.5
    assert hard.min() < 1e-4


def test_paper_scaling_gives_logging_accuracies_like_the_papers():
    """25 seeds; the paper prints 10.12 / 16.55 / 10.24 %. Measured half-widths 0.3 / 0.6 / 0.35 points."""
    for name, printed, slack in (("pendigits", 10.12, 1.0), ("satimage", 16.55, 2.0), ("optdigits", 10.24, 1.2)):
        worlds = [world(name, seed=seed, rows=1_000) for seed in range(25)]
        accuracy = np.mean([100 * one.accuracy(one.propensities) for one in worlds])
        assert abs(accuracy - printed) < slack


def test_worlds_are_reproducible_and_differ_by_seed():
    for name in WORLDS:
        first, again, other = world(name, seed=5), world(name, seed=5), world(name, seed=6)
        assert first.log.table.equals(again.log.table)
        assert np.array_equal(first.propensities, again.propensities)
        assert np.array_equal(first.test, again.test)
        assert name == "kidney-stones" or not first.log.table.equals(other.log.table)


def test_parts_keep_rows_and_truth_together():
    made = world("satimage", seed=3, rows=500)
    test = made.part("test")
    assert test.log.table.equals(made.log.table.take(made.test))
    assert np.array_equal(test.rewards, made.rewards[made.test])
    assert np.array_equal(test.propensities, made.propensities[made.test])
    both = made.part("train", "valid")
    assert len(both.log) == len(made.train) + len(made.valid)
    assert np.array_equal(both.log.R, made.log.R[np.sort(np.concatenate([made.train, made.valid]))])
    assert len(both.test) == 0


def test_value_and_accuracy_are_the_papers_sums():
    made = world("optdigits", seed=0, rows=60)
    rng = np.random.default_rng(0)
    h = rng.dirichlet(np.ones(10), 60)
    acc = sum(h[j][a] * made.rewards[j][a] for j in range(60) for a in range(10)) / 60
    assert made.accuracy(h) == pytest.approx(acc, abs=1e-12)
    assert made.value(h) == pytest.approx(acc, abs=1e-12)


# Kidney stones -------------------------------------------------------------------------------------------


def test_kidney_stones_are_table_1():
    made = world("kidney-stones")
    log = made.log
    assert len(log) == 700
    assert log.actions == ("open surgery", "percutaneous nephrolithotomy")
    crude = [log.R[a == log.A].mean() for a in (0, 1)]
    assert crude == [273 / 350, 289 / 350]  # the wrong treatment looks better
    ips = [np.mean((a == log.A) * log.R / made.propensities[:, a]) for a in (0, 1)]
    assert ips[0] == pytest.approx(634983 / 762700, abs=1e-12)
    assert ips[1] == pytest.approx(6231 / 8000, abs=1e-12)
    assert ips[0] > ips[1]
    small = np.array(log.table.column("stone_size").to_pylist()) == "small"
    assert made.expected[small][0].tolist() == [81 / 87, 234 / 270]
    assert made.expected[~small][0].tolist() == [192 / 263, 55 / 80]


# ACTG 175 ------------------------------------------------------------------------------------------------


def test_actg175_has_no_feature_from_after_randomisation():
    made = world("actg175")
    later = {"offtrt", "cd420", "cd496", "cd820", "r", "cens", "days", "treat", "arms", "pidnum"}
    assert not later & set(made.log.features)
    assert made.log.actions == tuple(sorted(ARMS))


def test_actg175_test_part_is_the_untouched_randomised_half():
    made = world("actg175", seed=1)
    assert len(made.test) == 2139 - 2139 // 2
    assert np.all(made.propensities[made.test] == 0.25)
    biased = np.concatenate([made.train, made.valid])
    assert made.propensities[biased].min() >= 0.125
    assert made.propensities[biased].max() > 0.4
    assert np.allclose(made.log.p0, made.propensities[np.arange(len(made.log)), made.log.A])


def test_actg175_rewards_are_the_trials_own():
    table = ponn.datasets.load("actg175")
    shares = [1 - np.mean(table.column("cens").to_numpy()[table.column("arms").to_numpy() == a]) for a in range(4)]
    randomised = [world("actg175", seed=seed).part("test").log for seed in range(20)]
    for a, arm in enumerate(ARMS):
        mean = np.mean([log.R[log.actions.index(arm) == log.A].mean() for log in randomised])
        assert mean == pytest.approx(shares[a], abs=0.02)  # 20 random halves: s.e. of the mean under 0.004


def test_rejection_keeps_with_the_stated_propensities():
    """The mean number kept over 60 seeds, and the mean of 1{A = a}/p in one biased part: |z| < 4.5 each."""
    table = ponn.datasets.load("actg175")
    pi = actg_policy(table)
    arms = table.column("arms").to_numpy()
    accept = pi[np.arange(len(arms)), arms] / pi.max()
    kept = np.mean(
        [len(world("actg175", seed=seed).train) + len(world("actg175", seed=seed).valid) for seed in range(60)]
    )
    expected = accept.mean() * (2139 // 2)
    assert kept == pytest.approx(expected, abs=4.5 * np.sqrt(2139 / 2 / 4 / 60))
    low = world("actg175", seed=9)
    taken = low.log.A[:, None] == np.arange(4)
    biased = np.concatenate([low.train, low.valid])
    ratio = (taken / low.propensities)[biased]
    assert np.all(np.abs(ratio.mean(axis=0) - 1) < 4.5 * ratio.std(axis=0) / np.sqrt(len(biased)))


# Any classification table --------------------------------------------------------------------------------


def test_to_bandit_takes_arrays_and_frames_with_text_and_missing_values():
    rng = np.random.default_rng(0)
    frame = pa.table(
        {"x": [None if u < 0.1 else u for u in rng.random(300)], "colour": rng.choice(["red", "blue"], 300)}
    )
    made = to_bandit(frame, rng.choice(["yes", "no", "maybe"], 300), noise=2, seed=1)
    assert made.log.actions == ("maybe", "no", "yes")
    assert made.log.features == ("x", "colour", "noise1", "noise2")
    plain = to_bandit(rng.normal(size=(50, 3)), [0, 1] * 25, noise=0)
    assert plain.log.features == ("x1", "x2", "x3")


def test_kappa_zero_is_uniform_logging_and_scaling_is_of_unit_norm():
    X = np.random.default_rng(0).normal(size=(40, 3)) * 100
    made = to_bandit(X, [0, 1] * 20, kappa=0.0, noise=0)
    assert np.array_equal(made.propensities, np.full((40, 2), 0.5))
    first, second = (to_bandit(X * scale, [0, 1] * 20, noise=0, seed=2) for scale in (1, 1000))
    assert np.allclose(first.propensities, second.propensities)


def test_draw_actions_is_the_stated_distribution():
    """Chi-square with 3 degrees of freedom over 100,000 draws, critical value at 1e-5."""
    p = np.array([0.05, 0.15, 0.3, 0.5])
    A = draw_actions(np.tile(p, (100_000, 1)), np.random.default_rng(0))
    counts = np.bincount(A, minlength=4)
    assert np.sum((counts - 1e5 * p) ** 2 / (1e5 * p)) < 27.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: world("nowhere"), "There is no world 'nowhere'"),
        (lambda: world("pendigits", scaling="soft"), "scaling is 'soft'"),
        (lambda: world("pendigits", rows=99_999), "has 7494 rows"),
        (lambda: world("kidney-stones", rows=10), "fixed table of 700 rows"),
        (lambda: world("actg175", rows=10), "fixed size"),
        (lambda: world("breast-cancer", rows=0), "expected a positive number"),
        (lambda: to_bandit(np.ones(3), [0, 1, 0]), "expected an array"),
        (lambda: to_bandit(np.ones((3, 1)), [0, 1]), "3 rows and y 2"),
        (lambda: to_bandit(np.ones((3, 1)), [1, 1, 1]), "only one label"),
        (lambda: ponn.datasets.load("iris"), "no data set 'iris'"),
        (lambda: ponn.datasets.load("actg175", "train"), "no part 'train'"),
    ],
)
def test_wrong_calls_are_told(call, message):
    with pytest.raises(ponn.PonnError, match=message):
        call()


def test_to_bandit_takes_a_filtered_pandas_frame():
    import pandas as pd

    frame = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40) % 3})
    made = to_bandit(frame[frame.x > 9], [0, 1] * 15, noise=0)
    assert made.log.features == ("x", "y")
