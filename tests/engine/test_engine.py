"""Passes over shards: order, resuming, workers that die, results that are damaged, errors that come from afar."""

from dataclasses import replace

import numpy as np
import pytest

import ponn.engine.passes
from ponn.engine.passes import Here, Kept, Local, Passes, WorkerError, digest, map_shards, pack, unpack
from ponn.errors import LogError, PonnError
from ponn.storage import write_whole
from traced_work import SHARDS, Mistaken, Squares, calls, xs


@pytest.fixture(scope="module")
def local():
    with Local(2) as engine:
        yield engine


def test_results_come_in_shard_order_however_long_each_takes(local, tmp_path):
    slow_first = list(map_shards(Squares(str(tmp_path), slow=0.3), SHARDS, engine=local))
    assert np.array_equal(xs(slow_first), np.arange(80) ** 2)
    assert len({int(one["pid"]) for one in slow_first}) == 2  # both workers had a share
    assert np.array_equal(xs(map_shards(Squares(str(tmp_path)), SHARDS, engine=Here())), np.arange(80) ** 2)


def test_a_worker_that_dies_is_replaced_and_its_shard_done_again(local, tmp_path):
    found = xs(map_shards(Squares(str(tmp_path), fatal=(20, 70)), SHARDS, engine=local))
    assert np.array_equal(found, np.arange(80) ** 2)
    assert calls(tmp_path).count(20) == calls(tmp_path).count(70) == 2
    assert len(local.workers) <= 2


def test_a_shard_that_kills_every_worker_is_named_and_the_rest_is_kept(local, tmp_path):
    (tmp_path / "traces").mkdir()
    deadly = Squares(str(tmp_path / "traces"), fatal=(70,), deaths=9)
    kept = Kept(tmp_path / "kept")
    with pytest.raises(PonnError, match=r"3 workers died .* numbers from 70"):
        list(map_shards(deadly, SHARDS, engine=local, kept=kept))
    assert len(list((tmp_path / "kept").iterdir())) == 7


def test_an_idle_worker_that_was_killed_is_replaced_too(tmp_path):
    with Local(1) as engine:
        list(map_shards(Squares(str(tmp_path)), SHARDS[:1], engine=engine))
        engine.workers[0].process.kill()
        engine.workers[0].process.wait()
        assert np.array_equal(xs(map_shards(Squares(str(tmp_path)), SHARDS, engine=engine)), np.arange(80) ** 2)


def test_a_stopped_pass_goes_on_where_it_was(local, tmp_path):
    (tmp_path / "traces").mkdir()
    work, kept = Squares(str(tmp_path / "traces")), Kept(tmp_path / "kept")
    results = map_shards(work, SHARDS, engine=Here(), kept=kept)
    for _ in range(3):
        next(results)
    results.close()
    assert calls(tmp_path / "traces") == [0, 10, 20]
    assert np.array_equal(xs(map_shards(work, SHARDS, engine=local, kept=kept)), np.arange(80) ** 2)
    assert calls(tmp_path / "traces") == [0, 10, 20, 30, 40, 50, 60, 70]


def test_a_damaged_result_is_made_again(tmp_path):
    (tmp_path / "traces").mkdir()
    work, kept = Squares(str(tmp_path / "traces")), Kept(tmp_path / "kept")
    list(map_shards(work, SHARDS, kept=kept))
    path = kept.path(SHARDS[4])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    kept.path(SHARDS[5]).write_bytes(b"")
    assert np.array_equal(xs(map_shards(work, SHARDS, kept=kept)), np.arange(80) ** 2)
    assert calls(tmp_path / "traces").count(40) == calls(tmp_path / "traces").count(50) == 2
    assert calls(tmp_path / "traces").count(0) == 1


def test_a_disk_that_is_full_is_told_and_what_is_done_stays(tmp_path, monkeypatch):
    (tmp_path / "traces").mkdir()
    work, kept = Squares(str(tmp_path / "traces")), Kept(tmp_path / "kept")
    real, room = write_whole, [4]

    def small_disk(path, content):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(ponn.engine.passes, "write_whole", small_disk)
    with pytest.raises(PonnError, match=r"numbers from 40 could not be kept .*No space left.*PONN_RUNS"):
        list(map_shards(work, SHARDS, kept=kept))
    monkeypatch.undo()
    assert [one.suffix for one in (tmp_path / "kept").iterdir()] == [".part"] * 4
    list(map_shards(work, SHARDS, kept=kept))
    assert calls(tmp_path / "traces") == [0, 10, 20, 30, 40, 40, 50, 60, 70]


def test_errors_of_workers_arrive_as_what_they_are(local):
    with pytest.raises(LogError, match="row 31 is wrong"):
        list(map_shards(Mistaken("user"), SHARDS, engine=local))
    with pytest.raises(WorkerError, match="ZeroDivisionError: a bug"):
        list(map_shards(Mistaken("ours"), SHARDS, engine=local))
    assert len(list(map_shards(Mistaken("user"), SHARDS[:2], engine=local))) == 2  # the engine still works


def test_a_closed_engine_leaves_no_process(tmp_path):
    with Local(2) as engine:
        list(map_shards(Squares(str(tmp_path)), SHARDS, engine=engine))
        processes = [one.process for one in engine.workers]
        assert processes
    assert all(one.poll() is not None for one in processes)


def test_partial_results_survive_packing():
    arrays = {"a": np.eye(3)[:, ::2], "n": np.array(7), "b": np.zeros((0, 4), np.int16), "c": np.array([True, False])}
    found = unpack(pack(arrays))
    assert all(np.array_equal(found[name], one) and found[name].dtype == one.dtype for name, one in arrays.items())
    assert found["n"].shape == ()


def test_digests_tell_values_apart_and_nothing_else():
    assert digest(SHARDS[0]) == digest(replace(SHARDS[0]))
    values = [
        ("ab", "c"), ("a", "bc"), ["1"], [1], [1.0], [True], [None], [(1,), 2], [1, (2,)], {"a": 1}, {"a": 2},
        np.arange(4), np.arange(4.0), np.arange(4).reshape(2, 2), SHARDS[0], SHARDS[1], frozenset({1, 2}), Squares("x"),
    ]  # fmt: skip
    assert len({digest(one) for one in values}) == len(values)


def test_passes_report_progress_and_where_the_time_went(tmp_path):
    told = []
    passes = Passes(Here(), tmp_path / "run", lambda message, done=0, total=0: told.append((message, done, total)))
    (tmp_path / "traces").mkdir()
    list(passes.over("squares", Squares(str(tmp_path / "traces")), SHARDS))
    assert told[0] == ("squares", 0, 0)
    assert [done for _, done, _ in told[1:]] == [10, 20, 30, 40, 50, 60, 70, 80]
    assert "rows/s" in told[4][0]
    assert "s left" in told[4][0]
    again = Passes(Here(), tmp_path / "run")
    list(again.over("squares", Squares(str(tmp_path / "traces")), SHARDS))
    assert again.done[0].resumed == 80
    assert len(calls(tmp_path / "traces")) == 8
    (line,) = passes.summary()
    assert (line["step"], line["passes"], line["rows"]) == ("squares", 1, 80)
    passes.forget()
    assert not (tmp_path / "run").exists()
