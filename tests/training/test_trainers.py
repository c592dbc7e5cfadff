"""Training that is stopped goes on with the same bits, and several processes train the network that one would."""

import os
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

import ponn
from commands import PONN
from faults import Deadly
from logs_on_disk import names, table, write
from ponn.engine.passes import Here, Passes
from ponn.errors import PonnError
from ponn.learning.learn import learn
from ponn.log.sharded import read_sharded
from ponn.training.checkpoint import Checkpoint
from ponn.training.launch import Folder, Trainers, join_team
from ponn.training.loop import Batches, tensors, train
from ponn.training.shard_training import Position, RowStream, interleaved
from ponn.training.team import Team
from training_problems import TWELVE_EPOCHS, candidate, problem, same_bits, streamed


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("log") / "log", table(4_000), 4)
    roles = names(propensity="known", ignore=["person", "day", "heavy"])
    return read_sharded(path, Passes(Here()), shard_rows=400, **roles)


class StopError(Exception):
    """Somebody pulled the plug."""


def stop_at(epoch, *_, after):
    if epoch == after:
        raise StopError


# One process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "stream"])
def test_training_that_was_stopped_goes_on_with_the_same_bits(kind, disk, tmp_path):
    data, option = (problem(), candidate(TWELVE_EPOCHS)) if kind == "memory" else streamed(disk, TWELVE_EPOCHS)
    undisturbed = train(data, option)
    kept = replace(data, kept=Checkpoint(tmp_path / "state.part"))
    for after in (3, 8):
        with pytest.raises(StopError):
            train(kept, option, progress=partial(stop_at, after=after))
    heard = []
    assert same_bits(train(kept, option, progress=lambda epoch, _: heard.append(epoch)), undisturbed)
    assert heard == [9, 10, 11, 12]


def test_a_smaller_step_after_a_divergence_is_kept_too(tmp_path):
    option = candidate(replace(TWELVE_EPOCHS, learning_rate=1_000.0))
    undisturbed = train(problem(), option)
    kept = replace(problem(), kept=Checkpoint(tmp_path / "state.part"))
    with pytest.raises(StopError):
        train(kept, option, progress=partial(stop_at, after=10))
    assert Checkpoint(tmp_path / "state.part").read().attempt == undisturbed.retries > 0
    assert same_bits(train(kept, option), undisturbed)


def test_a_damaged_state_is_not_trusted(tmp_path):
    kept = replace(problem(), kept=Checkpoint(tmp_path / "state.part"))
    first = train(kept, candidate(TWELVE_EPOCHS))
    content = bytearray((tmp_path / "state.part").read_bytes())
    content[-1] ^= 1
    (tmp_path / "state.part").write_bytes(content)
    heard = []
    assert same_bits(train(kept, candidate(TWELVE_EPOCHS), progress=lambda epoch, _: heard.append(epoch)), first)
    assert heard[0] == 1


def test_every_place_of_a_stream_is_found_again(disk):
    _, stream = streamed(disk, TWELVE_EPOCHS)[0], streamed(disk, TWELVE_EPOCHS)[0].stream
    parts = partial(interleaved, stream.shards, stream.work, 5, Team())
    whole = RowStream(parts, 130)
    taken = [(whole.take(), whole.position) for _ in range(40)]
    whole.close()
    assert taken[-1][1].turn > 0
    for start in (0, 7, 20, 38):
        again = RowStream(parts, 130)
        again.seek(taken[start][1])
        assert np.array_equal(again.take().X, taken[start + 1][0].X)
        again.close()


def test_a_team_reads_every_shard_once_per_pass(disk):
    @dataclass
    class Seen:
        shards: list

        def parts(self, shard):
            self.shards.append(shard.pieces[0].first)
            return iter([{"A": np.zeros(1), "n": np.array(1.0)}])

    passes: dict[int, list[int]] = {}
    for rank in range(3):
        seen = Seen([])
        for at, _ in interleaved(disk.shards, seen, 0, Team(rank, 3), Position()):
            if at.turn == 6:
                break
            passes.setdefault(at.turn, []).append(1)
        assert len(set(seen.shards)) > len(disk.shards) / 2  # other shards in every pass
    assert {sum(one) for one in passes.values()} == {len(disk.shards)}


def test_a_team_larger_than_the_number_of_shards_has_rows_for_everyone(disk):
    """In a thread that is left behind, as a process without rows would look for some for ever."""
    stream = streamed(disk, TWELVE_EPOCHS)[0].stream
    found = []
    for rank in range(3):
        parts = interleaved(disk.shards[:1], stream.work, 0, Team(rank, 3), Position())
        reader = threading.Thread(target=lambda parts=parts: found.append(next(parts)[0].turn), daemon=True)
        reader.start()
        reader.join(timeout=30)
    assert sorted(found) == [0, 1, 2]


# Several processes ---------------------------------------------------------------------------------------


def test_two_processes_train_the_network_that_one_would(tmp_path):
    data, option = problem(600), candidate(TWELVE_EPOCHS)
    heard = []
    both = Trainers(2, Here(), Folder(tmp_path))(data, option, progress=lambda epoch, _: heard.append(epoch))
    alone = train(data, option)
    for name, weight in alone.weights.items():
        np.testing.assert_allclose(both.weights[name], weight, atol=1e-5)  # sums of floats in another order
    assert both.valid_loss == pytest.approx(alone.valid_loss, rel=1e-5)


def test_a_killed_process_changes_nothing(disk, tmp_path):
    found = []
    for number in (0, 1):
        folder = Folder(tmp_path / str(number))
        deadly = partial(Deadly, state=str(folder.state.path), trace=str(tmp_path / f"trace-{1 - number}"))
        if number == 0:
            Path(tmp_path / "trace-1").touch()  # nobody is killed
        data, option = streamed(disk, TWELVE_EPOCHS, deadly)
        found.append(Trainers(2, Here(), folder)(data, option))
    assert (tmp_path / "trace-0").exists()
    assert same_bits(*found)


def test_a_damaged_shard_is_named_by_the_process_that_met_it(disk, tmp_path):
    data, option = streamed(disk, TWELVE_EPOCHS)
    piece = replace(disk.shards[0].pieces[0], file=str(tmp_path / "gone.parquet"))
    shards = (replace(disk.shards[0], pieces=(piece,)), *disk.shards[1:])
    broken = replace(data, stream=replace(data.stream, shards=shards))
    with pytest.raises(PonnError, match=r"gone\.parquet"):
        Trainers(2, Here(), Folder(tmp_path))(broken, option)


def test_too_many_processes_are_refused():
    data = tensors(problem().train, TWELVE_EPOCHS)
    with pytest.raises(PonnError, match="2 processes cannot share"):
        Batches(data, 1, torch.Generator(), Team(1, 2))
    with pytest.raises(PonnError, match="only on a log on disk"):
        learn(ponn.read_log(table(200), **names()), trainers=2)


def test_methods_that_learn_from_a_sample_have_one_trainer(tmp_path):
    log = ponn.read_log(write(tmp_path / "log", table(300), 2), lazy=True, **names())
    with pytest.raises(PonnError, match=r"lr-l1 is learned from a sample .* can train on all rows: ponn-b, ponn, poem"):
        learn(log, "lr-l1", engine=Here(), trainers=2)


def test_an_attempt_never_meets_the_addresses_of_the_one_before(monkeypatch):
    """The launcher's store outlives a restart."""
    store, found = distributed.HashStore(), []
    monkeypatch.setattr(distributed, "rendezvous", lambda _: iter([(store, 0, 2)]))
    monkeypatch.setattr(distributed, "init_process_group", lambda backend, store, rank, world_size: found.append(store))
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        join_team()
    first, again = found
    first.set("address of rank 1", "gone")
    assert first.check(["address of rank 1"])
    assert not again.check(["address of rank 1"])


def training_processes(folder: str) -> list[int]:
    """Processes whose command names a folder."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if "ponn.training.launch" in (text := (one / "cmdline").read_text()) and folder in text:
                found.append(int(one.name))
        except OSError:
            continue
    return found


def states(folder: Path) -> list[Path]:
    """States of training below a folder; runs that end meanwhile take their folders away."""
    return [Path(where) / name for where, _, names in os.walk(folder) for name in names if name == "state.part"]


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to find processes")
def test_a_killed_command_goes_on_in_the_middle_of_step_c(tmp_path, monkeypatch):
    monkeypatch.setenv("PONN_RUNS", str(tmp_path / "runs"))
    folder = write(tmp_path / "log", table(2_000), 2)
    words = [
        "learn",
        folder,
        "--action",
        "action",
        "--reward",
        "reward",
        "--workers",
        "1",
        "--trainers",
        "2",
        "--method",
        "ponn-b",
    ]
    words += [f"--ignore={one}" for one in ("person", "day", "heavy", "known")]
    words += [word for one in ("hidden=(4,)", "epochs=120", "patience=120") for word in ("--set", one)]
    command = [*PONN, *map(str, words), "--out"]
    with subprocess.Popen([*command, str(tmp_path / "one.ponn")], stderr=subprocess.DEVNULL) as killed:
        while not states(tmp_path):
            assert killed.poll() is None
            time.sleep(0.02)
        killed.kill()
    for _ in range(300):
        if not training_processes(str(tmp_path)):
            break
        time.sleep(0.1)
    assert not training_processes(str(tmp_path))
    (state,) = states(tmp_path)
    assert 0 < len(Checkpoint(state).read().history) <= 120
    for name in ("one.ponn", "two.ponn"):
        subprocess.run([*command, str(tmp_path / name)], check=True, stderr=subprocess.DEVNULL)
    one, two = (ponn.load(tmp_path / name) for name in ("one.ponn", "two.ponn"))
    assert one.digest == two.digest
    assert not states(tmp_path)
