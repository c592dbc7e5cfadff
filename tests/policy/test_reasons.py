"""Reasons for a recommendation: effects, similar rows, intervals, words; and how often support mattered."""

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load as load_weights
from safetensors.numpy import save as save_weights
from threadpoolctl import threadpool_limits

import ponn
from ponn.learning.partition import fit_similar
from ponn.log.encoding import Encoding
from ponn.policy import batches as scoring
from ponn.policy.batches import write_recommendations
from ponn.policy.inference import BLOCK_ROWS
from ponn.policy.models import LinearRewards
from ponn.policy.policy import ON_REQUEST, RECOMMENDED, Policy
from ponn.policy.reasons import MOST_FEATURES, brief, usual_values
from ponn.policy.similar import wilson
from ponn.simulate.synthetic import synthetic
from ponn.tables import streams
from ponn.tables.files import write_table
from ponn.tables.table import read_table

ROWS = 1_500
QUICK = {"hidden": (16,), "epochs": 60, "patience": 10}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Days in hospital by treatment; every kind of feature, some cells missing."""
    rng = np.random.default_rng(7)
    age, dose = rng.integers(20, 90, ROWS), rng.normal(5, 2, ROWS).round(2)
    stage, smoker = rng.choice(["I", "II", "III"], ROWS, p=[0.2, 0.5, 0.3]), rng.random(ROWS) < 0.3
    noise = {f"noise{i}": rng.normal(size=ROWS) for i in range(4)}
    day = np.datetime64("2020-01-01") + rng.integers(0, 700, ROWS)
    drawn = rng.random(ROWS) < np.where(stage == "III", 0.7, 0.35)
    action = np.where(drawn, "surgery", np.where(rng.random(ROWS) < 0.5, "drug", "wait"))
    drug, surgery = 0.3 * (age > 55) + 0.2 * smoker, 0.35 * (stage == "III") + 0.15 * (age <= 55)
    gain = np.where(action == "drug", drug, np.where(action == "surgery", surgery, 0.2 * smoker))
    days = 30 - 20 * np.clip(0.2 + gain + rng.normal(0, 0.15, ROWS), 0, 1)
    holes = rng.random(ROWS) < 0.1
    return pa.table(
        {
            "age": age,
            "dose": pa.array(dose, mask=holes),
            "stage": pa.array(stage, mask=rng.random(ROWS) < 0.05),
            "smoker": smoker,
            "day": pa.array(day),
            **noise,
            "treatment": action,
            "days": days,
        }
    )


@pytest.fixture(scope="module")
def log(table) -> ponn.Log:
    return ponn.read_log(table, action="treatment", reward="days", minimize=True, reward_range=(0, 40))


@pytest.fixture(scope="module")
def policy(log) -> Policy:
    return ponn.learn(log, "ponn-b", select="fdr", **QUICK)


@pytest.fixture(scope="module")
def greedy(log) -> Policy:
    return ponn.learn(log, "lr-l1")


def rows_of(table: pa.Table, number: int = 60) -> pa.Table:
    return table.slice(0, number).drop_columns(["treatment", "days"])


def with_cell(row: pa.Table, name: str, cell: object) -> pa.Table:
    """One row with another value; None keeps the column's type."""
    place = row.column_names.index(name)
    array = pa.nulls(1, row.schema.field(name).type) if cell is None else pa.array([cell])
    return row.set_column(place, name, array)


# Effects -------------------------------------------------------------------------------------------------


def oracle(policy: Policy, row: pa.Table, name: str, a: int) -> float:
    """f(x) - f(x with the feature at its usual value), for one row given as the user gives it."""
    cell = policy.usual[name]
    if name == "day":
        cell = date.fromisoformat(cell)
    usual = with_cell(row, name, cell)
    if policy.moves == "probability":
        one, other = (float(policy.predict_proba(x)[0, a]) for x in (row, usual))
    else:
        one, other = (40 - 40 * float(policy.model.rewards(policy.encoding.design(x))[0, a]) for x in (row, usual))
    return one - other


@pytest.mark.parametrize("method", ["ponn-b", "lr-l1"])
def test_effects_are_what_one_gets_row_by_row(policy, greedy, table, method):
    used = {"ponn-b": policy, "lr-l1": greedy}[method]
    assert used.moves == {"ponn-b": "probability", "lr-l1": "expected_reward"}[method]
    rows, told = rows_of(table), 0
    for j, reason in enumerate(used.reasons(rows)):
        row, a = rows.slice(j, 1), used.actions.index(reason.action)
        names = used.sets()[reason.action]
        expected = {name: oracle(used, row, name, a) for name in names}
        kept = sorted(expected, key=lambda name: -abs(expected[name]))[:MOST_FEATURES]
        found = {one.feature: one.effect for one in reason.features}
        sizes = [abs(one) for one in found.values()]
        assert sizes == sorted(sizes, reverse=True)
        assert len(found) <= min(len(names), MOST_FEATURES)
        for name, effect in found.items():  # single precision, and blocks of other sizes round otherwise
            assert effect == pytest.approx(expected[name], abs=2e-6 * (40 if used is greedy else 1))
        least = min(sizes, default=0.0)
        assert all(name in found or abs(expected[name]) <= least + 1e-4 for name in kept)
        told += len(found)
    assert told > 100


def test_only_selected_features_are_told(policy, table):
    assert not policy.selected.all()
    for reason in policy.reasons(rows_of(table, 300)):
        assert {one.feature for one in reason.features} <= set(policy.sets()[reason.action])
        assert len(reason.features) == min(MOST_FEATURES, len(policy.sets()[reason.action]))


def test_without_step_b_only_what_moves_the_action_is_told(greedy, table):
    usual = pa.table({name: pa.array([value]) for name, value in greedy.usual.items()})
    (reason,) = greedy.reasons(usual)
    assert reason.features == ()
    assert "No single feature moves the expected days much." in str(reason)
    assert all(one.effect != 0 for reason in greedy.reasons(rows_of(table)) for one in reason.features)


def test_values_are_told_as_the_user_wrote_them(policy, table):
    everything = replace(policy, selected=np.ones_like(policy.selected))
    found = everything.reasons(rows_of(table, 200))
    seen = {one.feature: (one.value, j) for j, reason in enumerate(found) for one in reason.features}
    for name in ("age", "stage", "smoker", "day", "dose"):
        value, j = seen[name]
        expected = table.column(name)[j].as_py()
        assert value == (str(expected) if name == "day" else expected)
        assert type(value) is not np.bool_
    assert everything.usual["day"].startswith("2020-")
    narrow = table.set_column(1, "dose", table.column("dose").cast(pa.float32()))
    values = {one.value for reason in everything.reasons(rows_of(narrow)) for one in reason.features}
    assert all(len(str(value)) < 6 for value in values if isinstance(value, float) and abs(value) > 1)


def test_usual_values_are_medians_and_most_common_levels(log, table):
    first, _ = log.split_rows(0.7, 0)
    part = log.take(first)
    found = usual_values(Encoding.fit(part), part.X)
    ages = sorted(part.table.column("age").to_pylist())
    assert found["age"] == ages[(len(ages) - 1) // 2]
    doses = sorted(one for one in part.table.column("dose").to_pylist() if one is not None)
    assert found["dose"] == doses[(len(doses) - 1) // 2]
    assert found["stage"] == "II"
    assert found["smoker"] is False
    sparse = pa.table({"x": pa.array([1.0, None, None, 2.0, None]), "y": ["a", None, "b", None, None]})
    small = ponn.read_log(
        sparse.append_column("t", pa.array(["p", "q"] * 2 + ["p"])).append_column("r", pa.array([0, 1, 0, 1, 1])),
        action="t",
        reward="r",
        features=["x", "y"],
    )
    assert usual_values(Encoding.fit(small), small.X) == {"x": None, "y": None}


# Similar rows --------------------------------------------------------------------------------------------


def test_cells_partition_the_training_rows(log, policy):
    first, _ = log.split_rows(0.7, 0)
    part, similar, k = log.take(first), policy.similar, 3
    X = policy.encoding.design(part)
    cells = similar.cells
    assert 1 < len(cells.rows) <= 64
    assert policy.similar.least == 10
    everything = ponn.learn(log, "logging", min_cell=1).similar.cells
    assert everything.rows.sum(axis=0).tolist() == np.bincount(part.A, minlength=k).tolist()
    of_row = similar.tallies(X)
    error = part.R - policy.companions["reward"].rewards(X)[np.arange(len(part)), part.A]
    number = [np.flatnonzero((cells.squares == one).all(axis=1)) for one in of_row.squares]
    assert all(len(one) == 1 for one in number)  # the sums of squares tell the cells apart
    cell = np.concatenate(number)
    for c in range(len(cells.rows)):
        for a in range(k):
            here = (cell == c) & (part.A == a)
            told = here & (here.sum() >= 10)  # of fewer rows nothing is kept
            assert cells.rows[c, a] == told.sum()
            assert cells.rewards[c, a] == pytest.approx(part.R[told].sum())
            assert cells.residuals[c, a] == pytest.approx(error[told].sum())
            assert cells.squares[c, a] == pytest.approx((error[told] ** 2).sum())
    for reason, rows, a in zip(
        policy.reasons(part), of_row.rows, policy.predict_proba(part).argmax(axis=1), strict=True
    ):
        assert (reason.similar.rows, reason.similar.took_action) == (rows.sum(), rows[a])


def test_cells_tell_rows_apart_that_were_treated_or_fared_otherwise():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_000, 6)).astype(np.float32)
    A = (rng.random(2_000) < np.where(X[:, 1] > 0, 0.9, 0.1)).astype(int)
    R = (rng.random(2_000) < np.where(X[:, 4] > 0, 0.9, 0.1)).astype(float)
    found = fit_similar(X, A, R, np.full(2_000, 0.5), 2)
    assert {1, 4} <= set(found.forests.column[:3])
    h, r = found.probabilities(X), found.rewards(X)
    assert np.abs(h[:, 1] - np.where(X[:, 1] > 0, 0.9, 0.1)).mean() < 0.1
    assert np.abs(r[np.arange(2_000), A] - np.where(X[:, 4] > 0, 0.9, 0.1)).mean() < 0.1


def test_few_rows_are_one_cell():
    found = fit_similar(np.zeros((5, 2), np.float32), np.array([0, 1, 0, 1, 0]), np.ones(5), np.ones(5), 2)
    assert found.cells.rows.tolist() == [[3, 2]]


def test_the_summary_is_small(policy):
    assert sum(one.nbytes for one in policy.similar.arrays.values()) < 50_000 / 6 * 3  # 50 kB for six actions


# Intervals -----------------------------------------------------------------------------------------------


def test_wilson_solves_its_equation():
    for r in (0.0, 0.1, 0.5, 0.93, 1.0):
        for n in (1, 7, 400):
            low, high = wilson(np.float64(r), np.float64(n), np.float64(r * (1 - r)))
            for end in (low, high):  # |r - p| = z sqrt(p (1 - p) / n)
                assert abs(r - end) == pytest.approx(1.96 * np.sqrt(end * (1 - end) / n), abs=1e-9)


def test_intervals_hold_the_expectation_and_narrow_with_more_rows(log, policy):
    X = policy.encoding.design(log)
    for a in range(3):
        A = np.full(ROWS, a)
        low, high = policy.expected_interval(X, A)
        value = policy.expected_reward(X, A)
        known = ~np.isnan(low)
        assert ((low <= value + 1e-9) & (value <= high + 1e-9))[known].all()
        assert low[known].min() >= 0
        assert high[known].max() <= 40
    similar = policy.similar
    more = replace(similar, forests=replace(similar.forests, value=similar.forests.value * 100))
    wide, narrow = (
        np.subtract(*reversed(one.interval(X, A, X[:, 0] * 0 + 0.5, X[:, 0] * 0 + 0.5))) for one in (similar, more)
    )
    assert np.nanmean(narrow) < 0.5 * np.nanmean(wide)


def test_intervals_are_what_the_formula_says(log, policy):
    X = policy.encoding.design(log.take(np.arange(40)))
    similar, r = policy.similar, policy.companions["reward"].rewards(X)
    promised = np.clip(r + 0.1, 0, 1)
    N, _, E, Q = similar.tallies(X)
    for a in range(3):
        low, high = similar.interval(X, np.full(40, a), promised[:, a], r[:, a])
        for j in np.flatnonzero(N[:, a] > 0):
            m = 1 / (1 / N[j, a] + X.shape[1] / similar.cells.rows[:, a].sum())
            ends = [
                (m * centre + 1.96**2 / 2 + sign * 1.96 * np.sqrt(m * Q[j, a] / N[j, a] + 1.96**2 / 4)) / (m + 1.96**2)
                for centre in (promised[j, a], np.clip(r[j, a] + E[j, a] / N[j, a], 0, 1))
                for sign in (-1, 1)
            ]
            assert (low[j], high[j]) == pytest.approx((max(min(ends), 0), min(max(ends), 1)))


def test_nobody_similar_no_interval(policy, table):
    value = policy.similar.forests.value.copy()
    value[:, [1, 4, 7, 10]] = 0  # nobody took the second action
    never = replace(policy.similar, forests=replace(policy.similar.forests, value=value))
    lonely = replace(policy, companions={**policy.companions, "similar": never})
    rows = rows_of(table)
    for reason in lonely.reasons(rows, [policy.actions[1]] * len(rows)):
        assert reason.similar.took_action == 0
        assert (reason.expected_reward.low, reason.expected_reward.high) == (None, None)
        who = policy.actions[1] if reason.similar.rows else "any action"
        assert f"fewer than 10 got {who}" in str(reason)
        assert "by the model alone" in str(reason)


@pytest.mark.parametrize(("shape", "effect", "least"), [("linear", 0.08, 0.97), ("step", 0.16, 0.76)])
def test_intervals_mostly_hold_the_truth(shape, effect, least):
    """Seeds 0 to 11: 0.9965 +- 0.0028 (linear) and 0.818 +- 0.013 (step), so that a fresh seed would fail in less than
    1 of 10,000; half the width holds 0.87 and 0.44 of them."""
    world = synthetic(rows=3_000, features=12, actions=3, relevant=3, shape=shape, effect=effect, bias=0.7, seed=1)
    test = world.part("test")
    policy = ponn.learn(world.part("train", "valid").log, "logging")
    X = policy.encoding.design(test.log)
    hit = []
    for a in range(3):
        low, high = policy.expected_interval(X, np.full(len(X), a))
        known = policy.support(X)[:, a] & ~np.isnan(low)
        hit.append(((low <= test.expected[:, a]) & (test.expected[:, a] <= high))[known])
    assert least < np.concatenate(hit).mean()


# In words and as JSON ------------------------------------------------------------------------------------


def test_json_text_comes_back_as_it_was(policy, greedy, table):
    for used in (policy, greedy):
        rows = rows_of(table)
        made = used.recommend(rows, reasons=True)
        assert made.column_names == [*RECOMMENDED, "reasons"]
        assert used.recommend(rows).column_names == [*RECOMMENDED]
        for j, reason in enumerate(used.reasons(rows)):
            found = json.loads(made.column("reasons")[j].as_py())
            assert found == reason.as_json()
            assert set(found) >= {"features", "similar", "expected_reward", "runner_up", "text", "moves", "supported"}
            assert found["text"] == str(reason)
            assert set(found["similar"]) == {"rows", "took_action", "fewer_than"}
            assert found["runner_up"]["action"] == made.column("runner_up")[j].as_py()
            assert found["expected_reward"]["value"] == pytest.approx(
                made.column("expected_reward")[j].as_py(), rel=1e-5
            )
            assert found["supported"] == made.column("supported")[j].as_py()


def test_missing_cells_and_levels_never_seen_are_told(log, table):
    policy = ponn.learn(log, "ponn-b", select="fdr", min_cell=1, **QUICK)  # else what was never seen counts as usual
    row, a = rows_of(table, 1), [policy.actions[0]]
    everything = replace(policy, selected=np.ones_like(policy.selected), relevance=())
    usual = pa.table({name: pa.array([value]) for name, value in everything.usual.items()})
    for name, cell, words in (
        ("stage", "IV", "stage IV (never seen in training, usually II)"),
        ("stage", None, "stage missing (usually II)"),
        ("age", None, f"age missing (never seen in training, usually {policy.usual['age']})"),
    ):
        changed = with_cell(usual, name, cell)
        (one,) = everything.reasons(changed, a)[0].features
        assert (one.feature, one.value, one.seen) == (name, cell, "never" not in words)
        assert str(one) == words
    assert everything.reasons(row, a)[0].as_json()["features"]


def test_less_is_better_is_told_and_ends_stand_in_order(greedy, table):
    for reason in greedy.reasons(rows_of(table)):
        expected = reason.expected_reward
        assert expected.low <= expected.value <= expected.high
        assert "where less is better" in str(reason)
        assert reason.runner_up.expected_reward >= expected.value  # days: the runner-up promises no fewer
        for one in reason.features:
            worth_a_word = abs(one.effect) >= 0.2  # 0.5 % of the range
            assert (f"{one} {'lowers' if one.effect < 0 else 'raises'} it by " in str(reason)) == worth_a_word


def test_the_runner_up_of_a_greedy_policy_promises_most_of_the_others(greedy, table):
    rows = rows_of(table)
    r = greedy.model.rewards(greedy.encoding.design(rows))
    expected = [greedy.actions[a] for a in np.argsort(-r, axis=1)[:, 1]]
    assert greedy.recommend(rows).column("runner_up").to_pylist() == expected


def test_reasons_for_other_actions(policy, table):
    rows = rows_of(table, 5)
    wanted = ["wait", "drug", "wait", "surgery", "wait"]
    found = policy.reasons(rows, wanted)
    assert [one.action for one in found] == wanted
    h = policy.predict_proba(rows)
    assert [one.probability for one in found] == [h[j, policy.actions.index(one)] for j, one in enumerate(wanted)]
    for wrong in (wanted[:4], [*wanted[:4], "prayer"]):
        with pytest.raises(ponn.PonnError, match="actions were given for 5 rows"):
            policy.reasons(rows, wrong)
    sampled = policy.recommend(rows_of(table), sample=True, seed=3, reasons=True)
    for action, told in zip(sampled.column("action"), sampled.column("reasons"), strict=True):
        assert json.loads(told.as_py())["text"].startswith(f"{action} is recommended")


def test_the_interval_is_a_column_on_request(policy, table):
    rows = rows_of(table)
    made = policy.recommend(rows, columns=["expected_low", "expected_reward", "expected_high"])
    assert made.column_names == ["expected_low", "expected_reward", "expected_high"]
    for j, reason in enumerate(policy.reasons(rows)):
        told = reason.expected_reward
        assert (told.low, told.value, told.high) == tuple(made[name][j].as_py() for name in made.column_names)
    assert set(ON_REQUEST) == {"expected_low", "expected_high"}


def test_numbers_in_words_are_short():
    found = [brief(value, 3) for value in (0.83, 0.0, 12.345, 123.4, 98_765.4, -2_345.6, 0.012345)]
    assert found == ["0.83", "0", "12.3", "123", "98,765", "-2,346", "0.0123"]


# Batches, and support ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_batches_and_threads_give_the_same_reasons(policy, table, tmp_path, monkeypatch, name):
    rows = rows_of(table, ROWS)
    write_table(rows, tmp_path / "rows.parquet")
    with threadpool_limits(1, user_api="blas"):
        expected = policy.recommend(rows, reasons=True).column("reasons").to_pylist()
    for batch, piece, threads in ((1, 7, 1), (2, 300, 2)):
        monkeypatch.setattr(scoring, "BATCH_ROWS", batch * BLOCK_ROWS)
        monkeypatch.setattr(streams, "PIECE_ROWS", piece)
        write_recommendations(policy, tmp_path / "rows.parquet", tmp_path / name, reasons=True, threads=threads)
        assert read_table(tmp_path / name).table.column("reasons").to_pylist() == expected


def cautious(policy: Policy, *scores: float) -> Policy:
    """The policy with another picture of current practice."""
    logging = policy.companions["logging"]
    changed = {**logging.arrays, "c": logging.arrays["c"] + np.float32(scores)}
    return replace(policy, companions={**policy.companions, "logging": replace(logging, arrays=changed)})


def test_support_is_counted(policy, greedy, table, tmp_path):
    rows = rows_of(table, ROWS)
    write_table(rows, tmp_path / "rows.parquet")
    for used in (policy, greedy):
        rare = cautious(used, 0, -4.6, 0)  # the second action was taken in about 1 % of such cases
        plain, safe = rare.recommend(rows), rare.recommend(rows, supported_only=True)
        h, supported = rare.predict_proba(rows), rare.support(rare.encoding.design(rows))
        done = write_recommendations(rare, tmp_path / "rows.parquet", tmp_path / "a.parquet")
        assert done.unsupported == plain.column("supported").to_pylist().count(False) > 0
        assert (done.restricted, done.fell_back) == (0, 0)
        done = write_recommendations(rare, tmp_path / "rows.parquet", tmp_path / "b.parquet", supported_only=True)
        assert done.restricted == plain.column("supported").to_pylist().count(False)
        assert done.fell_back == done.unsupported == 0
        scores = h if used is policy else rare.model.rewards(rare.encoding.design(rows))
        best = [max(np.flatnonzero(supported[j]), key=lambda a, j=j: scores[j, a]) for j in range(ROWS)]
        assert safe.column("action").to_pylist() == [rare.actions[a] for a in best]
        assert read_table(tmp_path / "b.parquet").table.column("action").equals(safe.column("action"))
        only = write_recommendations(rare, tmp_path / "rows.parquet", tmp_path / "c.parquet", columns=["action"])
        assert only.unsupported is None


def test_current_practice_decides_where_no_action_is_the_best_supported_one(policy, table, tmp_path, monkeypatch):
    rows, X = rows_of(table, ROWS), policy.encoding.design(rows_of(table, ROWS))
    write_table(rows, tmp_path / "rows.parquet")
    usual = policy.companions["logging"].probabilities(X).argmax(axis=1)
    none = policy.companions["logging"].probabilities(X).max(axis=1) < 0.5
    assert 0 < none.sum() < ROWS
    monkeypatch.setattr("ponn.policy.policy.SUPPORT_FLOOR", 0.5)
    safe = policy.recommend(rows, supported_only=True)
    assert safe.column("action").to_pylist() == [policy.actions[a] for a in usual]  # no other has half of all cases
    done = write_recommendations(policy, tmp_path / "rows.parquet", tmp_path / "a.parquet", supported_only=True)
    changed = policy.predict(rows) != np.array(policy.actions)[usual]
    assert (done.restricted, done.fell_back) == ((changed & ~none).sum(), none.sum())
    assert done.unsupported == none.sum()
    monkeypatch.setattr("ponn.policy.policy.SUPPORT_FLOOR", 0.0)
    alike = replace(policy.model, arrays={name: np.zeros_like(one) for name, one in policy.model.arrays.items()})
    safe = replace(policy, model=alike).recommend(rows, supported_only=True)
    assert safe.column("action").to_pylist() == [policy.actions[a] for a in usual]


def test_reasons_of_a_safer_policy_speak_of_its_own_probabilities(policy, table):
    rare, rows = cautious(policy, 0, -30, 0), rows_of(table)
    safe = rare.safer(rare.encoding.design(rows))
    found = rare.reasons(rows, supported_only=True)
    assert [one.probability for one in found] == safe.max(axis=1).tolist()
    for only, h in ((True, rare.safer), (False, rare.model.probabilities)):
        for j, reason in enumerate(rare.reasons(rows, supported_only=only)):
            row, a = rows.slice(j, 1), policy.actions.index(reason.action)
            for one in reason.features:
                other = with_cell(row, one.feature, one.usual)
                here, there = (float(h(rare.encoding.design(x))[0, a]) for x in (row, other))
                assert one.effect == pytest.approx(here - there, abs=2e-6)  # single precision
    unsupported = [one for one in rare.reasons(rows) if one.action == policy.actions[1]]
    assert unsupported
    for one in unsupported:
        assert one.supported is False
        assert "it cannot tell" in str(one)


def test_the_command_gives_reasons_and_tells_support(policy, table, here, tmp_path):
    rare = cautious(policy, 0, -30, 0)
    rare.save(tmp_path / "p.ponn")
    write_table(rows_of(table, 100), tmp_path / "rows.csv")
    advise = ("recommend", "p.ponn", "rows.csv")
    done = here(*advise, "--reasons", "--out", "out.parquet", "--columns", "action,supported,expected_low")
    assert done.returncode == 0, done.stderr
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["action", "supported", "expected_low", "reasons"]
    for action, text in zip(found.column("action"), found.column("reasons"), strict=True):
        assert json.loads(text.as_py())["text"].startswith(str(action))
    lost = found.column("supported").to_pylist().count(False)
    assert f"{lost} of 100 recommendations are not supported" in done.stderr
    done = here(*advise, "--supported-only", "--out", "safe.csv")
    assert done.returncode == 0, done.stderr
    assert f"{lost} of 100 recommendations are the best supported action in place of one" in done.stderr
    assert "recommendations are not supported" not in done.stderr


def test_reasons_never_import_the_training_stack(policy, table, tmp_path):
    policy.save(tmp_path / "p.ponn")
    write_table(rows_of(table, 20), tmp_path / "rows.csv")
    code = "import sys, ponn; from ponn.tables.table import read_table; p = ponn.load('p.ponn');"
    code += "p.recommend(read_table('rows.csv').table, reasons=True);"
    code += "print({'torch', 'sklearn', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# The file ------------------------------------------------------------------------------------------------


def rewrite(policy: Policy, folder, change):
    """A policy file whose JSON and arrays were changed."""
    policy.save(folder / "good.ponn")
    with zipfile.ZipFile(folder / "good.ponn") as archive:
        found = json.loads(archive.read("policy.json"))
        weights = load_weights(archive.read("weights.safetensors"))
    change(found, weights)
    with zipfile.ZipFile(folder / "changed.ponn", "w") as archive:
        archive.writestr("policy.json", json.dumps(found))
        archive.writestr("weights.safetensors", save_weights(weights))
    return folder / "changed.ponn"


def poke(name, place, value):
    """A change of one number in the cells."""

    def change(found, weights):
        array = weights[f"similar.{name}"].copy()
        array[place] = value
        weights[f"similar.{name}"] = array

    return change


HOSTILE = {
    "half a row": (poke("value", (0, 0), 0.5), "numbers of rows that cannot be"),
    "less than no rows": (poke("value", (0, 0), -1), "numbers of rows that cannot be"),
    "sums of no rows": (poke("value", (0, slice(0, 3)), 0), "sums of rewards that cannot be"),
    "so few rows that they are not told": (poke("value", (0, 0), 9), "numbers of rows that cannot be"),
    "more reward than rows": (poke("value", (0, 3), 1e6), "sums of rewards that cannot be"),
    "huge residuals": (poke("value", (0, 6), -1e6), "sums of rewards that cannot be"),
    "negative squares": (poke("value", (0, 9), -1), "sums of rewards that cannot be"),
    "not a number": (poke("value", (0, 3), np.nan), "not finite numbers"),
    "a column beyond": (poke("column", 0, 10_000), "asks about column 10000"),
    "a cut tree": (lambda found, weights: weights.update({"similar.nodes": np.int32([1])}), "do not fit"),
    "two actions": (lambda found, weights: found["companions"]["similar"].update(k=2), "cells are one tree"),
    "no actions": (lambda found, weights: found["companions"]["similar"].update(k=True), "k is True; expected a whole"),
    "other columns": (lambda found, weights: found["companions"]["similar"].update(D=99), "do not fit together"),
    "a secret": (lambda found, weights: found["companions"]["similar"].update(x=1), "holds .'x'., which it cannot"),
    "another kind": (
        lambda found, weights: (
            found["companions"].update(similar=found["companions"]["reward"]),
            [weights.pop(name) for name in list(weights) if name.startswith("similar.")],
            weights.update({f"similar.{part}": weights[f"reward.{part}"] for part in ("W", "c")}),
        ),
        "something else",
    ),
    "an unknown feature": (lambda found, weights: found["usual"].update(height=1), "do not fit its features"),
    "a lost feature": (lambda found, weights: found["usual"].pop("age"), "do not fit its features"),
    "infinity": (lambda found, weights: found["usual"].update(age=np.inf), "Infinity, which is not a finite number"),
    "a number beyond all": (lambda found, weights: found["usual"].update(age=10**400), "expected a finite number"),
    "a list": (lambda found, weights: found["usual"].update(age=[1]), "do not fit its features"),
    "a text for a number": (lambda found, weights: found["usual"].update(age="old"), "do not fit its features"),
    "no date": (lambda found, weights: found["usual"].update(day="soon"), "holds text"),
    "a list of usual values": (lambda found, weights: found.update(usual=[1]), "not a policy file, or is damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_is_refused(policy, tmp_path, name):
    change, message = HOSTILE[name]
    with pytest.raises(ponn.PonnError, match=message):
        ponn.load(rewrite(policy, tmp_path, change))


def test_a_saved_policy_gives_the_same_reasons(policy, table, tmp_path):
    policy.save(tmp_path / "p.ponn")
    assert ponn.load(tmp_path / "p.ponn").reasons(rows_of(table)) == policy.reasons(rows_of(table))


def test_files_of_before_say_what_they_can(policy, table, tmp_path):
    def old(found, weights):
        del found["usual"], found["companions"]["similar"]
        for name in [name for name in weights if name.startswith("similar.")]:
            del weights[name]

    before = ponn.load(rewrite(policy, tmp_path, old))
    rows = rows_of(table)
    made = before.recommend(rows, columns=["action", "expected_low", "expected_reward"], reasons=True)
    assert made.column("expected_low").null_count == len(rows)
    assert made.column("expected_reward").null_count == 0
    for action, text in zip(made.column("action"), made.column("reasons"), strict=True):
        found = json.loads(text.as_py())
        assert found["features"] is None
        assert found["similar"] is None
        assert found["expected_reward"]["low"] is None
        assert found["text"].startswith(f"{action} is recommended with probability")
    bare = replace(before, companions={}, provenance={"reward": {"range": [0.0, 1.0], "minimize": False}})
    (reason, *_) = bare.reasons(rows)
    assert (reason.expected_reward, reason.supported, reason.runner_up.expected_reward) == (None, None, None)
    promising = replace(bare, model=LinearRewards(np.ones((len(policy.encoding.owner), 3)), np.zeros(3)))
    assert promising.reasons(rows)[0].expected_reward.low is None
