"""Logs that are named by a URI: read where they are, with the same answers."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import ponn
from logs_on_disk import names, table, write
from ponn.engine.passes import Here, Passes
from ponn.errors import PonnError
from ponn.learning.learn import learn, learn_with_holdout
from ponn.log.reading import is_large
from ponn.log.shards import directory_digest, find_pieces
from ponn.policy.directories import recommend_directory
from ponn.tables import remote


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """An object store: pyarrow's file system over a folder, under a scheme of its own."""
    monkeypatch.setenv("PONN_RUNS", str(tmp_path / "runs"))
    store = SubTreeFileSystem(str(tmp_path / "store"), LocalFileSystem())
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    monkeypatch.setattr(remote, "filesystem", lambda root: (store, root.removeprefix("memory://")))
    return tmp_path / "store" / "bucket"


def test_a_uri_is_read_where_it_is(bucket, tmp_path):
    write(bucket / "log", table(2_000), 2)
    disk, there = (ponn.read_log(one, engine=Here(), **names()) for one in (bucket / "log", "memory://bucket/log/"))
    assert is_large("memory://bucket/log")  # however small it is, it stays there
    assert there.survey == disk.survey
    assert there.digest == disk.digest == directory_digest(bucket / "log")
    quick = {"method": "ponn-b", "engine": Here(), "hidden": (4,), "epochs": 2}
    here, found = (learn_with_holdout(one, **quick) for one in (disk, there))
    assert found.value == here.value
    assert ponn.check("memory://bucket/log", engine=Here(), **names()).rows == 2_000
    recommend_directory(found.policy, "memory://bucket/log", tmp_path / "out", Passes(Here()))
    expected = found.policy.predict(pq.read_table(bucket / "log"))
    assert np.array_equal(pq.read_table(tmp_path / "out")["action"].to_numpy(zero_copy_only=False), expected)


def test_folders_and_hidden_files_as_on_disk(bucket):
    (bucket / "log" / "_temporary").mkdir(parents=True)
    for year in (2024, 2025):
        write(bucket / "log" / f"year={year}", table(300, seed=year), 1)
    (bucket / "log" / "_temporary" / "half.parquet").write_bytes(b"half")
    disk, there = (find_pieces(place) for place in (bucket / "log", "memory://bucket/log"))
    assert [one.folders for one in there] == [one.folders for one in disk]
    assert [one.stamp for one in there] == [one.stamp for one in disk]
    assert there[0].file == "memory://bucket/log/year=2024/part-00.parquet"


def test_a_file_that_vanishes_is_named_by_its_uri(bucket):
    write(bucket / "log", table(600), 2)
    found = ponn.read_log("memory://bucket/log", engine=Here(), **names())
    (bucket / "log" / "part-01.parquet").unlink()
    with pytest.raises(PonnError, match=r"memory://bucket/log/part-01\.parquet could not be read"):
        learn(found, engine=Here())


def test_a_file_uri_is_a_path(bucket):
    path = write(bucket / "my log", table(300), 1)
    found = ponn.read_log(path.as_uri(), **names())
    assert isinstance(found, ponn.Log)
    assert found.digest == ponn.read_log(path, **names()).digest


def test_what_cannot_be_opened_is_told(bucket, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(PonnError, match=r"nothing://there cannot be opened.*s3://bucket/folder"):
        ponn.read_log("nothing://there/log", **names())


def test_a_single_remote_file_is_refused(bucket):
    write(bucket / "log", table(300), 1)
    for wrong in ({"source": "memory://bucket/log/part-00.parquet"}, {"source": "memory://bucket/log", "lazy": False}):
        with pytest.raises(PonnError, match="expected the URI of a folder"):
            ponn.read_log(wrong.pop("source"), **wrong, **names())
