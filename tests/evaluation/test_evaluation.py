"""Values of policies on logs: golden numbers, laws, refusals."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import ponn
from ponn.evaluation.intervals import LowOverlap
from ponn.evaluation.valuation import (
    CurrentPractice,
    FixedAction,
    Nuisances,
    Sampled,
    compare_policies,
    evaluate,
    nuisances,
    probabilities_on,
    read_same_log,
    refitted_propensities,
    value_on,
)
from ponn.simulate.synthetic import synthetic
from ponn.steps.propensity import fold_numbers, propensities
from ponn.tables.files import write_table

QUICK = {"hidden": (8,), "epochs": 30, "patience": 5}


@pytest.fixture(scope="module")
def world() -> ponn.World:
    return synthetic(rows=4_000, features=6, actions=3, relevant=2, effect=0.2, bias=0.4, known_propensity=True, seed=3)


@pytest.fixture(scope="module")
def corrections(world) -> Nuisances:
    return nuisances(world.log)


@pytest.fixture(scope="module")
def policy(world) -> ponn.Policy:
    return ponn.learn(world.log.take(np.arange(2_000)), "ponn-b", seed=0, **QUICK)


# Golden numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["ips", "snips"])
def test_the_logging_policy_is_worth_its_mean_reward_exactly(world, corrections, estimator):
    found = evaluate(world.propensities, world.log, estimator, corrections=corrections)
    assert found.value == pytest.approx(world.log.R.mean(), abs=1e-12)


def test_dr_values_the_logging_policy_within_two_standard_errors_of_its_mean(world, corrections):
    found = evaluate(world.propensities, world.log, "dr", corrections=corrections)
    assert abs(found.value - world.log.R.mean()) < 2 * found.standard_error


def test_kidney_stones_values_of_both_treatments():
    log = ponn.simulate.world("kidney-stones", known_propensity=True).log
    fitted = Nuisances(log.p0, None, "known", ())
    values = [value_on(FixedAction(one), log, fitted, "ips", 0.95).value for one in log.actions]
    assert values == pytest.approx([634983 / 762700, 6231 / 8000], abs=1e-12)


def test_the_estimate_covers_the_truth_of_a_learned_policy(world, policy):
    unseen = world.rows(np.arange(2_000, 4_000))
    found = evaluate(policy, unseen.log)
    h = policy.predict_proba(unseen.log)
    truth = unseen.value(np.eye(3)[h.argmax(axis=1)])
    assert abs(found.value - truth) < 4 * found.standard_error
    drawn = evaluate(Sampled(policy), unseen.log)
    assert abs(drawn.value - unseen.value(h)) < 4 * drawn.standard_error
    assert drawn.ess > found.ess


# Policies of all kinds -----------------------------------------------------------------------------------


def test_a_function_an_array_and_a_fixed_action_agree(world, corrections):
    a = 1
    h = np.zeros((len(world.log), 3))
    h[:, a] = 1.0
    ways = (FixedAction(world.log.actions[a]), h, lambda rows: np.tile(np.eye(3)[a], (rows.num_rows, 1)))
    found = {evaluate(one, world.log, corrections=corrections).value for one in ways}
    assert len(found) == 1


def test_columns_follow_labels_not_positions(world, policy):
    reversed_ = replace(world.log, actions=world.log.actions[::-1], A=2 - world.log.A)
    assert np.array_equal(probabilities_on(policy, reversed_), probabilities_on(policy, world.log)[:, ::-1])


def test_an_action_that_the_log_lacks_is_told(world):
    with pytest.raises(ponn.PonnError, match="takes action 'surgery' in 100"):
        evaluate(FixedAction("surgery"), world.log)


@pytest.mark.parametrize(
    ("h", "message"),
    [
        (np.ones((5, 3)) / 3, "shape"),
        (np.full((4_000, 3), 0.5), "not probabilities"),
        (np.tile([1.5, -0.5, 0.0], (4_000, 1)), "not probabilities"),
    ],
)
def test_what_are_no_probabilities_is_refused(world, corrections, h, message):
    with pytest.raises(ponn.PonnError, match=message):
        evaluate(h, world.log, corrections=corrections)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 95}, "level is 95"),
        ({"interval": "exact"}, "no interval 'exact'"),
        ({"interval": "bernstein"}, "belongs to ips"),
        ({"estimator": "drr"}, "no estimator 'drr'"),
    ],
)
def test_options_that_do_not_exist_are_told(world, corrections, options, message):
    with pytest.raises(ponn.PonnError, match=message):
        evaluate(
            CurrentPractice() if "level" in options else world.propensities,
            world.log,
            corrections=corrections,
            **options,
        )


# Corrections ----------------------------------------------------------------------------------------------


def test_a_rows_own_reward_does_not_move_its_prediction(world):
    log = world.log.take(np.arange(600))
    before = nuisances(log).Q
    changed = log.R.copy()
    changed[7] = 1 - changed[7]
    after = nuisances(replace(log, R=changed)).Q
    assert np.array_equal(before[7], after[7])
    assert not np.array_equal(before, after)


def test_estimated_propensities_come_from_other_rows(world):
    log = replace(world.log.take(np.arange(500)), p0=None)
    encoding = ponn.Encoding.fit(log)
    found = nuisances(log, seed=4).p
    assert np.array_equal(found, propensities(log, encoding, folds=5, seed=4).p)
    assert not np.allclose(found, propensities(log, encoding).p)


def test_boosting_predicts_rewards_in_range(world):
    Q = nuisances(world.log, ponn.Settings(reward_model="boosting")).Q
    assert Q.shape == (4_000, 3)
    assert Q.min() >= 0
    assert Q.max() <= 1
    assert np.corrcoef(Q.ravel(), world.expected.ravel())[0, 1] > 0.5


# Intervals ------------------------------------------------------------------------------------------------


def test_the_interval_of_dm_is_as_wide_as_that_of_dr(world, corrections):
    policy = FixedAction(world.log.actions[0])
    dm, dr = (value_on(policy, world.log, corrections, name, 0.95) for name in ("dm", "dr"))
    assert dm.high - dm.low == pytest.approx(dr.high - dr.low)
    assert dm.value != dr.value
    with pytest.raises(ponn.PonnError, match="leave out the error that matters to dm"):
        evaluate(policy, world.log, "dm", interval="bootstrap", corrections=corrections)


def test_too_few_groups_or_actions_are_told_before_anything_is_fitted(world):
    log = replace(world.log.take(np.arange(200)), p0=None)
    pair = replace(log, table=log.table.append_column("ward", pa.array([j % 2 for j in range(200)])))
    pair = replace(pair, columns=replace(pair.columns, group="ward"))
    with pytest.raises(ponn.PonnError, match="their groups, which stay together, do not make 5 parts"):
        nuisances(pair)
    with pytest.raises(ponn.PonnError, match="hardly more than one action was taken"):
        nuisances(log.take(np.append(np.flatnonzero(log.A == 0), np.flatnonzero(log.A == 1)[:1])))


@pytest.mark.parametrize("kind", ["normal", "bootstrap", "bernstein", "sequence"])
def test_intervals_hold_the_value_and_widen_with_the_level(world, kind):
    log = world.log.take(np.arange(800))
    fitted = Nuisances(log.p0, None, "known", ())
    h = world.propensities[:800]
    widths = []
    for level in (0.8, 0.95):
        found = evaluate(h, log, "ips", level, interval=kind, corrections=fitted)
        assert found.low <= found.value <= found.high
        assert found.interval == ("percentile" if kind == "bootstrap" else kind)
        widths.append(found.high - found.low)
    assert widths[0] < widths[1]


def test_a_sequence_refuses_what_it_does_not_know_and_says_what_it_takes_as_true(world):
    log = world.log.take(np.arange(800))
    h, fitted = world.propensities[:800], Nuisances(log.p0, None, "logistic", ())
    with pytest.raises(ponn.PonnError, match="neither row weights nor groups"):
        evaluate(h, replace(log, weight=np.ones(800)), "ips", interval="sequence", corrections=fitted)
    found = evaluate(h, log, "ips", interval="sequence", corrections=fitted)
    assert found.trusted
    assert "takes the estimated propensities as true" in found.warnings[0]


def test_the_bootstrap_refits_estimated_propensities(world, monkeypatch):
    log = replace(world.log.take(np.arange(400)), p0=None)
    fitted = nuisances(log)
    calls = []
    import ponn.evaluation.valuation as module

    original = module.propensities
    monkeypatch.setattr(module, "BOOTSTRAPS", 5)
    monkeypatch.setattr(module, "propensities", lambda *one, **more: calls.append(1) or original(*one, **more))
    evaluate(FixedAction(log.actions[0]), log, interval="bootstrap", corrections=fitted, allow_low_overlap=True)
    assert len(calls) == 5


@pytest.mark.parametrize("grouped", [False, True])
def test_a_refit_is_cross_fitted_and_keeps_copies_of_a_row_in_one_fold(world, monkeypatch, grouped):
    import ponn.evaluation.valuation as module

    log = replace(world.log.take(np.arange(200)), p0=None)
    unit = np.arange(200) // 4 if grouped else np.arange(200)
    if grouped:
        log = replace(
            log, table=log.table.append_column("who", pa.array(unit)), columns=replace(log.columns, group="who")
        )
    rows = np.repeat(np.arange(100), 2)
    seen = {}
    monkeypatch.setattr(
        module, "propensities", lambda part, *one, **more: seen.update(part=part, **more) or propensities(part, *one)
    )
    refitted_propensities(log, Nuisances(np.ones(200), None, "logistic", (), folds=4), rows, seed=3)
    assert (seen["folds"], seen["seed"]) == (4, 3)
    fold = fold_numbers(seen["part"], 4, 3)
    for one in np.unique(unit[rows]):
        assert len(np.unique(fold[unit[rows] == one])) == 1
    assert len(np.unique(fold)) == 4


def test_doubling_every_row_within_its_group_changes_nothing(world):
    log = world.log.take(np.arange(1_000))
    twice = np.repeat(np.arange(1_000), 2)
    doubled = log.take(twice)
    doubled = replace(
        doubled,
        table=doubled.table.append_column("who", pa.array(twice)),
        columns=replace(doubled.columns, group="who"),
    )
    p, h = log.p0, world.propensities[:1_000]
    one = value_on(h, log, Nuisances(p, None, "known", ()), "ips", 0.95)
    two = value_on(h[twice], doubled, Nuisances(p[twice], None, "known", ()), "ips", 0.95)
    assert two.value == pytest.approx(one.value, abs=1e-12)
    assert two.standard_error == pytest.approx(one.standard_error, rel=1e-9)


def test_costs_are_shown_as_costs(world, corrections):
    log = replace(world.log, reward_range=(100.0, 300.0), minimize=True)
    plain = evaluate(world.propensities, world.log, "ips", corrections=corrections)
    cost = evaluate(world.propensities, log, "ips", corrections=corrections)
    assert cost.value == pytest.approx(300 - 200 * plain.value)
    assert cost.low == pytest.approx(300 - 200 * plain.high)


# Refusals -------------------------------------------------------------------------------------------------


def test_the_rows_a_policy_learned_from_are_refused(world, policy):
    learned_from = world.log.take(np.arange(2_000))
    with pytest.raises(LowOverlap, match="the very rows that the policy learned from") as caught:
        evaluate(policy, learned_from)
    assert "Bring more rows, which the policy never saw" in str(caught.value)
    marked = evaluate(policy, learned_from, allow_low_overlap=True)
    assert not marked.trusted
    assert caught.value.estimate == marked


def test_too_few_effective_rows_are_refused():
    hard = synthetic(rows=400, features=5, actions=4, relevant=2, bias=3.0, known_propensity=True, seed=0)
    h = np.eye(4)[hard.propensities.argmin(axis=1)]  # what was hardly ever done
    with pytest.raises(LowOverlap, match="rows count as"):
        evaluate(h, hard.log)


def test_what_weights_alone_cannot_tell_may_be_told_beside_a_reward_model():
    """A log in which 26 rows count: refused for ips, told by dr, whose interval holds the truth."""
    hard = synthetic(rows=400, features=5, actions=4, relevant=2, bias=2.0, known_propensity=True, seed=4)
    h = np.eye(4)[hard.expected.argmax(axis=1)]
    fitted = nuisances(hard.log)
    for estimator in ("ips", "snips", "truncated-ips"):
        with pytest.raises(LowOverlap, match="rows count as"):
            evaluate(h, hard.log, estimator, corrections=fitted)
    for estimator in ("dr", "sndr", "switch-dr", "dros", "dm"):
        found = evaluate(h, hard.log, estimator, corrections=fitted)
        assert 10 < found.ess < 30
        assert found.low < hard.value(h) < found.high
    assert compare_policies({"it": h}, hard.log, "ips", corrections=fitted).verdicts["it"].rows_needed is None


def test_an_action_hardly_in_the_log_is_told(world):
    rare = np.flatnonzero((world.log.A != 2) | (np.cumsum(world.log.A == 2) <= 3))
    log = world.log.take(rare)
    found = evaluate(FixedAction(log.actions[2]), log, allow_low_overlap=True)
    assert any("in 100.0% of the rows, the log only in 3 of them" in one for one in found.warnings)


# Against current practice ------------------------------------------------------------------------------------


def test_verdicts_on_policies_of_known_worth(world, corrections):
    best, worst = np.eye(3)[world.best], np.eye(3)[world.expected.argmin(axis=1)]
    found = compare_policies({"best": best, "worst": worst}, world.log, corrections=corrections)
    assert found.verdicts["best"].kind == "better"
    assert found.verdicts["worst"].kind == "not better"
    assert found.verdicts["best"].level == pytest.approx(0.95)
    gain = found.verdicts["best"].difference
    assert gain.level == pytest.approx(0.9)  # each end is a one-sided bound at 95 %
    assert gain.value == pytest.approx(found.values["best"].value - world.log.R.mean(), abs=1e-12)
    assert abs(gain.value - (world.value(best) - world.value(world.propensities))) < 4 * gain.standard_error


def test_current_practice_is_its_mean_reward(world, corrections):
    found = value_on(CurrentPractice(), world.log, corrections, "dr", 0.95)
    assert found.value == pytest.approx(world.log.R.mean())
    assert found.estimator == "mean"


def test_differences_between_policies_are_paired(world, corrections):
    """Two policies that agree in most rows: the difference is known far better than either value."""
    best = np.eye(3)[world.best]
    near = best.copy()
    near[:400] = np.eye(3)[0]
    found = compare_policies(
        {"near": near, "practice": CurrentPractice(), "best": best}, world.log, corrections=corrections
    )
    (pair,) = found.differences
    gain = found.differences[pair]
    assert pair == ("near", "best")
    assert gain.value == pytest.approx(found.values["near"].value - found.values["best"].value, abs=1e-12)
    assert gain.standard_error < 0.5 * found.values["best"].standard_error
    truth = world.value(near) - world.value(best)
    assert abs(gain.value - truth) < 4 * gain.standard_error
    assert gain.difference
    assert gain.level == 0.95


@pytest.mark.parametrize(("interval", "estimator"), [("bootstrap", "dr"), ("bernstein", "ips"), ("sequence", "ips")])
def test_a_comparison_has_every_interval(world, monkeypatch, interval, estimator):
    import ponn.evaluation.valuation as module

    monkeypatch.setattr(module, "BOOTSTRAPS", 60)
    log = world.log.take(np.arange(1_500))
    fitted = Nuisances(log.p0, np.full((1_500, 3), 0.5), "known", ())
    sides = {"best": np.eye(3)[world.best[:1_500]], "worst": np.eye(3)[world.expected[:1_500].argmin(axis=1)]}
    found = compare_policies(sides, log, estimator, interval=interval, corrections=fitted)
    gain = found.differences["best", "worst"]
    kind = "percentile" if interval == "bootstrap" else interval
    assert {one.interval for one in (*found.values.values(), gain, found.verdicts["best"].difference)} == {kind}
    assert gain.low <= gain.value <= gain.high
    truth = sum(sign * world.rows(np.arange(1_500)).value(h) for sign, h in zip((1, -1), sides.values(), strict=True))
    assert abs(gain.value - truth) < 4 * gain.standard_error
    assert found.verdicts["worst"].kind != "better"
    single = evaluate(sides["best"], log, estimator, interval=interval, corrections=fitted)
    assert (single.low, single.high) == (found.values["best"].low, found.values["best"].high)


def test_bounds_for_every_n_of_a_difference_are_those_of_both_values(world):
    log = world.log.take(np.arange(500))
    fitted = Nuisances(log.p0, None, "known", ())
    sides = {"one": world.propensities[:500], "other": np.eye(3)[world.best[:500]]}
    gain = compare_policies(sides, log, "ips", 0.9, interval="bernstein", corrections=fitted).differences[
        "one", "other"
    ]
    one, other = (value_on(h, log, fitted, "ips", 0.95, "bernstein") for h in sides.values())
    assert (gain.low, gain.high) == pytest.approx((one.low - other.high, one.high - other.low))


def test_most_of_the_rows_it_learned_from_are_told_as_well(world, policy):
    whole = {**policy.provenance["source"], "whole": world.log.digest, "holdout": 0.3, "seed": 0}
    known = replace(policy, provenance={**policy.provenance, "source": whole})
    found = compare_policies(
        {"it": known}, world.log, corrections=Nuisances(world.log.p0, None, "known", ()), estimator="ips"
    )
    assert "learned from most of these rows" in found.values["it"].warnings[0]
    assert evaluate(known, world.log, "ips", allow_low_overlap=True).n < len(world.log)


def test_fits_that_stop_early_are_counted_not_warned_about(world, monkeypatch):
    import ponn.steps.reward as module

    monkeypatch.setattr(module, "MOST_STEPS", 1)
    notes = nuisances(world.log.take(np.arange(500))).notes
    assert notes == ("The reward model stopped before it converged in 15 of 15 fits.",)


def later_log(policy, path, **changes):
    """A log in a file, read as the policy's was."""
    rng = np.random.default_rng(5)
    columns = {"x": rng.normal(size=300), "a": rng.integers(1, 3, 300), "r": rng.uniform(0, 10, 300), **changes}
    write_table(pa.table(columns), path)
    return read_same_log(policy, path)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A policy of a log whose actions are '1', '2' and 'x', and whose rewards lie in about 0 to 10."""
    rng = np.random.default_rng(4)
    labels = pa.array(["1", "2", "x"]).take(pa.array(rng.integers(0, 3, 300)))
    path = tmp_path_factory.mktemp("logs") / "first.csv"
    write_table(pa.table({"x": rng.normal(size=300), "a": labels, "r": rng.uniform(0, 10, 300)}), path)
    return ponn.learn(ponn.read_log(path, action="a", reward="r"), "lr-l1", seed=0)


def test_labels_that_a_later_file_turns_into_numbers_are_the_policys(numbered, tmp_path):
    later = later_log(numbered, tmp_path / "later.csv")
    assert later.actions == ("1", "2")
    assert probabilities_on(FixedAction("2"), later)[:, 1].all()


def test_rewards_beyond_the_range_seen_in_training_widen_it_and_are_told(numbered, tmp_path):
    r = np.random.default_rng(6).uniform(0, 10, 300)
    r[7] = 42.0
    later = later_log(numbered, tmp_path / "later.csv", r=r)
    assert later.reward_range[1] == 42.0
    assert later.outcome.max() == pytest.approx(42.0)
    assert any("goes beyond the" in note and "to 42 is its range here" in note for note in later.notes)
    assert evaluate(CurrentPractice(), later).value == pytest.approx(r.mean())


def test_rewards_beyond_a_declared_range_are_refused(tmp_path):
    columns = {"x": np.arange(60.0), "a": np.arange(60) % 2, "r": np.arange(60) % 10}
    log = ponn.read_log(pa.table(columns), action="a", reward="r", reward_range=(0, 10))
    policy = ponn.learn(log, "lr-l1", seed=0)
    with pytest.raises(ponn.PonnError, match=r"outside the declared range 0 to 10 in .* e.g. 42"):
        later_log(policy, tmp_path / "later.csv", r=np.full(300, 42.0))


def test_a_single_group_says_nothing_about_groups_and_is_not_trusted(world):
    columns = world.log.table.append_column("ward", pa.array(["north"] * len(world.log)))
    features = world.log.features
    log = ponn.read_log(
        columns, action="action", reward="reward", propensity="propensity", group="ward", features=features
    )
    h = np.full((len(log), 3), 1 / 3)
    corrected = Nuisances(log.p0, np.full((len(log), 3), 0.5), "known", ())
    found = evaluate(h, log, corrections=corrected, allow_low_overlap=True)
    assert not found.trusted
    assert any("belong to one group" in one for one in found.warnings)
    with pytest.raises(ponn.PonnError, match="their groups, which stay together, do not make 5 parts"):
        nuisances(replace(log, p0=None))


def test_propensities_far_too_small_are_not_believed(world, corrections):
    wrong = replace(corrections, p=np.full(len(world.log), 0.05))
    for estimator in ("ips", "dr"):
        found = evaluate(world.propensities, world.log, estimator, corrections=wrong, allow_low_overlap=True)
        assert not found.trusted
        assert any("the propensities are too small" in one for one in found.warnings)
