"""Logs of any size from end to end: the same answers wherever shards run and however they are cut, whatever dies."""

import json
import os
import resource
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ponn
from logs_on_disk import names, table, write
from ponn.engine.passes import Here, Local, Passes
from ponn.errors import PonnError
from ponn.evaluation.evaluate import draws, evaluate, worth
from ponn.evaluation.shard_evaluation import compare_sharded
from ponn.evaluation.valuation import FixedAction, Sampled, compare_policies, nuisances, value_on
from ponn.learning.holdout import valued
from ponn.learning.learn import compare_methods, learn, learn_with_holdout
from ponn.log.reading import read_log
from ponn.log.sharded import read_sharded
from ponn.methods import DEFAULT_METHOD
from ponn.policy.batches import Asked
from ponn.policy.directories import recommend_directory
from ponn.policy.policy import Policy
from ponn.steps.shard_steps import fit_practice, shard_relevance
from resumed_runs import assert_same, check_that_a_killed_driver_goes_on

QUICK = {"hidden": (4,), "epochs": 3}


@pytest.fixture(autouse=True)
def own_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PONN_RUNS", str(tmp_path / "runs"))


@pytest.fixture(scope="module")
def source():
    return table(4_000)


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    return write(tmp_path_factory.mktemp("log") / "log", source, 4)


@pytest.fixture(scope="module")
def local():
    with Local(2) as engine:
        yield engine


def opened(path, engine=None, rows=1_000, **roles):
    return read_sharded(path, Passes(engine or Here()), shard_rows=rows, **names(**roles))


@pytest.fixture(scope="module")
def outcome(folder, tmp_path_factory):
    """What one process finds."""
    os.environ["PONN_RUNS"] = str(tmp_path_factory.mktemp("runs"))
    return learn_with_holdout(opened(folder), "ponn-b", engine=Here(), **QUICK)


# The same answers ----------------------------------------------------------------------------------------


def test_two_workers_find_what_one_process_finds(folder, outcome, local):
    found = learn_with_holdout(opened(folder, local), "ponn-b", engine=local, **QUICK)
    assert_same(outcome, found, 0.0)
    for name, model in outcome.policy.companions.items():
        for part, array in model.arrays.items():
            assert np.array_equal(found.policy.companions[name].arrays[part], array)


def test_other_shards_of_the_same_rows_give_the_same_answer(source, outcome, tmp_path):
    other = write(tmp_path / "other", source, 3, group=173)
    found = learn_with_holdout(opened(other, rows=700), "ponn-b", engine=Here(), **QUICK)
    assert [one.relevance for one in found.policy.relevance] == pytest.approx(
        [one.relevance for one in outcome.policy.relevance], rel=1e-9
    )
    assert_same(outcome, found, 1e-4)  # training in single precision, from inputs that differ in the last bit


def test_values_are_those_of_the_log_in_memory(folder, outcome):
    """With the propensities known, only the reward models' folds differ; with one fold's models given, nothing does."""
    roles = {"propensity": "known", "weight": "heavy", "ignore": ["person", "day"]}
    memory, disk = read_log(folder, lazy=False, **names(**roles)), opened(folder, **roles)
    policy = outcome.policy
    sides = {"p": policy, "a": FixedAction("a"), "drawn": Sampled(policy)}
    found = compare_sharded(sides, disk, policy.encoding, Passes(Here()))
    fitted = nuisances(memory)
    for name, one in sides.items():
        expected = value_on(one, memory, fitted, "dr", 0.95)
        error = expected.standard_error
        assert found.values[name].value == pytest.approx(expected.value, abs=0.1 * error)  # other folds
        assert found.values[name].standard_error == pytest.approx(error, rel=0.02)
        assert found.values[name].ess == pytest.approx(expected.ess, rel=1e-9)
        reused = "the policy learned from most of these rows"  # said by `evaluate`, not by the sums
        assert found.values[name].warnings == tuple(doubt for doubt in expected.warnings if doubt != reused)


@pytest.mark.parametrize("estimator", ["ips", "snips"])
@pytest.mark.parametrize("group", [None, "person"])
def test_estimators_without_a_reward_model_agree_to_the_last_digits(folder, outcome, estimator, group):
    ignored = ["day"] if group else ["person", "day"]
    roles = {"propensity": "known", "weight": "heavy", "group": group, "ignore": ignored}
    memory, disk = read_log(folder, lazy=False, **names(**roles)), opened(folder, **roles)
    found = compare_sharded({"p": outcome.policy}, disk, outcome.policy.encoding, Passes(Here()), estimator)
    fitted = replace(nuisances(memory), Q=None)
    expected = value_on(outcome.policy, memory, fitted, estimator, 0.95)
    assert found.values["p"].value == pytest.approx(expected.value, rel=1e-10)
    assert found.values["p"].standard_error == pytest.approx(expected.standard_error, rel=1e-10 if not group else 0.02)


def test_evaluation_takes_the_rows_kept_aside(folder, outcome):
    disk = opened(folder)
    again = evaluate(outcome.policy, disk, engine=Here())
    assert again.value == pytest.approx(outcome.value["policy"].value, rel=1e-12)
    assert again.n == outcome.value["policy"].n
    with pytest.raises(PonnError, match="expected dr, sndr, ips, snips or dm"):
        evaluate(outcome.policy, disk, "switch-dr", engine=Here())
    with pytest.raises(PonnError, match="needs the log in memory"):
        evaluate(outcome.policy, disk, interval="bootstrap", engine=Here())


def test_draws_are_valued_beside_recommendations(folder, outcome, monkeypatch):
    """By learning and by evaluation, and the policy is asked once for both."""
    disk, asked = opened(folder), []
    drawn = evaluate(Sampled(outcome.policy), disk, engine=Here())
    assert outcome.value["drawn"] == outcome.worth.drawn == drawn
    assert drawn.ess > outcome.value["policy"].ess
    assert outcome.policy.evaluation["value"]["drawn"]["value"] == drawn.value
    said = Policy.predict_proba
    monkeypatch.setattr(Policy, "predict_proba", lambda self, X: [asked.append(len(X)), said(self, X)][1])
    found = worth(outcome.policy, disk, engine=Here())
    assert (found.drawn, found.policy, sum(asked)) == (drawn, outcome.value["policy"], drawn.n)
    assert worth(Sampled(outcome.policy), disk, engine=Here()).drawn is None


def test_draws_that_are_recommendations_are_not_told_twice(folder, outcome, monkeypatch):
    monkeypatch.setattr(Policy, "predict_proba", lambda self, X: np.eye(len(self.actions))[np.zeros(len(X), int)])
    assert worth(outcome.policy, opened(folder), engine=Here()).drawn is None


def test_draws_have_no_value_on_a_log_that_lacks_an_action(outcome, folder):
    assert draws(outcome.policy, opened(folder))
    other = replace(outcome.policy, actions=(*outcome.policy.actions[:-1], "new"))
    assert not draws(other, opened(folder))


def test_evaluation_of_rows_learned_from_is_doubted_of_draws_too(folder, outcome):
    disk = opened(folder)
    source = {**outcome.policy.provenance["source"], "whole": "", "digest": disk.digest}
    policy = replace(outcome.policy, provenance={**outcome.policy.provenance, "source": source})
    found = worth(policy, disk, engine=Here(), allow_low_overlap=True)
    assert not found.policy.trusted
    assert not found.drawn.trusted


def test_rows_learned_from_are_known_in_other_files(folder, source, outcome, tmp_path):
    """The same rows in another order, and a log of which they are a part, in memory and on disk."""
    order = np.random.default_rng(0).permutation(len(source))
    other = write(tmp_path / "other", source.take(pa.array(order)), 3)
    for log in (opened(other), ponn.read_log(source.take(pa.array(order[:2_000])), **names())):
        found = evaluate(outcome.policy, log, allow_low_overlap=True)
        assert any("the policy learned from about" in one for one in found.warnings)
        assert not found.trusted
    new = write(tmp_path / "new", table(4_000, seed=9), 3)
    assert not any("learned from" in one for one in evaluate(outcome.policy, opened(new)).warnings)


def test_evaluation_reads_the_rows_at_most_three_times(folder, outcome):
    passes = Passes(Here())
    disk = opened(folder, propensity="known", ignore=["person", "day", "heavy"])
    compare_sharded({"p": outcome.policy}, disk, outcome.policy.encoding, passes)
    assert len(passes.done) == 3


def test_methods_are_compared_on_the_same_rows(folder, outcome, monkeypatch):
    told = []
    contest = compare_methods(
        opened(folder), ["ponn-b", "logging"], engine=Here(), progress=lambda *one: told.append(one[0]), **QUICK
    )
    values = contest.comparison.values
    assert values["ponn-b"] == outcome.value["policy"]
    assert values["current practice"] == outcome.value["logging"]
    gain = contest.comparison.differences["ponn-b", "logging"]
    assert gain.value == pytest.approx(values["ponn-b"].value - values["logging"].value, rel=1e-9)
    assert gain.standard_error < values["ponn-b"].standard_error + values["logging"].standard_error  # paired
    assert contest.best == "ponn-b"
    assert "levels (4,000 rows were done before)" in told  # what methods share is done once
    with pytest.raises(PonnError, match="needs the log in memory"):
        compare_methods(opened(folder), ["ponn-b"], interval="bootstrap", engine=Here())


def test_paired_differences_are_those_of_the_log_in_memory(folder, outcome):
    roles = {"propensity": "known", "weight": "heavy", "ignore": ["person", "day"]}
    memory, disk = read_log(folder, lazy=False, **names(**roles)), opened(folder, **roles)
    sides = {"p": outcome.policy, "a": FixedAction("a")}
    found = compare_sharded(sides, disk, outcome.policy.encoding, Passes(Here()), "ips").differences["p", "a"]
    expected = compare_policies(sides, memory, "ips").differences["p", "a"]
    for part in ("value", "low", "high", "standard_error"):
        assert getattr(found, part) == pytest.approx(getattr(expected, part), rel=1e-9)


@pytest.mark.parametrize(("minimize", "kind"), [(False, "not enough evidence"), (True, "better")])
def test_the_gain_over_the_best_single_action_is_that_of_the_log_in_memory(folder, minimize, kind):
    """The propensities known, the same rows: only the reward models' folds differ."""
    roles = {"propensity": "known", "ignore": ["person", "day", "heavy"], "minimize": minimize}
    disk = opened(folder, **roles)
    found = learn_with_holdout(disk, "ponn-b", engine=Here(), **QUICK)
    gain = found.over_best_fixed
    kept = disk.split(0.7, 0)[1]
    sides = {"better": found.policy, "worse": FixedAction(found.best_fixed)}
    sides = dict(reversed(sides.items())) if minimize else sides
    (same,) = compare_sharded(sides, kept, found.policy.encoding, Passes(Here()), level=0.9).differences.values()
    for part in ("value", "low", "high", "standard_error", "ess"):
        assert getattr(gain, part) == pytest.approx(getattr(same, part), rel=1e-12)
    expected = valued(found.policy, found.best_fixed, kept.sample.log, 0.95, 0).over_best_fixed  # all rows are sampled
    # In memory alone, the folds of 8 seeds moved the value by up to 0.14 standard errors and the width by up to 3 %.
    assert gain.value == pytest.approx(expected.value, abs=0.25 * expected.standard_error)
    assert gain.high - gain.low == pytest.approx(expected.high - expected.low, rel=0.06)
    assert (gain.level, gain.n, gain.ess) == pytest.approx((0.9, expected.n, expected.ess))
    told = found.policy.evaluation["over_best_fixed"]
    assert (told["value"], told["verdict"]) == (gain.value, kind)


def test_small_directories_are_read_into_memory(folder, monkeypatch):
    assert isinstance(ponn.read_log(folder, **names()), ponn.Log)
    assert isinstance(ponn.read_log(folder, lazy=True, **names()), ponn.ShardedLog)
    monkeypatch.setattr("ponn.log.reading.SMALL_BYTES", 1_000)
    assert isinstance(ponn.read_log(folder, **names()), ponn.ShardedLog)
    assert isinstance(ponn.read_log(folder, lazy=False, **names()), ponn.Log)
    with pytest.raises(PonnError, match="lazy=True is for directories"):
        ponn.read_log(folder / "part-00.parquet", lazy=True, **names())


def test_check_counts_all_rows(folder):
    found, expected = (ponn.check(folder, engine=engine, **names()) for engine in (Here(), None))
    assert found.rows == expected.rows
    assert found.actions == expected.actions
    assert [one.missing for one in found.features] == [one.missing for one in expected.features]
    assert found.ready
    assert any("random sample" in note for note in found.notes)
    wrong = ponn.check(folder, engine=Here(), **names(reward="same"))
    assert not wrong.ready
    assert "never varies" in wrong.why


# Methods -------------------------------------------------------------------------------------------------


def test_rows_that_do_not_fit_are_streamed(folder, monkeypatch):
    monkeypatch.setattr("ponn.training.shard_training.MEMORY_CELLS", 1_000)
    monkeypatch.setattr("ponn.training.shard_training.BUFFER_CELLS", 2_400)
    quick = {"hidden": (4,), "epochs": 60, "batch": 32, "learning_rate": 0.01}
    policy = learn(opened(folder), "ponn-b", engine=Here(), hidden=(4,), epochs=60, batch=32, learning_rate=0.01)
    assert policy.provenance["training"]["epochs"] > 10
    steps = [one["step"] for one in policy.provenance["passes"]]
    assert "Step C of streamed rows" in steps
    monkeypatch.undo()
    whole = learn(opened(folder), "ponn-b", engine=Here(), **quick)
    streamed, direct = (one.provenance["training"]["valid_loss"] for one in (policy, whole))
    assert streamed == pytest.approx(direct, rel=0.02)


def test_a_stream_gives_every_contributing_row_once_per_pass(folder):
    from ponn.log.encoding import Encoding
    from ponn.steps.shard_steps import ContributingRows, Practice
    from ponn.training.shard_training import RowStream, interleaved
    from ponn.training.team import Team

    disk = opened(folder, propensity="known", ignore=["person", "day", "heavy"], rows=400)
    encoding = Encoding.fit(disk.sample.log)
    work = ContributingRows(disk.reader, encoding, Practice(None, np.inf, 0), True, False, 1.0)
    rewarded = np.concatenate([one.log.R for shard in disk.shards for one in disk.reader.batches(shard)]).sum()
    stream = RowStream(partial(interleaved, disk.shards, work, 0, Team()), 100)
    seen = [stream.take() for _ in range(int(2 * rewarded // 100))]
    stream.close()
    assert {len(one) for one in seen} == {100}
    rows = np.concatenate([one.X for one in seen])
    _, counts = np.unique(rows.round(5), axis=0, return_counts=True)
    assert (counts == 2).mean() > 0.9  # all but those of the unfinished second pass
    expected = np.concatenate([work(shard)["X"] for shard in disk.shards])
    assert set(map(bytes, rows)) <= set(map(bytes, expected))
    assert not np.array_equal(rows[:1_000], expected[:1_000])


@pytest.mark.parametrize("method", ["lr-l1", "logging", "direct-forest", "banditnet"])
def test_other_methods_work_on_disk(folder, method, monkeypatch):
    monkeypatch.setattr("ponn.log.sharded.SAMPLE_ROWS", 1_000)
    changes = {"trees": 5} if "forest" in method else {"epochs": 2, "hidden": (3,)} if method == "banditnet" else {}
    policy = learn(opened(folder), method, engine=Here(), **changes)
    notes = " ".join(policy.provenance["notes"])
    assert ("sample" in notes) == (method != "banditnet")
    rows = policy.provenance["rows"]
    assert (sum(rows.values()) < 1_500) == (method != "banditnet")
    assert policy.predict(table(50, seed=5)).shape == (50,)


def test_tuning_tries_the_grid_on_the_sample(folder):
    policy = learn(opened(folder), "poem", tune=True, engine=Here(), epochs=2, learning_rate=0.01)
    assert policy.provenance["candidates"] == 5


# What dies -----------------------------------------------------------------------------------------------


class Deadly:
    """Local processes, of which one is killed in the middle of every named step."""

    def __init__(self, inner, steps):
        self.inner, self.steps, self.killed = inner, set(steps), []

    def run(self, work, shards):
        step = type(work).__name__
        results = self.inner.run(work, shards)
        if step in self.steps:
            self.steps.remove(step)
            first = next(results)
            os.kill(self.inner.workers[0].process.pid, signal.SIGKILL)
            self.killed.append(step)
            yield first
        yield from results

    def close(self):
        """The inner engine is closed by its owner."""


def test_a_killed_worker_changes_nothing(folder, outcome, local):
    engine = Deadly(local, ("Summarising", "LoggingSums", "TallySums", "RewardSums", "ContributingRows", "ValueSums"))
    found = learn_with_holdout(opened(folder, local), "ponn-b", engine=engine, **QUICK)
    assert not engine.steps
    assert_same(outcome, found, 0.0)


def test_the_default_method_on_disk_is_that_in_memory(folder, monkeypatch):
    monkeypatch.setattr("ponn.log.sharded.SAMPLE_ROWS", 600)
    policy = learn(opened(folder), engine=Here(), select="fdr", trees=3, epochs=1, hidden=(4,), folds=2)
    assert policy.method == DEFAULT_METHOD
    assert "random sample" in policy.provenance["notes"][-1]


def test_a_killed_driver_goes_on_where_it_was(folder, tmp_path):
    check_that_a_killed_driver_goes_on(folder, tmp_path, "--workers", "1")


def test_a_damaged_shard_is_named_and_mended_without_doing_the_rest_again(source, tmp_path):
    path = write(tmp_path / "log", source, 4)
    disk, file = opened(path), path / "part-02.parquet"
    passes = Passes(Here(), tmp_path / "run")
    content, stat = file.read_bytes(), file.stat()
    damaged = bytearray(content)
    damaged[100:20_000] = bytes(19_900)
    file.write_bytes(damaged)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(PonnError, match=r"part-02\.parquet"):
        disk.fit_encoding(passes, ponn.Settings())
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = Passes(Here(), tmp_path / "run")
    disk.fit_encoding(again, ponn.Settings())
    assert again.done[0].resumed == 2_000


def test_a_full_disk_is_told_and_loses_nothing(folder, outcome, tmp_path):
    """A limit on the size of files stands for a full disk: writing fails in the same place."""
    disk, passes = opened(folder), Passes(Here(), tmp_path / "run")
    encoding = disk.fit_encoding(passes, ponn.Settings())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        with pytest.raises(PonnError, match=r"could not be kept in .*run.*Make room"):
            shard_relevance(
                disk, encoding, fit_practice(disk, encoding, passes, ponn.Settings()), passes, ponn.Settings()
            )
        with pytest.raises(PonnError, match=r"part-00\.parquet"):
            recommend_directory(outcome.policy, folder, tmp_path / "out", Passes(Here()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    again = Passes(Here(), tmp_path / "run")
    fit_practice(disk, disk.fit_encoding(again, ponn.Settings()), again, ponn.Settings())
    assert [one.resumed for one in again.done if one.step == "levels"] == [4_000]
    assert not list((tmp_path / "out").glob("*"))
    recommend_directory(outcome.policy, folder, tmp_path / "out", Passes(Here()))
    assert len(pq.read_table(tmp_path / "out")) == 4_000


# Recommending --------------------------------------------------------------------------------------------


def test_a_directory_is_answered_by_a_directory(folder, outcome, local, tmp_path):
    asked = Asked(keep=("number",), sample=True, seed=4)
    done = recommend_directory(outcome.policy, folder, tmp_path / "out", Passes(local), asked)
    assert done.rows == 4_000
    found = pq.read_table(tmp_path / "out")
    expected = outcome.policy.recommend(pq.read_table(folder), sample=True, seed=4)
    assert found["number"].to_pylist() == pq.read_table(folder)["number"].to_pylist()
    assert found["action"].to_pylist() == expected["action"].to_pylist()
    np.testing.assert_allclose(found["probability"], expected["probability"], rtol=1e-5)
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == [f"part-0{one}.parquet" for one in range(4)]


def test_support_is_counted_over_all_files(folder, outcome, local, tmp_path):
    logging, rows = outcome.policy.companions["logging"], pq.read_table(folder)
    wanted = outcome.policy.actions.index(outcome.policy.predict(rows)[0])
    rare = {**logging.arrays, "c": logging.arrays["c"] - np.float32(30) * (np.arange(logging.k) == wanted)}
    careful = replace(
        outcome.policy, companions={**outcome.policy.companions, "logging": replace(logging, arrays=rare)}
    )
    unsupported = careful.recommend(rows)["supported"].to_pylist().count(False)
    assert unsupported > 0
    for only, counts in ((False, (unsupported, 0, 0)), (True, (0, unsupported, 0))):
        done = recommend_directory(careful, folder, tmp_path / str(only), Passes(local), Asked(supported_only=only))
        assert (done.unsupported, done.restricted, done.fell_back) == counts
    told = recommend_directory(careful, folder, tmp_path / "a", Passes(local), Asked(columns=("action",)))
    assert told.unsupported is None


def test_only_missing_answers_are_made_again(folder, outcome, local, tmp_path):
    out = tmp_path / "out"
    engine = Deadly(local, ("Scoring",))
    recommend_directory(outcome.policy, folder, out, Passes(engine))
    before = {one.name: one.stat().st_mtime_ns for one in out.iterdir()}
    (out / "part-01.parquet").unlink()
    (out / "part-03.parquet").write_bytes(b"PAR1 half a file")
    recommend_directory(outcome.policy, folder, out, Passes(local))
    changed = {one.name for one in out.iterdir() if one.stat().st_mtime_ns != before[one.name]}
    assert changed == {"part-01.parquet", "part-03.parquet"}
    assert len(pq.read_table(out)) == 4_000
    recommend_directory(outcome.policy, folder, out, Passes(local), Asked(probabilities=True))  # asked otherwise
    assert "p_a" in pq.read_table(out).column_names
    (out / "other.parquet").write_bytes((out / "part-00.parquet").read_bytes())
    with pytest.raises(PonnError, match=r"holds other Parquet files, 'other\.parquet'"):
        recommend_directory(outcome.policy, folder, out, Passes(local))


def test_on_the_command_line(folder, here, tmp_path):
    policy = tmp_path / "p.ponn"
    roles = (
        "--action",
        "action",
        "--reward",
        "reward",
        *(f"--ignore={one}" for one in ("person", "day", "heavy", "known")),
    )
    learned = here(
        "learn",
        folder,
        *roles,
        "--workers",
        "2",
        "--method",
        "ponn-b",
        "--set",
        "hidden=(4,)",
        "--out",
        policy,
        "--json",
    )
    assert learned.returncode == 0, learned.stderr
    answer = json.loads(learned.stdout)
    assert answer["rows"] == 4_000
    assert "Step B: " in learned.stderr  # where the time went
    valued = here("evaluate", policy, folder, "--workers", "2", "--json")
    assert valued.returncode == 0, valued.stderr
    assert json.loads(valued.stdout)["value"] == pytest.approx(answer["value"]["policy"]["value"], rel=1e-12)
    scored = here("recommend", policy, folder, "--workers", "2", "--out", tmp_path / "out")
    assert "4,000 rows" in scored.stderr
    assert pa.concat_tables([pq.read_table(one) for one in sorted((tmp_path / "out").iterdir())]).num_rows == 4_000


def test_what_needs_rows_in_memory_says_so(folder, outcome):
    disk, policy = opened(folder), outcome.policy
    needs = "needs the rows of a log in memory and was given a ShardedLog"
    for ask in (
        lambda: ponn.value_by_group(policy, disk, "word"),
        lambda: ponn.hidden_confounding(policy, disk),
        lambda: ponn.write_report(policy, disk, "r.html"),
        lambda: ponn.Encoding.fit(disk),
    ):
        with pytest.raises(PonnError, match=needs):
            ask()
    with pytest.raises(PonnError, match=r"The parameter 2 belongs to estimators that need the log in memory"):
        ponn.evaluate(policy, disk, parameter=2.0)
    with pytest.raises(PonnError, match=r"The value of subgroups .*word.* needs the rows of the log in memory"):
        learn_with_holdout(disk, "ponn-b", engine=Here(), by=["word"], **QUICK)


def test_workers_of_a_log_on_disk_are_those_of_its_passes(folder, monkeypatch):
    asked = []

    def counted(workers=None):
        asked.append(workers)
        return Here()

    monkeypatch.setattr("ponn.engine.choice.Local", counted)
    learn(opened(folder), "ponn-b", workers=3, **QUICK)
    learn_with_holdout(opened(folder), "ponn-b", workers=1, **QUICK)
    assert asked == [3, 1]
