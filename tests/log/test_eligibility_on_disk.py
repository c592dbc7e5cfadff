"""Eligible actions of logs on disk: the same as in memory, whatever the shards, from the survey to the advice."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from test_eligibility import LABELS, RULES, cases, cells

import ponn
from logs_on_disk import write
from ponn.engine.passes import Here, Passes
from ponn.errors import LogError, PonnError
from ponn.evaluation.estimators import terms, valuation
from ponn.evaluation.evaluate import read_same_log
from ponn.evaluation.shard_evaluation import compare_sharded
from ponn.evaluation.valuation import FixedAction, evaluate, probabilities_on
from ponn.learning.learn import learn, learn_with_holdout
from ponn.log.draft import read_log
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.log.sharded import ShardedLog, read_sharded
from ponn.settings import Settings
from ponn.steps.propensity import propensities
from ponn.steps.shard_steps import fit_practice
from ponn.training.shard_training import training_problem
from ponn.training.team import Team

ROLES = {"action": "drug", "reward": "well"}
QUICK = {"method": "ponn-b", "hidden": (6,), "epochs": 8, "patience": 8, "batch": 64, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def logged():
    """A table with a column of eligible actions (empty in some rows) and the propensities, and which were eligible."""
    table, can, P = cases(3_000, seed=1)
    taken = np.searchsorted(LABELS, table["drug"].to_numpy())
    named = ["" if can[j].all() and j % 2 else cell for j, cell in enumerate(cells(can))]
    table = table.append_column("can", pa.array(named)).append_column("p", pa.array(P[np.arange(len(P)), taken]))
    return table, can, P


@pytest.fixture(scope="module")
def folder(logged, tmp_path_factory):
    return write(tmp_path_factory.mktemp("eligible") / "log", logged[0], 3)


def opened(path, shard_rows: int = 700, **how) -> ShardedLog:
    return read_sharded(path, Passes(Here()), shard_rows=shard_rows, **{**ROLES, "ignore": ["p", "can"], **how})


def in_memory(path, **how) -> Log:
    return read_log(path, **{**ROLES, "ignore": ["p", "can"], **how})


def rows_of(disk: ShardedLog) -> list[Log]:
    return [batch.log for shard in disk.shards for batch in disk.reader.batches(shard)]


# What is read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"rules": RULES},
        {"eligible": "can", "ignore": ["p"]},
        {"eligible": "can", "ignore": ["p"], "rules": RULES[:1]},
        {"rules": RULES, "features": ["age"]},
    ],
)
def test_the_survey_finds_what_reading_into_memory_finds(folder, logged, how):
    memory, disk = in_memory(folder, **how), opened(folder, **how)
    assert disk.notes == memory.notes
    assert disk.features == memory.features
    found = np.concatenate([log.eligible for log in rows_of(disk)])
    np.testing.assert_array_equal(found, memory.eligible)
    np.testing.assert_array_equal(found, logged[1])
    assert disk.reader.limited == (1, 2)
    assert [disk.survey.eligible[one] for one in disk.actions] == memory.eligible.sum(axis=0).tolist()
    sample = disk.sample.log
    np.testing.assert_array_equal(sample.eligible, memory.eligible)  # a short log is its own sample


def test_lists_of_labels_are_read_as_well(logged, tmp_path):
    table, can, _ = logged
    lists = pa.array([LABELS[row].tolist() for row in can])
    path = write(tmp_path / "lists", table.set_column(table.column_names.index("can"), "can", lists), 2)
    disk = opened(path, eligible="can", ignore=["p"])
    np.testing.assert_array_equal(np.concatenate([log.eligible for log in rows_of(disk)]), can)


def test_rows_whose_action_was_not_eligible_are_left_out_and_counted(logged, tmp_path):
    table, can, _ = logged
    wrong = np.arange(0, 3_000, 7)
    drug = np.array(table["drug"].to_pylist())
    drug[wrong] = np.where(can[wrong].all(axis=1), drug[wrong], LABELS[(~can[wrong]).argmax(axis=1)])
    bad = ~can[np.arange(3_000), np.searchsorted(LABELS, drug)]
    assert bad.sum() > 50
    path = write(tmp_path / "log", table.set_column(table.column_names.index("drug"), "drug", pa.array(drug)), 3)
    with pytest.raises(LogError, match=r"part-00\.parquet: The logged action is not eligible in \d+ rows"):
        opened(path, rules=RULES)
    memory, disk = (read(path, rules=RULES, drop_ineligible=True) for read in (in_memory, opened))
    assert disk.notes == memory.notes
    assert f"{bad.sum()} of 3000 rows whose logged action was not eligible were left out, as asked." in disk.notes
    assert len(disk) == len(memory) == 3_000 - bad.sum()
    for name in ("A", "R", "eligible"):
        found = np.concatenate([getattr(log, name) for log in rows_of(disk)])
        np.testing.assert_array_equal(found, getattr(memory, name))


def test_labels_of_rows_that_are_left_out_stay_known(logged, tmp_path):
    table = logged[0].slice(0, 600)
    drug, can = table["drug"].to_pylist(), table["can"].to_pylist()
    drug[5], can[5], can[6] = "XX", "AC", "AC|CAF|CT|XX"
    table = table.set_column(table.column_names.index("drug"), "drug", pa.array(drug))
    path = write(tmp_path / "log", table.set_column(table.column_names.index("can"), "can", pa.array(can)), 2)
    how = {"eligible": "can", "ignore": ["p"], "drop_ineligible": True}
    memory, disk = in_memory(path, **how), opened(path, **how)
    assert disk.actions == memory.actions == ("AC", "CAF", "CT")
    np.testing.assert_array_equal(np.concatenate([log.eligible for log in rows_of(disk)]), memory.eligible)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"rules": ["ZZ if age > 3"]}, "ZZ"),
        ({"rules": ["CAF if years > 3"]}, "has no column 'years'"),
        ({"rules": ["CAF if well > 0"]}, "the reward column"),
        ({"eligible": "nowhere"}, "has no column 'nowhere'"),
        ({"eligible": "prior"}, r"part-00\.parquet: The eligibility column 'prior' names 'no', 'yes' in 800 rows"),
        ({"drop_ineligible": True}, "needs to know what is eligible"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(folder, how, words):
    with pytest.raises(PonnError, match=words):
        opened(folder, **how)


def test_a_wrong_label_is_told_with_file_and_row(logged, tmp_path):
    table = logged[0]
    can = table["can"].to_pylist()
    can[1_500] = "AC|CAV"
    path = write(tmp_path / "log", table.set_column(table.column_names.index("can"), "can", pa.array(can)), 3)
    with pytest.raises(LogError, match=r"part-01\.parquet: .* names 'CAV' in 1 row \(501\)"):
        opened(path, eligible="can", ignore=["p"])


def test_rows_left_out_for_missing_outcomes_are_left_out_again(logged, tmp_path):
    """What was left out when a policy was learned from a log on disk is left out when it is valued there."""
    table = logged[0]
    well = table["well"].to_pylist()
    well[3] = None
    path = write(tmp_path / "log", table.set_column(table.column_names.index("well"), "well", pa.array(well)), 3)
    disk = opened(path, rules=RULES, drop_missing=True)
    policy = learn(disk, engine=Here(), **QUICK)
    assert policy.provenance["drop_missing"]
    assert len(read_same_log(policy, path, Here())) == 2_999


# Steps A to C --------------------------------------------------------------------------------------------


def test_step_a_is_that_of_the_rows_in_memory(folder, logged):
    """Propensities are those of a choice among eligible actions; without the columns for them the error is 0.06."""
    memory, disk = in_memory(folder, rules=RULES), opened(folder, rules=RULES)
    settings = Settings(propensity_penalty=1.0)
    encoding = Encoding.fit(memory)
    expected = propensities(memory, encoding, settings)
    practice = fit_practice(disk, encoding, Passes(Here()), settings)
    designs = [encoding.design(log) for log in rows_of(disk)]
    batches = [batch for shard in disk.shards for batch in disk.reader.batches(shard)]
    ones = [np.column_stack([X, np.ones(len(X))]) for X in designs]
    found = np.concatenate([practice.p(batch, X) for batch, X in zip(batches, ones, strict=True)])
    np.testing.assert_allclose(found, expected.p, atol=1e-5)
    true = logged[2][np.arange(3_000), memory.A]
    assert np.abs(found - true).mean() < 0.025


@pytest.mark.parametrize("cells_in_memory", [16 << 20, 1_000])
def test_a_policy_learned_from_disk_keeps_to_what_is_eligible(folder, logged, monkeypatch, cells_in_memory):
    monkeypatch.setattr("ponn.training.shard_training.MEMORY_CELLS", cells_in_memory)
    monkeypatch.setattr("ponn.training.shard_training.BUFFER_CELLS", 2_400)
    policy = learn(opened(folder, rules=RULES), engine=Here(), **QUICK)
    steps = [one["step"] for one in policy.provenance["passes"]]
    assert ("Step C of streamed rows" in steps) == (cells_in_memory == 1_000)
    table, can, P = cases(500, seed=8)
    h = policy.predict_proba(table)
    assert not h[~can].any()
    usual = policy.companions["logging"].probabilities(policy.encoding.design(table), can)
    assert np.abs(usual - P).mean() < 0.05
    assert np.mean(LABELS[h.argmax(axis=1)] == np.where(can[:, 1], "CAF", "CT")) > 0.6


def test_what_is_barred_reaches_the_objective(folder, monkeypatch):
    """Rows in memory and streamed ones carry what is eligible in them."""
    disk = opened(folder, rules=RULES, propensity="p", ignore=["can"])
    train, valid = disk.split(0.7, 0)
    settings, passes = Settings(batch=32), Passes(Here())
    encoding = train.fit_encoding(passes, settings)
    practice = fit_practice(disk, encoding, passes, settings)
    whole = training_problem(train, valid, encoding, practice, settings, passes, 0)
    old = whole.train.X[:, 0]
    assert whole.train.eligible[:, 1].mean() < 0.9
    assert old[whole.train.eligible[:, 1]].max() < old[~whole.train.eligible[:, 1]].min()  # age >= 70 bars CAF
    monkeypatch.setattr("ponn.training.shard_training.MEMORY_CELLS", 0)
    monkeypatch.setattr("ponn.training.shard_training.BUFFER_CELLS", 1_200)
    streamed = training_problem(train, valid, encoding, practice, settings, passes, 0)
    epochs = streamed.stream(settings, torch.Generator(), Team())
    rows = epochs.stream.take()
    epochs.close()
    assert rows.X[rows.eligible[:, 1], 0].max() < rows.X[~rows.eligible[:, 1], 0].min()


# Values --------------------------------------------------------------------------------------------------


def test_policies_are_valued_among_eligible_actions(logged, tmp_path):
    """A fixed action goes to the most common eligible one where it is not eligible; by IPS exactly as in memory.

    Rows are sorted by action: what is most common in the log is not so in its shards.
    """
    folder = write(tmp_path / "log", logged[0].sort_by("drug"), 3)
    how = {"rules": RULES, "propensity": "p", "ignore": ["can"]}
    memory = in_memory(folder, **how)
    rivals = {one: FixedAction(one) for one in ("AC", "CAF", "CT")}
    encoding = Encoding.fit(memory)
    for shard_rows in (250, 3_000):
        found = compare_sharded(rivals, opened(folder, shard_rows, **how), encoding, Passes(Here()), "ips")
        for name, policy in rivals.items():
            t = terms(probabilities_on(policy, memory), memory.A, memory.R, memory.p0)
            assert found.values[name].value == pytest.approx(valuation("ips", t).value, abs=1e-12)
            expected = evaluate(policy, memory, "ips", allow_low_overlap=True)
            assert found.values[name].warnings == expected.warnings
    assert any("not eligible" in one for one in found.values["CAF"].warnings)


def test_current_practice_and_a_fixed_action_are_valued_after_learning(folder):
    found = learn_with_holdout(opened(folder, rules=RULES), engine=Here(), **QUICK)
    assert found.value["policy"].n == found.value["best_fixed"].n
    assert found.policy.eligibility.rules == RULES


# The command line ----------------------------------------------------------------------------------------


def test_the_command_line_on_disk_from_log_to_recommendations(folder, logged, here, tmp_path):
    can = logged[1]
    roles = (str(folder), "--action", "drug", "--reward", "well", "--eligible", "can", "--ignore", "p")
    roles += ("--never", RULES[0], "--engine", "local", "--workers", "1")
    told = here("check", *roles)
    assert f"in {can[:, 1].sum():,} rows ({can[:, 1].mean():.1%})" in told.stdout
    learned = here("learn", *roles, "--method", "ponn-b", "--out", "p.ponn", "--set", "epochs=3", "--json")
    assert learned.returncode == 0, learned.stderr
    again = here("evaluate", "p.ponn", str(folder), "--engine", "local", "--json", "--allow-low-overlap")
    assert json.loads(again.stdout)["value"] == json.loads(learned.stdout)["value"]["policy"]["value"]
    advised = here("recommend", "p.ponn", str(folder), "--engine", "local", "--out", "advice")
    assert advised.returncode == 0, advised.stderr
    first = pq.read_table(tmp_path / "advice")["action"].to_numpy()
    assert can[np.arange(3_000), np.searchsorted(LABELS, first)].all()


def test_a_directory_read_lazily_knows_what_is_eligible(folder):
    found = ponn.read_log(folder, lazy=True, **ROLES, ignore=["p", "can"], rules=RULES)
    assert isinstance(found, ShardedLog)
    with pytest.raises(PonnError, match="Subgroups"):
        ponn.read_log(folder, lazy=True, **ROLES, keep=["age"])
