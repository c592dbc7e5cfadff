"""Eligible actions: what rules and columns say, and that nothing learned, valued or recommended leaves them."""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ponn
from ponn.evaluation.estimators import terms, valuation
from ponn.evaluation.valuation import (
    FixedAction,
    Nuisances,
    Sampled,
    SupportedOnly,
    evaluate,
    probabilities_on,
    read_same_log,
    value_on,
)
from ponn.learning.holdout import learn_with_holdout
from ponn.log.eligibility import Eligibility, given_actions
from ponn.log.encoding import Encoding
from ponn.log.rules import parse_rule
from ponn.methods import METHODS
from ponn.policy.batches import write_recommendations
from ponn.policy.inference import actions_at
from ponn.policy.policy import RECOMMENDED
from ponn.policy.trees import Forests, TreeModel
from ponn.settings import Settings
from ponn.steps.propensity import overlap, propensities
from ponn.tables.files import write_table
from ponn.training.loop import Candidate, Problem, Rows, train
from ponn.training.objective import CRITERIA, Majorant, outcomes, ratio, read, row_losses, score_slopes
from quick import quick

LABELS = np.array(["AC", "CAF", "CT"])
RULES = ("CAF if age >= 70", "CT if lvef < 50 and prior == 'yes'", "CT if lvef missing")
QUICK = {"hidden": (8,), "epochs": 15, "patience": 5, "trees": 5}


def cases(n: int, seed: int = 0) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """A table logged by a softmax over eligible actions; which were eligible by RULES, and their probabilities."""
    rng = np.random.default_rng(seed)
    age, prior = rng.integers(20, 90, n), rng.choice(["yes", "no"], n)
    lvef = np.where(rng.random(n) < 0.05, np.nan, rng.normal(55, 8, n).round())
    can = np.ones((n, 3), bool)
    can[:, 1] = age < 70
    can[:, 2] = ~((lvef < 50) & (prior == "yes")) & ~np.isnan(lvef)
    P = np.exp(np.column_stack([0.02 * (age - 50), np.full(n, 0.3), np.zeros(n)])) * can
    P /= P.sum(axis=1, keepdims=True)
    A = actions_at(P, rng.random(n))
    R = (rng.random(n) < 0.3 + 0.3 * (A == 1) + 0.2 * (A == 2) * (prior == "no")).astype(float)
    columns = {"age": age, "prior": prior, "lvef": pa.array(lvef, from_pandas=True), "drug": LABELS[A], "well": R}
    return pa.table(columns), can, P


def cells(can: np.ndarray) -> list[str]:
    """Eligible actions as text."""
    return ["|".join(LABELS[row]) for row in can]


def log_of(table: pa.Table, **how) -> ponn.Log:
    return ponn.read_log(table, action="drug", reward="well", **how)


@pytest.fixture(scope="module")
def small():
    table, can, _ = cases(400)
    return log_of(table, rules=RULES), can


@pytest.fixture(scope="module")
def policy(small) -> ponn.Policy:
    return ponn.learn(small[0], "ponn-b", **quick("ponn-b", **QUICK))


# Rules ------------------------------------------------------------------------------------------------------

ROWS = pa.table(
    {
        "age": pa.array([70, 69, None, 5], pa.int64()),
        "lvef": pa.array([0.1, np.nan, np.inf, 50.0], pa.float64()),
        "prior": pa.array(["yes", "it's", None, "no"]),
        "tumor size (mm)": [1.0, 2.0, 3.0, 4.0],
        "smoker": pa.array([True, False, None, True]),
        "grade": pa.array([3, 1, None, 2]).dictionary_encode(),
        "code": ["007", "7", "8", None],
    }
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("age >= 70", [0]),
        ("age>=70", [0]),
        ("age < 7e1 and age > -.5", [1, 3]),
        ("age != 70", [1, 3]),  # a missing cell meets no comparison
        ("age in (70, 5.0)", [0, 3]),
        ("age missing", [2]),
        ("lvef is missing", [1, 2]),  # infinite counts as missing everywhere
        ("lvef == 0.1", [0]),
        ("prior == 'it''s'", [1]),
        ('prior == "it\'s"', [1]),
        ("prior != 'yes'", [1, 3]),
        ("prior in ('yes', 'no') AND age > 6", [0]),
        ("`tumor size (mm)` <= 2", [0, 1]),
        ("smoker == true", [0, 3]),
        ("smoker != true", [1]),
        ("grade >= 2", [0, 3]),
        ("code == '007'", [0]),
        ("code == 7", [0, 1]),  # text that reads as numbers, as files of text have it
    ],
)
def test_a_rule_holds_where_it_says(condition, rows):
    rule = parse_rule(f"AC if {condition}")
    assert rule.action == "AC"
    assert np.flatnonzero(rule.holds(ROWS)).tolist() == rows


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("open surgery if age > 1", "open surgery"),
        ("'do if asked' if age > 1", "do if asked"),
        ("5-FU + X if a>1", "5-FU + X"),
    ],
)
def test_actions_of_any_spelling(text, action):
    assert parse_rule(text).action == action


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CAF", "names no action before an 'if'"),
        (" if age > 3", "names no action"),
        ("CAF if", "names no action"),
        ("CAF if ", "at its end: expected the name of a column"),
        ("CAF if age", "at its end: expected one of <= >="),
        ("CAF if age = 70", r"at character 12, '= 70'"),
        ("CAF if age >= seventy", r"at character 15, 'seventy'.*expected a number"),
        ("CAF if age >= 70years", r"at character 15, '70years'"),
        ("CAF if age >= 1e999", "expected a number"),
        ("CAF if age > 'old'", r"at character 12.*only numbers are larger"),
        ("CAF if smoker < true", "only numbers are larger"),
        ("CAF if age > 3 or prior == 'yes'", r"at character 16.*second rule"),
        ("CAF if age > 3 prior == 'yes'", "expected 'and' or the end"),
        ("CAF if prior in 'yes'", r"expected '\('"),
        ("CAF if prior in ('yes', 3)", "cannot be mixed"),
        ("CAF if prior in ('yes'", r"at its end: expected '\)'"),
        ("CAF if prior == 'yes", r"at character 17, \"'yes\""),
        ("CAF if prior is gone", "expected 'missing'"),
        ("CAF if __import__('os').system('x')", r"at character 18, \"\('os"),
        ("CAF if age > 3; import os", r"at character 15, '; import os'"),
        ("CAF if " + "age > 3 and " * 1_000, "at most 10,000 characters"),
        (7, "expected a text"),
    ],
)
def test_what_is_no_rule_is_told_with_its_place(text, message):
    with pytest.raises(ponn.PonnError, match=message):
        parse_rule(text)


WORDS = "CAF|if|and|age|prior|`tumor size (mm)`|>=|<|==|in|(|)|,|'yes'|70|-1.5e3|missing|is|true|or|é|٣|1_0|."
PIECES = st.sampled_from([*(f" {word} " for word in WORDS.split("|")), "'", '"', "`", "\n", "\x00", "AC if age"])


@given(st.one_of(st.lists(PIECES, max_size=14).map("".join), st.text(max_size=40).map("AC if age {}".format)))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_rule_or_a_clear_error(text):
    with suppress(ponn.PonnError):
        rule = parse_rule(text)
        if all(one.column in ROWS.column_names for one in rule.conditions):
            assert rule.holds(ROWS).shape == (4,)


numbers = st.floats(-100, 100)


@given(
    cell=st.one_of(st.none(), numbers),
    parts=st.lists(st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), numbers), min_size=1, max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_comparisons_are_pythons(cell, parts):
    text = " and ".join(f"x {sign} {value!r}" for sign, value in parts)
    held = cell is not None and all(eval(f"{cell!r} {sign} {value!r}") for sign, value in parts)
    assert parse_rule(f"a if {text}").holds(pa.table({"x": pa.array([cell], pa.float64())})).tolist() == [held]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("CAF if agee > 3", "no column 'agee' .given as column of a rule.. Did you mean 'age'"),
        ("CAG if age > 3", "'CAG'; the actions are 'AC', 'CAF', 'CT'"),
        ("CAF if well == 1", "the reward column"),
        ("CAF if drug == 'AC'", "the action column"),
        ("CAF if prior > 3", "compares column 'prior' with a number, but the column is of type string"),
        ("CAF if age == '70'", "compares column 'age' with a text, but the column is of type int64"),
        ("CAF if age == true", "with true or false"),
        ("CAF if seen > 3", "dates cannot be compared"),
    ],
)
def test_a_rule_that_does_not_fit_the_log_is_refused(rule, message):
    table = cases(50)[0].append_column("seen", pa.array([0] * 50, pa.date32()))
    with pytest.raises(ponn.PonnError, match=message):
        log_of(table, rules=[rule])


# Columns ----------------------------------------------------------------------------------------------------


def tiny(column: pa.Array, labels=("u", "v", "w")) -> ponn.Log:
    table = {"x": [1.0, 2.0, 3.0], "a": labels, "r": [0.0, 1.0, 0.0], "can": column}
    return ponn.read_log(pa.table(table), action="a", reward="r", eligible="can")


EXPECTED = [[True, True, True], [False, True, False], [True, False, True]]


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (["u|v|w", "v", " w | u "], ("u", "v", "w")),
        ([None, "v|", "w|u|w"], ("u", "v", "w")),
        (["  ", "v", "u|w"], ("u", "v", "w")),
        ([["u", "v", "w"], ["v"], ["w", "u", "u"]], ("u", "v", "w")),
        ([None, ["v"], ["w", "u"]], ("u", "v", "w")),
        (pa.array([None, [2], [3, 1]], pa.large_list(pa.int8())), (1, 2, 3)),
        (pa.array([None, [2.0], [3.0, 1.0]]), (1, 2, 3)),
        (["", "2", "3|1"], (1, 2, 3)),
        (pa.array(["u|v|w", "v", "u|w"]).dictionary_encode(), ("u", "v", "w")),
        (pa.chunked_array([[["u", "v", "w"]], [["v"], ["w", "u"]]]), ("u", "v", "w")),
    ],
    ids=range(10),
)
def test_a_column_names_the_eligible_actions(column, labels):
    log = tiny(pa.array(column) if isinstance(column, list) else column, labels)
    assert log.eligible.tolist() == EXPECTED
    empty = column[0] is None or str(column[0]).strip() in ("", "None")
    assert any("is empty in 1 of 3 rows" in note for note in log.notes) == empty


def test_a_column_of_numbers_and_of_truth_values_names_one_action_each():
    log = tiny(pa.array([1.0, np.nan, 3.0]), (1, 2, 3))
    assert log.eligible.tolist() == [[True, False, False], [True, True, True], [False, False, True]]
    table = pa.table({"x": [1.0, 2.0], "a": [True, False], "r": [0.0, 1.0], "can": ["True|False", "false"]})
    assert ponn.read_log(table, action="a", reward="r", eligible="can").eligible.tolist() == [
        [True, True],
        [True, False],
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["u", "v|z", "w"], r"names 'z' in 1 row \(2\)"),
        ([["u"], ["v", "z"], ["w"]], r"names 'z' in 1 row \(2\)"),
        ([["u"], ["v", None], ["w"]], r"names '' in 1 row \(2\)"),
        ([["u"], [], ["w"]], r"No action is eligible in 1 row \(2\)"),
        (["u", " | ", "w"], r"No action is eligible in 1 row \(2\)"),
        (["u", "u", "w"], r"not eligible in 1 row \(2\) of 3: 'v' was taken"),
        ([1.5, 2.0, 3.0], "expected texts such as"),
        ([{"u": 1}] * 3, "expected texts such as"),
        ([[["u"]]] * 3, "expected texts such as"),
        (pa.array([0] * 3, pa.date32()), "expected texts such as"),
        (pa.array([b"u"] * 3), "expected texts such as"),
    ],
    ids=range(11),
)
def test_cells_that_make_no_sense_are_refused(column, message):
    with pytest.raises(ponn.LogError, match=message):
        tiny(pa.array(column) if isinstance(column, list) else column)


def test_a_label_with_the_separator_needs_lists():
    labels = ("u|v", "v", "w")
    with pytest.raises(ponn.LogError, match="Write the column as lists"):
        tiny(pa.array(["v", "v", "w"]), labels)
    assert tiny(pa.array([["u|v"], ["v"], ["w"]]), labels).eligible.tolist() == np.eye(3, dtype=bool).tolist()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"eligible": "agee"}, "no column 'agee'"),
        ({"eligible": "drug"}, "named as action and as eligible"),
        ({"eligible": 3}, "expected the name of a column"),
        ({"rules": "CAF if age > 3"}, "expected a list of texts"),
        ({"rules": [None]}, "expected a text"),
        ({"drop_ineligible": True}, "drop_ineligible needs to know"),
    ],
)
def test_keywords_that_make_no_sense_are_refused(how, message):
    with pytest.raises(ponn.PonnError, match=message):
        log_of(cases(50)[0], **how)


# The log ----------------------------------------------------------------------------------------------------


def test_rules_and_columns_agree_and_travel_with_the_rows(small):
    log, can = small
    table = cases(400)[0]
    by_column = log_of(table.append_column("can", pa.array(cells(can))), eligible="can")
    np.testing.assert_array_equal(log.eligible, can)
    np.testing.assert_array_equal(by_column.eligible, can)
    assert "can" not in by_column.features
    rows = np.array([5, 3, 8])
    np.testing.assert_array_equal(log.take(rows).eligible, can[rows])
    np.testing.assert_array_equal(np.concatenate([one.eligible for one in log.batches(150)]), can)
    rest = log.split_rows(0.7, 0)[1]
    np.testing.assert_array_equal(log.split(0.7, 0)[1].eligible, can[rest])
    assert log.digest == by_column.digest == log_of(table).digest
    assert log_of(table).eligible is None


def test_a_rule_may_look_at_a_column_that_is_no_feature(small):
    table = cases(400)[0].append_column("ward", pa.array(["A"] * 400))
    log = log_of(table, rules=["CAF if ward == 'B'"], ignore=["ward"])
    assert "ward" not in log.features
    assert log.eligible.all()
    made = ponn.learn(log, "logging")
    with pytest.raises(ponn.PonnError, match="lack the columns 'ward', which the policy's rules"):
        made.predict(table.drop_columns(["ward"]))
    closed = table.drop_columns(["ward"]).append_column("ward", pa.array(["B"] * 400))
    assert not (made.predict(closed) == "CAF").any()


def test_logged_actions_that_were_not_eligible_are_refused_or_left_out_and_counted():
    table, can, _ = cases(400)
    wrong = table["drug"].to_pylist()
    for row in (3, 7):
        wrong[row] = LABELS[np.argmin(can[row])] if not can[row].all() else wrong[row]
    barred = [row for row in (3, 7) if not can[row].all()]
    old = np.flatnonzero(~can[:, 1])[:3]
    for row in old:
        wrong[row] = "CAF"
    table = table.set_column(3, "drug", pa.array(wrong))
    bad = sorted({*barred, *old.tolist()})
    with pytest.raises(ponn.LogError, match=rf"not eligible in {len(bad)} rows \({bad[0] + 1}, .*drop_ineligible=True"):
        log_of(table, rules=RULES)
    log = log_of(table, rules=RULES, drop_ineligible=True)
    assert len(log) == 400 - len(bad)
    assert any(note.startswith(f"{len(bad)} of 400 rows whose logged action was not eligible") for note in log.notes)
    assert ponn.check(table, action="drug", reward="well", rules=RULES).ready is False
    assert ponn.check(table, action="drug", reward="well", rules=RULES, drop_ineligible=True).ready
    with pytest.raises(ponn.PonnError, match="nothing is left"):
        log_of(table, rules=[f"{label} if age > 0" for label in LABELS], drop_ineligible=True)


def test_an_action_taken_only_where_it_was_not_eligible_leaves_the_log():
    table = pa.table({"x": [1.0, 2, 3, 4], "a": ["u", "v", "w", "u"], "r": [0.0, 1, 0, 1]})
    log = ponn.read_log(table, action="a", reward="r", rules=["w if x > 2"], drop_ineligible=True)
    assert log.actions == ("u", "v")
    assert log.eligible.shape == (3, 2)


def test_check_says_how_often_each_action_is_eligible(small):
    can = small[1]
    lists = pa.array([LABELS[row].tolist() for row in can])
    found = ponn.check(cases(400)[0].append_column("can", lists), action="drug", reward="well", eligible="can")
    assert [(one.action, one.rows) for one in found.eligible] == list(zip(LABELS, can.sum(axis=0), strict=True))
    assert not any("almost never" in told and "age" in told and "'CAF'" in told for told in found.suspicious)
    assert ponn.check(cases(400)[0], action="drug", reward="well").eligible == ()


def test_missing_cells_that_a_rule_compares_are_counted():
    table = cases(400)[0]
    log = log_of(table, rules=["CT if lvef < 50 and prior == 'yes'"], drop_ineligible=True)
    missing = table["lvef"].null_count
    assert any(f"does not exclude rows that lack a value: 'lvef' ({missing})" in note for note in log.notes)


# Step A -----------------------------------------------------------------------------------------------------


def test_estimated_propensities_are_those_of_a_choice_among_eligible_actions():
    """Fixed seed. Without the columns of `with_eligibility` the mean error is 0.06, with them 0.013."""
    table, can, P = cases(3_000, seed=1)
    log = log_of(table, rules=RULES)
    found = propensities(log, Encoding.fit(log), folds=5)
    assert not found.P[~can].any()
    np.testing.assert_allclose(found.P.sum(axis=1), 1, rtol=0, atol=1e-12)
    assert np.abs(found.P - P).mean() < 0.025
    seen = overlap(log, Encoding.fit(log), found)
    assert seen.unsupported == 0
    assert np.abs(seen.mean_inverse - 1).max() < 0.1
    assert seen.quantiles[1, 0] > 0.1  # of CAF, where it is eligible
    companion = ponn.learn(log, "logging").predict_proba(log)
    assert np.abs(companion - P).mean() < 0.025


# Step C -----------------------------------------------------------------------------------------------------


def masked_rows(criterion: str, seed: int = 0):
    """Scores [k, n] and outcomes with barred actions, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    k, n = 4, 9
    S = 3 * torch.randn(k, n, generator=generator, dtype=torch.float64)
    barred = torch.rand(n, k, generator=generator) < 0.4
    A = torch.randint(0, k, (n,), generator=generator)
    barred[torch.arange(n), A] = False
    R, w = torch.rand(n, generator=generator).double(), 1 + 5 * torch.rand(n, generator=generator).double()
    return S, outcomes(criterion, A, R, w, 0.3, barred)


@pytest.mark.parametrize("criterion", [one for one in CRITERIA if one != "logistic"])
def test_slopes_of_the_masked_objective_are_its_numerical_differences(criterion):
    S, rows = masked_rows(criterion)
    bound, M, step = Majorant(0.7, 0.2), 4.0, 1e-6

    def objective(S: torch.Tensor) -> float:
        u = row_losses(criterion, read(criterion, S, rows), rows, M).u
        return float((bound.alpha * u + bound.beta * u * u).sum())

    found = score_slopes(criterion, S, rows, bound, M).slopes
    assert not found[rows.barred.T].any()
    for a, j in product(range(S.shape[0]), range(S.shape[1])):
        change = torch.zeros_like(S)
        change[a, j] = step
        slope = (objective(S + change) - objective(S - change)) / (2 * step)
        assert float(found[a, j]) == pytest.approx(slope, abs=1e-7)


def test_training_stopping_and_the_monitor_are_masked(small):
    """An untrained linear policy is uniform over eligible actions: its losses and its mean h/p are known exactly."""
    log, can = small
    X, w = np.zeros((400, 2)), np.linspace(1, 4, 400)
    first, rest = (
        Rows(X[part], log.A[part], log.R[part], w[part], 200, can[part]) for part in (slice(200), slice(200, 400))
    )
    chosen = Settings(hidden=(), epochs=1, watched=200)
    start = train(Problem(first, rest, 3), Candidate(np.ones((3, 2), bool), chosen)).history[0]
    loss = log.R * w * np.log(can.sum(axis=1))
    assert start.train_loss == pytest.approx(loss[:200].mean(), rel=1e-5)  # single precision
    assert start.valid_loss == pytest.approx(loss[200:].mean(), rel=1e-5)
    assert start.ratio.total == pytest.approx((w / can.sum(axis=1))[:200].mean(), rel=1e-5)


def test_a_barred_action_has_no_probability_and_the_others_are_a_smaller_problem():
    S, rows = masked_rows("cross-entropy")
    for j in range(S.shape[1]):
        free = ~rows.barred[j]
        alone = S[free, j].log_softmax(dim=0)
        place = int(free[: rows.A[j]].sum())
        assert float(read("cross-entropy", S, rows)[j]) == pytest.approx(float(alone[place]), abs=1e-12)


def test_the_monitor_equals_plain_loops_over_eligible_actions():
    S, rows = masked_rows("cross-entropy")
    k, n = S.shape
    h = [[0.0 if rows.barred[j, a] else float(S[a, j].exp()) for a in range(k)] for j in range(n)]
    h = [[share / sum(row) for share in row] for row in h]
    taken = [h[j][rows.A[j]] * float(rows.w[j]) for j in range(n)]
    found = ratio(S, rows)
    assert found.total == pytest.approx(sum(taken) / n, rel=1e-12)
    for a in range(k):
        expected = sum(taken[j] for j in range(n) if rows.A[j] == a) / sum(h[j][a] for j in range(n))
        assert found.by_action[a] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_no_method_ever_gives_an_action_that_is_not_eligible(method, small):
    log, can = small
    made = ponn.learn(log, method, **quick(method, **QUICK))
    new, open_to, _ = cases(300, seed=5)
    for rows, mask in ((log, can), (new, open_to)):
        h = made.predict_proba(rows)
        assert not h[~mask].any()
        np.testing.assert_allclose(h.sum(axis=1), 1, rtol=0, atol=1e-9)
        for how in ({}, {"sample": True}, {"supported_only": True}):
            found = made.recommend(rows, probabilities=True, **how)
            check_recommended(found, mask)
        assert mask[np.arange(len(mask)), number(made.sample(rows, 3))].all()
    one = np.zeros_like(open_to)
    one[np.arange(300), open_to.argmax(axis=1)] = True
    assert (made.predict(new, eligible=one) == LABELS[open_to.argmax(axis=1)]).all()


def number(labels) -> np.ndarray:
    return np.searchsorted(LABELS, labels)


def check_recommended(found: pa.Table, mask: np.ndarray) -> None:
    """Action, runner-up and probabilities stay within the mask; no runner-up where one action alone is eligible."""
    rows = np.arange(len(mask))
    assert mask[rows, number(found["action"].to_pylist())].all()
    second = found["runner_up"].to_pylist()
    assert [one is None for one in second] == (mask.sum(axis=1) == 1).tolist()
    assert all(one is None or mask[j, number(one)] for j, one in enumerate(second))
    assert not np.column_stack([found[f"p_{label}"] for label in LABELS])[~mask].any()


@pytest.mark.parametrize("method", ["ponn-b", "poem", "lr-l1", "logging", "ipw-forest", "offset-tree"])
def test_eligibility_that_excludes_nothing_changes_no_bit(method):
    table = cases(400)[0]
    plain, open_to_all = log_of(table), log_of(table, rules=["CAF if age > 1000"])
    assert plain.eligible is None
    assert open_to_all.eligible.all()
    first, second = (ponn.learn(log, method, **quick(method, **QUICK)) for log in (plain, open_to_all))
    assert first.digest == replace(second, eligibility=None).digest
    np.testing.assert_allclose(first.predict_proba(table), second.predict_proba(table), rtol=0, atol=1e-15)


# Models -----------------------------------------------------------------------------------------------------


def leaves(*values: float) -> Forests:
    """Forests of one leaf each."""
    n = len(values)
    ones = np.ones(n, np.int32)
    return Forests(np.full(n, -1, np.int32), np.zeros(0, np.float32), np.array(values)[:, None], ones, ones)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.lists(st.booleans(), min_size=5, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_tournament_is_played_among_eligible_actions(chances, mask):
    mask[2] = mask[2] or not any(mask)
    duels = iter(chances)

    def winner(low: int, high: int) -> int | None:
        """By recursion, in the order in which duels are stored; None where no action is eligible."""
        if high - low == 1:
            return low if mask[low] else None
        right_wins, middle = next(duels) > 0.5, (low + high) // 2
        left, right = winner(low, middle), winner(middle, high)
        return right if left is None or (right_wins and right is not None) else left

    model = TreeModel(leaves(*chances), 5, 1, "tournament")
    found = model.probabilities(np.zeros((1, 1), np.float32), np.array([mask]))
    assert found.argmax() == winner(0, 5)
    assert found.sum() == 1


def test_trees_choose_the_best_eligible_action_and_share_where_none_has_a_vote():
    X, mask = np.zeros((2, 1), np.float32), np.array([[True, False, True], [False, True, True]])
    best = TreeModel(leaves(0.2, 0.9, 0.4), 3, 1, "best")
    assert best.probabilities(X, mask).tolist() == [[0, 0, 1], [0, 1, 0]]
    column, nothing = np.array([-1], np.int32), np.zeros(0, np.float32)
    votes = Forests(column, nothing, np.array([[0.0, 1.0, 0.0]]), np.array([1], np.int32), np.array([1], np.int32))
    assert TreeModel(votes, 3, 1, "vote").probabilities(X, mask).tolist() == [[0.5, 0, 0.5], [0, 1, 0]]


def test_draws_never_take_an_action_without_a_share():
    h = np.array([[0.0, 0.3, 0.7 - 1e-9, 0.0]] * 3)
    assert actions_at(h, np.array([0.0, 0.3, 1 - 1e-12])).tolist() == [1, 2, 2]


# The policy and its file --------------------------------------------------------------------------------------


def test_a_policy_file_keeps_rules_and_column(tmp_path, small):
    table, can, _ = cases(400)
    with_column = table.append_column("can", pa.array(cells(can)))
    made = ponn.learn(log_of(with_column, eligible="can", rules=RULES[:1]), "lr-l1")
    made.save(tmp_path / "p.ponn")
    again = ponn.load(tmp_path / "p.ponn")
    assert again.eligibility == made.eligibility == Eligibility("can", RULES[:1])
    np.testing.assert_array_equal(again.predict_proba(with_column), made.predict_proba(with_column))
    assert not again.predict_proba(with_column)[~can].any()
    with pytest.raises(ponn.PonnError, match="lack the column 'can', which tells the policy"):
        again.predict(table)
    allowed = again.predict(table, eligible=["AC", "CAF"])  # the caller says what the column would; the rule holds
    assert set(allowed[can[:, 1]]) <= {"AC", "CAF"}
    assert set(allowed[~can[:, 1]]) == {"AC"}
    ponn.learn(log_of(table), "lr-l1").save(tmp_path / "q.ponn")
    assert ponn.load(tmp_path / "q.ponn").eligibility is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"rules": ["CAF if"]},
        {"rules": "CAF if age > 3"},
        {"rules": {}},
        {"column": 3},
        {"column": None, "other": 1},
        [1],
        "x",
    ],
    ids=range(7),
)
def test_a_damaged_eligibility_is_refused(wrong, policy, tmp_path, monkeypatch):
    from ponn.policy import policy as module

    honest = module.as_json
    monkeypatch.setattr(module, "as_json", lambda one: honest(one) | {"eligibility": wrong})
    policy.save(tmp_path / "p.ponn")
    with pytest.raises(ponn.PonnError):
        ponn.load(tmp_path / "p.ponn")


@pytest.mark.parametrize(
    ("eligible", "message"),
    [
        ("AC", "expected a list of actions"),
        (3, "expected a list of actions"),
        ([], "names no action"),
        (["AC", "XY"], "names 'XY'; the actions are 'AC'"),
        (np.ones((2, 3), bool), r"shape \(2, 3\); expected truth values of shape \(400, 3\)"),
        (np.ones((400, 3)), "array of float64"),
        (np.zeros((400, 3), bool), "No action is eligible in 400 rows"),
        (["CAF"], "No action is eligible in"),  # the rule excludes it in some rows
    ],
    ids=range(8),
)
def test_what_a_caller_cannot_say(eligible, message, policy, small):
    with pytest.raises(ponn.PonnError, match=message):
        policy.recommend(small[0].table, eligible=eligible)


def test_labels_given_by_a_caller_may_be_text_or_numbers():
    assert given_actions(["2", 1.0], (1, 2, 3), 2).tolist() == [[True, True, False]] * 2
    assert given_actions([False], (False, True), 1).tolist() == [[True, False]]


# Streaming ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "feather"])
def test_streamed_recommendations_respect_rules_and_column(ending, tmp_path):
    table, can, _ = cases(400)
    learned = log_of(table.append_column("can", pa.array(cells(can))), eligible="can", rules=RULES)
    made = ponn.learn(learned, "lr-l1")
    new, mask, _ = cases(300, seed=8)
    mask[:, 0] |= ~mask[:, 1:].any(axis=1)
    column = (
        pa.array([LABELS[row].tolist() for row in mask]) if ending in ("parquet", "jsonl") else pa.array(cells(mask))
    )
    rows = new.append_column("can", column)
    write_lists(rows, tmp_path / f"rows.{ending}")
    write_recommendations(made, tmp_path / f"rows.{ending}", tmp_path / "out.parquet", keep=["age"], probabilities=True)
    found = pq.read_table(tmp_path / "out.parquet")
    check_recommended(found, mask)
    assert found["action"].to_pylist() == made.recommend(rows)["action"].to_pylist()
    write_lists(new, tmp_path / f"other.{ending}")
    with pytest.raises(ponn.PonnError, match="lack the column 'can'"):
        write_recommendations(made, tmp_path / f"other.{ending}", tmp_path / "out.parquet")
    write_recommendations(made, tmp_path / f"other.{ending}", tmp_path / "out.parquet", eligible=["AC", "CT"])
    assert set(pq.read_table(tmp_path / "out.parquet")["action"].to_pylist()) <= {"AC", "CT"}


def test_texts_that_look_like_numbers_stay_texts_in_a_file(tmp_path):
    table = cases(400)[0].append_column("code", pa.array(["007", "8"] * 200))
    made = ponn.learn(log_of(table, rules=["CAF if code == '007'"], ignore=["code"], drop_ineligible=True), "lr-l1")
    write_table(table, tmp_path / "rows.csv")
    write_recommendations(made, tmp_path / "rows.csv", tmp_path / "out.parquet", columns=["action"])
    found = pq.read_table(tmp_path / "out.parquet")["action"].to_pylist()
    assert found == made.predict(table).tolist()
    assert "CAF" not in found[::2]


def write_lists(table: pa.Table, path) -> None:
    """Write a table, also one with lists in it."""
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()) + "\n")
    else:
        write_table(table, path)


def test_a_row_without_eligible_actions_is_named_by_its_number_in_the_file(tmp_path, policy):
    n = 40_000  # several batches
    table = pa.table({"age": [30] * n, "prior": ["no"] * n, "lvef": [55.0] * n})
    barred = (*policy.eligibility.rules, "AC if age == 71", "CT if age == 71")
    cautious = replace(policy, eligibility=Eligibility(None, barred))
    table = table.set_column(0, "age", pa.array([30] * (n - 2) + [71, 30]))
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(ponn.PonnError, match=r"rows.parquet: No action is eligible in 1 row \(39999\)"):
        write_recommendations(cautious, tmp_path / "rows.parquet", tmp_path / "out.parquet", columns=RECOMMENDED[:1])


# Evaluation ---------------------------------------------------------------------------------------------------

STATES = [0.3, 0.7]  # P(x)
CAN = np.array([[True, True, False], [True, False, True]])
PRACTICE = np.array([[0.2, 0.8, 0.0], [0.6, 0.0, 0.4]])
MEANS = np.array([[0.9, 0.4, 0.2], [0.1, 0.5, 0.8]])
WISHED = np.array([[0.1, 0.3, 0.6], [0.0, 1.0, 0.0]])  # the second row wishes for nothing that is eligible


def enumerated() -> ponn.Log:
    """Every (x, A, R) that can happen once, weighted by its probability, with its propensity."""
    rows = [
        {"x": float(x), "a": f"a{a}", "r": float(r), "p": PRACTICE[x, a], "weight": STATES[x] * PRACTICE[x, a] * chance}
        for x, a in product(range(2), range(3))
        for r, chance in ((1, MEANS[x, a]), (0, 1 - MEANS[x, a]))
        if CAN[x, a]
    ]
    rules = ["a2 if x < 0.5", "a1 if x > 0.5"]
    table = pa.Table.from_pylist(rows)
    return ponn.read_log(table, action="a", reward="r", propensity="p", weight="weight", features=["x"], rules=rules)


def masked_truth(wished: np.ndarray, log: ponn.Log) -> float:
    """The value of the wished policy among eligible actions, in plain loops; else the log's most common one."""
    counts = [int((log.A == a).sum()) for a in range(3)]
    value = 0.0
    for x in range(2):
        kept = [wished[x][a] if CAN[x, a] else 0.0 for a in range(3)]
        if sum(kept) == 0:
            usual = max((a for a in range(3) if CAN[x, a]), key=lambda a: counts[a])
            kept = [float(a == usual) for a in range(3)]
        value += STATES[x] * sum(kept[a] / sum(kept) * MEANS[x, a] for a in range(3))
    return value


@pytest.mark.parametrize("estimator", ["ips", "dr", "dm", "snips"])
@pytest.mark.parametrize("wish", [WISHED, np.eye(3)[[2, 2]], np.full((2, 3), 1 / 3)], ids=["mixed", "fixed", "uniform"])
def test_masked_values_are_exact_by_enumeration(estimator, wish):
    log = enumerated()
    x = log.table["x"].to_numpy().astype(int)
    guess = np.array([[0.5, 0.1, 0.9], [0.3, 0.3, 0.3]])[x]  # a wrong reward model: DR is unbiased all the same
    Q = MEANS[x] if estimator == "dm" else guess
    fitted = Nuisances(log.p0, Q, "known", ())
    policies = [wish[x], lambda rows: wish[rows["x"].to_numpy().astype(int)]]
    policies += [FixedAction("a2")] if wish[0, 2] == 1 else []
    for policy in policies:
        found = value_on(policy, log, fitted, estimator, 0.95)
        assert found.value == pytest.approx(masked_truth(wish, log), abs=1e-12)
        assert any("are not eligible" in one for one in found.warnings)


def test_the_share_of_choices_that_are_not_eligible_is_told(small, policy):
    log, can = small
    fitted = Nuisances(np.full(400, 0.4), None, "known", ())
    found = value_on(FixedAction("CAF"), log, fitted, "ips", 0.95)
    assert found.warnings[0].startswith(f"{1 - can[:, 1].mean():.1%} of its choices are not eligible")
    h = probabilities_on(FixedAction("CAF"), log)
    assert (h[can[:, 1], 1] == 1).all()
    usual = np.bincount(log.A)
    best = np.where(can, usual, -1).argmax(axis=1)
    assert (h[np.arange(400), np.where(can[:, 1], 1, best)] == 1).all()
    for one in (policy, Sampled(policy), SupportedOnly(policy)):
        h = probabilities_on(one, log)
        assert not h[~can].any()
        assert not any("not eligible" in told for told in value_on(one, log, fitted, "ips", 0.95).warnings)


def test_a_fixed_action_gives_way_to_the_most_common_eligible_one():
    table = {"x": [1.0, 1, 2, 2, 2, 3], "a": ["u", "v", "v", "v", "w", "w"], "r": [0.0, 1, 0, 1, 0, 1]}
    log = ponn.read_log(pa.table(table), action="a", reward="r", features=["x"], rules=["w if x < 2", "v if x > 2"])
    assert probabilities_on(FixedAction("w"), log).argmax(axis=1).tolist() == [1, 1, 2, 2, 2, 2]
    assert probabilities_on(FixedAction("v"), log).argmax(axis=1).tolist() == [1, 1, 1, 1, 1, 2]


def test_a_policy_without_rules_is_valued_among_the_logs_eligible_actions(small):
    log, can = small
    free = ponn.learn(log_of(log.table), "lr-l1")
    assert free.predict_proba(log.table)[~can].any()
    best = free.predict_proba(log.table, eligible=can)
    np.testing.assert_array_equal(probabilities_on(free, log), best)  # its own best eligible action, not the usual one
    assert not best[~can].any()


def test_a_log_without_one_of_the_actions_is_read_as_the_policy_was_learned(tmp_path, small, policy):
    log, _ = small
    new = log.table.filter(pa.array(log.A != 1))
    write_table(new, tmp_path / "new.csv")
    again = read_same_log(policy, tmp_path / "new.csv")
    assert again.actions == ("AC", "CT")
    np.testing.assert_array_equal(again.eligible, log.eligible[log.A != 1][:, [0, 2]])


def test_learning_with_a_holdout_values_policies_among_eligible_actions(tmp_path):
    log = log_of(cases(800, seed=2)[0], rules=RULES)
    found = learn_with_holdout(log, "lr-l1")
    assert found.value["policy"].n == 240
    rows = read_same_log(found.policy, log.table)
    assert rows.digest == log.digest
    np.testing.assert_array_equal(rows.eligible, log.eligible)
    value = evaluate(found.policy, log, allow_low_overlap=True)  # the rows kept aside
    assert value.n == 240
    h, kept = probabilities_on(found.policy, log), log.eligible
    assert not h[~kept].any()
    t = terms(h, log.A, log.R, np.full(800, 0.4))
    assert np.isfinite(valuation("ips", t).value)


# The command line -----------------------------------------------------------------------------------------------


def test_the_command_line_from_log_to_recommendations(here, tmp_path):
    table, can, _ = cases(400)
    table = table.append_column("can", pa.array(cells(can)))
    write_table(table, tmp_path / "log.csv")
    roles = ("log.csv", "--action", "drug", "--reward", "well", "--eligible", "can", "--never", RULES[0])
    told = here("check", *roles)
    assert f"in {can[:, 1].sum()} rows ({can[:, 1].mean():.1%})" in told.stdout
    learned = here("learn", *roles, "--method", "lr-l1", "--out", "p.ponn")
    assert learned.returncode == 0, learned.stderr
    assert "Never CAF if age >= 70" in learned.stdout
    assert "Available actions by column 'can'" in learned.stdout
    valued = here("evaluate", "p.ponn", "log.csv", "--allow-low-overlap", "--json")
    assert json.loads(valued.stdout)["n"] == 120
    made = here("recommend", "p.ponn", "log.csv", "--out", "out.parquet", "--probabilities", "--keep", "age")
    assert made.returncode == 0, made.stderr
    check_recommended(pq.read_table(tmp_path / "out.parquet"), can)
    write_table(table.drop_columns(["can"]), tmp_path / "rows.csv")
    assert "lack the column 'can'" in here("recommend", "p.ponn", "rows.csv").stderr
    some = here("recommend", "p.ponn", "rows.csv", "--available", "AC", "--columns", "action")
    assert set(some.stdout.split()[1:]) == {'"AC"'}
    wrong = here("check", *roles[:-1], "CAF if age >=")
    assert wrong.returncode == 1
    assert "cannot be read at its end" in wrong.stderr
