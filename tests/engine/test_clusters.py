"""Ray and Spark find what local processes find, also when a worker is killed. Real ones, on this machine.

The Makefile gives a file to one process, so that one Ray and one Spark serve all tests.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest

from faults import Deadly, Killing
from logs_on_disk import names, table, write
from ponn.engine.choice import engine_of
from ponn.engine.clusters import OnRay, OnSpark
from ponn.engine.passes import Here, Passes, map_shards
from ponn.errors import LogError, PonnError
from ponn.evaluation.shard_evaluation import compare_sharded
from ponn.learning.learn import learn, learn_with_holdout
from ponn.log.encoding import Encoding
from ponn.log.reading import read_log
from ponn.log.sharded import read_sharded
from ponn.policy.directories import recommend_directory
from ponn.settings import Settings
from ponn.steps.shard_steps import Practice, fit_practice, shard_relevance
from ponn.training.launch import Folder, Trainers
from resumed_runs import assert_same, check_that_a_killed_driver_goes_on
from traced_work import SHARDS, Mistaken, Squares, calls, xs
from training_problems import TWELVE_EPOCHS, same_bits, streamed

MISSING = {
    "ray": "" if importlib.util.find_spec("ray") else "ray is not installed: pip install 'ponn-policy[cluster]'",
    "spark": "" if importlib.util.find_spec("pyspark") and shutil.which("java") else "pyspark or Java is not installed",
}


@pytest.fixture(scope="module")
def workers_find_tests():
    """Workers find the modules of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(one for one in sys.path if one))
        yield


def started(name):
    if MISSING[name]:
        pytest.skip(MISSING[name])
    engine = engine_of(name, workers=2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def ray(workers_find_tests):
    yield from started("ray")


@pytest.fixture(scope="module")
def spark(workers_find_tests):
    yield from started("spark")


@pytest.fixture(params=["ray", "spark"])
def cluster(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("log") / "log", table(3_000), 3)


def opened(path, engine, **roles):
    return read_sharded(path, Passes(engine), shard_rows=700, **names(**roles))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
class TestOnClusters:
    def test_results_come_in_shard_order(self, cluster, tmp_path):
        assert np.array_equal(xs(map_shards(Squares(str(tmp_path)), SHARDS, engine=cluster)), np.arange(80) ** 2)

    def test_a_killed_worker_is_replaced(self, cluster, tmp_path):
        found = xs(map_shards(Squares(str(tmp_path), fatal=(30,)), SHARDS, engine=cluster))
        assert np.array_equal(found, np.arange(80) ** 2)
        assert calls(tmp_path).count(30) == 2

    def test_mistakes_of_users_arrive_as_such(self, cluster):
        with pytest.raises(LogError, match="row 31 is wrong"):
            list(map_shards(Mistaken("user"), SHARDS, engine=cluster))

    def test_steps_and_values_are_those_of_one_process(self, cluster, folder):
        disk, expected = opened(folder, cluster), opened(folder, Here())
        assert disk.survey == expected.survey
        encoding = Encoding.fit(expected.sample.log)
        there, here = (fit_practice(expected, encoding, Passes(one), Settings()) for one in (cluster, Here()))
        assert np.array_equal(there.theta, here.theta)
        known = opened(folder, Here(), propensity="known", ignore=["person", "day", "heavy"])
        practice = Practice(None, np.inf, 0)
        tallies = [shard_relevance(known, encoding, practice, Passes(one), Settings())[0] for one in (cluster, Here())]
        assert np.array_equal(tallies[0].G, tallies[1].G)
        assert np.array_equal(tallies[0].levels.M2, tallies[1].levels.M2)
        policy = learn(known, "logging", engine=Here())
        values = [compare_sharded({"p": policy}, known, encoding, Passes(one)).values["p"] for one in (cluster, Here())]
        assert values[0] == values[1]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
class TestFaultsOnRay:
    def test_a_killed_worker_changes_nothing(self, ray, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("PONN_RUNS", str(tmp_path / "runs"))
        steps = ("LoggingSums", "TallySums", "ContributingRows", "ValueSums", "Scoring")
        engine = Killing(ray, steps, tmp_path)
        disk, quick = opened(folder, Here()), {"method": "ponn-b", "hidden": (4,), "epochs": 2}
        expected, found = (learn_with_holdout(disk, engine=one, **quick) for one in (Here(), engine))
        assert_same(expected, found, 0.0)
        recommend_directory(found.policy, folder, tmp_path / "out", Passes(engine))
        assert len(pq.read_table(tmp_path / "out")) == 3_000
        assert all((tmp_path / step).exists() for step in steps)

    def test_a_killed_driver_goes_on_where_it_was(self, ray, folder, tmp_path, monkeypatch):
        from ray import get_runtime_context

        monkeypatch.setenv("PONN_RUNS", str(tmp_path / "runs"))
        address = get_runtime_context().gcs_address
        check_that_a_killed_driver_goes_on(folder, tmp_path, "--engine", "ray", "--address", address)

    def test_a_killed_trainer_changes_nothing(self, ray, folder, tmp_path):
        roles = names(propensity="known", ignore=["person", "day", "heavy"])
        disk = read_sharded(folder, Passes(Here()), shard_rows=400, **roles)
        there = Folder(tmp_path / "there")
        deadly = partial(Deadly, state=str(there.state.path), trace=str(tmp_path / "trace"))
        found = Trainers(2, ray, there)(*streamed(disk, TWELVE_EPOCHS, deadly))
        assert (tmp_path / "trace").exists()
        assert same_bits(found, Trainers(2, Here(), Folder(tmp_path / "here"))(*streamed(disk, TWELVE_EPOCHS)))
        with pytest.raises(PonnError, match="99 processes were asked for"):
            Trainers(99, ray, there)(*streamed(disk, TWELVE_EPOCHS))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
class TestSparkFrames:
    ROLES = names(propensity="known", ignore=["person", "day", "heavy"])

    def test_a_frame_is_learned_from_and_valued_like_its_files(self, spark, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("PONN_RUNS", str(tmp_path / "runs"))
        frame = spark.session.read.parquet(str(folder)).coalesce(2)
        files = tmp_path / "files"
        frame.write.parquet(str(files))  # the frame's own order of rows
        disk, found = opened(files, Here(), **self.ROLES), read_log(frame, **self.ROLES)
        assert len(found) == len(disk) == 3_000
        assert found.notes == disk.notes
        quick = {"method": "ponn-b", "hidden": (4,), "epochs": 2}
        here, there = (learn_with_holdout(one, engine=Here(), **quick) for one in (disk, found))
        np.testing.assert_allclose(
            [one.relevance for one in there.policy.relevance], [one.relevance for one in here.policy.relevance], 1e-10
        )
        for name, estimate in here.value.items():
            assert there.value[name].value == pytest.approx(estimate.value, rel=1e-4)  # trained in single precision
        policy = here.policy
        values = [
            compare_sharded({"p": policy}, one, policy.encoding, Passes(one.holder or Here())).values["p"]
            for one in (disk, found)
        ]
        assert values[1].value == pytest.approx(values[0].value, rel=1e-10)
        assert values[1].standard_error == pytest.approx(values[0].standard_error, rel=1e-10)

    def test_step_a_and_streams_of_a_frame(self, spark, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("PONN_RUNS", str(tmp_path / "runs"))
        monkeypatch.setattr("ponn.training.shard_training.MEMORY_CELLS", 1_000)
        monkeypatch.setattr("ponn.training.shard_training.BUFFER_CELLS", 2_400)
        frame = spark.session.read.parquet(str(folder)).coalesce(2)
        files = tmp_path / "files"
        frame.write.parquet(str(files))
        limits = {"rules": ["c if few == 3"], "drop_ineligible": True}
        disk, found = opened(files, Here(), **limits), read_log(frame, **names(**limits))
        assert found.notes == disk.notes
        assert len(found) == len(disk) < 3_000
        encoding = Encoding.fit(disk.sample.log)
        there, here = (fit_practice(one, encoding, Passes(one.holder or Here()), Settings()) for one in (found, disk))
        np.testing.assert_allclose(there.theta, here.theta, rtol=1e-8, atol=1e-10)
        policy = learn(found, "ponn-b", hidden=(4,), epochs=2, batch=32)
        assert "Step C of streamed rows" in [one["step"] for one in policy.provenance["passes"]]

    def test_a_frame_that_changes_is_noticed(self, spark, folder):
        frame = spark.session.read.parquet(str(folder)).coalesce(2)
        found = read_log(frame, **names())
        wrong = tuple(replace(one, rows=one.rows + 1) for one in found.shards)
        with pytest.raises(PonnError, match="not the same each time"):
            replace(found, shards=wrong).fit_encoding(Passes(found.holder), Settings())
        with pytest.raises(LogError, match="reward"):
            read_log(frame, **names(reward="word"))


THROUGH_CONNECT = """
import json, sys
from pyspark.sql import SparkSession
from logs_on_disk import names
from ponn.log.reading import read_log
from ponn.engine.clusters import OnSpark
from ponn.engine.passes import Passes
from ponn.log.sharded import read_sharded

session = SparkSession.builder.remote("local[2]").getOrCreate()
frame = session.read.parquet(sys.argv[1]).coalesce(1)
assert type(frame).__module__.startswith("pyspark.sql.connect")
log = read_log(frame, **names())
theirs = read_sharded(sys.argv[1], Passes(OnSpark()), shard_rows=700, **names())
print(json.dumps([{str(action): one for action, one in found.survey.actions.items()} for found in (log, theirs)]))
"""


@pytest.mark.skipif(bool(MISSING["spark"]), reason=MISSING["spark"])
def test_spark_connect(folder, tmp_path):
    """In a process of its own, as a process has either Spark or its Connect client."""
    paths = os.pathsep.join(one for one in sys.path if one)
    environment = os.environ | {"PYTHONPATH": paths, "PONN_RUNS": str(tmp_path)}
    command = [sys.executable, "-c", THROUGH_CONNECT, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = {action: list(one) for action, one in opened(folder, Here()).survey.actions.items()}
    assert json.loads(done.stdout.splitlines()[-1]) == [expected, expected]


def test_missing_packages_are_told_with_the_line_that_installs_them(monkeypatch):
    for name, engine, extra in (("ray", OnRay, "cluster"), ("pyspark.sql", OnSpark, "spark")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(PonnError, match=rf"pip install 'ponn-policy\[{extra}\]'"):
            engine()
    with pytest.raises(PonnError, match="expected local, ray or spark"):
        engine_of("dask")
