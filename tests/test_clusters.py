"""Ray and Spark find what local processes find, also when a worker is killed. Real ones, on this machine."""

import importlib.util
import os
import shutil
import sys

import numpy as np
import pytest

from ponn import anysize
from ponn.clusters import OnRay, OnSpark
from ponn.encode import Encoding
from ponn.engine import Here, Passes, map_shards
from ponn.errors import LogError, PonnError
from ponn.settings import Settings
from ponn.shard_evaluation import compare_sharded
from ponn.shard_steps import Practice, fit_practice, shard_relevance
from ponn.sharded import read_sharded
from test_engine import SHARDS, Mistaken, Squares, calls, xs
from test_sharded import names, table, write

MISSING = {
    "ray": "" if importlib.util.find_spec("ray") else "ray is not installed: pip install 'ponn[cluster]'",
    "spark": "" if importlib.util.find_spec("pyspark") and shutil.which("java") else "pyspark or Java is not installed",
}


@pytest.fixture(
    scope="module", params=[pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in ("ray", "spark")]
)  # a group runs in one process: one Ray and one Spark for all tests
def cluster(request):
    if MISSING[request.param]:
        pytest.skip(MISSING[request.param])
    with pytest.MonkeyPatch.context() as patch:  # workers find the modules of the tests
        patch.setenv("PYTHONPATH", os.pathsep.join(one for one in sys.path if one))
        engine = anysize.engine_of(request.param, workers=2)
        yield engine
        engine.close()


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
        policy = anysize.learn(known, "logging", engine=Here())
        values = [compare_sharded({"p": policy}, known, encoding, Passes(one)).values["p"] for one in (cluster, Here())]
        assert values[0] == values[1]


def test_missing_packages_are_told_with_the_line_that_installs_them(monkeypatch):
    for name, engine, extra in (("ray", OnRay, "cluster"), ("pyspark.sql", OnSpark, "spark")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(PonnError, match=rf"pip install 'ponn\[{extra}\]'"):
            engine()
    with pytest.raises(PonnError, match="expected local, ray or spark"):
        anysize.engine_of("dask")
