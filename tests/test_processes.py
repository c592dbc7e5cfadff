"""Work apart: whatever it does, its caller gets an answer in words, and nothing is left of it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import apart
from ponn.errors import PonnError
from ponn.processes import (
    LAUNCHERS,
    LONGEST_ANSWER,
    Allowed,
    CrashError,
    CrowdedError,
    LimitError,
    Room,
    WorkerError,
    launcher_of,
    run_apart,
)
from ponn.serving.rows import RowError
from ponn.serving.uploads import score_upload

SOME = Allowed(memory=300 << 20, seconds=30.0)
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no limits on Windows")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def run(function, *arguments, allowed=SOME):
    return run_apart(function, *arguments, allowed=allowed, what="Reading log.csv")


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_value_comes_back():
    assert run(apart.add, 1, 2) == {"sum": 3, "nothing": None, "list": [1.5, "ü"]}


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "told"),
    [
        (apart.eat_memory, (), LimitError, "Reading log.csv takes more than 315 MB of memory"),
        (apart.eat_memory_politely, (), LimitError, "more than 315 MB of memory"),
        (apart.abort_for_memory, (), LimitError, "more than 315 MB of memory"),
        (apart.crash, (), CrashError, "crashed the library that does it (SIGSEGV)"),
        (apart.end, (), CrashError, "was ended from outside (SIGKILL)"),
        (apart.answer_with, (LONGEST_ANSWER + 1,), LimitError, "an answer of more than 64 MB"),
        (apart.refuse_own, (), PonnError, "not so"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_kills_a_worker_is_an_error_in_words(function, arguments, kind, told):
    with pytest.raises(kind) as found:
        run(function, *arguments)
    assert told in str(found.value)
    assert run(apart.add, 1, 2)["sum"] == 3


@pytest.mark.parametrize("function", [apart.never_end, lambda: None], ids=["busy", "idle"])
def test_work_without_end_is_ended(function, tmp_path):
    asked = (apart.never_end,) if function is apart.never_end else (apart.rest, str(tmp_path / "pid"), 60)
    started = time.monotonic()
    with pytest.raises(LimitError, match=r"longer than 0\.3 seconds"):
        run(*asked, allowed=Allowed(300 << 20, 0.3))
    assert time.monotonic() - started < 5


def test_a_file_beyond_the_limit_is_not_written(tmp_path):
    allowed = Allowed(300 << 20, 30.0, disk=1 << 20)
    run(apart.write_file, str(tmp_path / "a"), 1 << 20, allowed=allowed)
    with pytest.raises(LimitError, match="writes more than 1 MB"):
        run(apart.write_file, str(tmp_path / "b"), (1 << 20) + 1, allowed=allowed)


def test_an_error_of_ours_arrives_as_it_was_raised():
    with pytest.raises(RowError) as found:
        run(apart.refuse_row)
    assert (found.value.row, found.value.field, found.value.expected) == (3, "age", "a number")
    assert "it is a text" in str(found.value)


def test_a_mistake_tells_where_it_was_but_no_cell():
    with pytest.raises(WorkerError) as found:
        run(apart.mistake, "Mrs Jones, HIV")
    assert "KeyError" in str(found.value)
    assert "apart.py" in str(found.value)
    assert "Jones" not in str(found.value)
    with pytest.raises(WorkerError, match="TypeError"):
        run(apart.no_plain_value)


def test_what_a_worker_says_is_taken_and_not_shown(capfd):
    assert run(apart.talk, 1_000_000) == "done"
    assert capfd.readouterr() == ("", "")


@on_linux
def test_the_limits_of_a_worker():
    found = run(apart.limits, allowed=Allowed(300 << 20, 30.0, 5000))
    assert (found["RLIMIT_CORE"], found["RLIMIT_DATA"], found["RLIMIT_FSIZE"]) == (0, 300 << 20, 5000)
    assert 30 < found["RLIMIT_CPU"] < 100
    assert found["umask"] == 0o077
    assert found["open"] <= 5  # three, the answer, and the folder that is listed: nothing of its caller
    assert found["threads"] == 1


@on_linux
def test_a_launcher_has_one_thread_and_loads_nothing_of_the_training_stack(tmp_path):
    with pytest.raises(PonnError, match="no file"):
        run(score_upload, None, str(tmp_path))
    process = LAUNCHERS[os.getpid(), score_upload.__module__].process
    assert "Threads:\t1\n" in Path(f"/proc/{process.pid}/status").read_text()
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "arrow" in maps
    assert not [name for name in ("torch", "sklearn", "scipy") if f"/{name}/" in maps]


def test_a_launcher_that_was_killed_is_replaced():
    run(apart.add, 1, 1)
    first = launcher_of("apart")
    first.process.kill()
    assert run(apart.add, 1, 2)["sum"] == 3
    first = launcher_of("apart")
    os.kill(first.process.pid, signal.SIGSTOP)  # it lives, but does nothing any more
    first.control.close()
    assert run(apart.add, 1, 2)["sum"] == 3
    assert first.process.returncode is not None


@on_linux
def test_nothing_is_left_of_a_caller_that_was_killed(tmp_path):
    code = "import sys, apart; from test_processes import run; print('once', flush=True); "
    code += "run(apart.rest, sys.argv[1], 600)"
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", code, str(tmp_path / "pid")]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE) as caller:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        worker = int((tmp_path / "pid").read_text())
        keeper = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        launcher = int(Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1])
        assert is_there(worker)
        caller.kill()
        assert caller.stdout.read() == b"once\n"  # and the caller's program did not run a second time
    wait_for(lambda: not any(map(is_there, (worker, keeper, launcher))))


@on_linux
def test_a_worker_dies_with_its_keeper(tmp_path):
    async def killed():
        room = Room(1, 10)
        working = asyncio.ensure_future(room.run(apart.rest, str(tmp_path / "pid"), 600, allowed=SOME, what="It"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        worker = int((tmp_path / "pid").read_text())
        os.kill(int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        while is_there(worker):
            await asyncio.sleep(0.01)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    asyncio.run(killed())


# Room


def test_who_would_wait_too_long_is_told_to_come_again_and_no_slot_is_lost():
    async def crowd(room):
        never = [
            asyncio.ensure_future(room.run(apart.never_end, allowed=Allowed(300 << 20, 1.0), what="It")) for _ in "ab"
        ]
        await asyncio.sleep(0.2)
        with pytest.raises(CrowdedError, match="too much is being worked on") as found:
            await room.run(apart.add, 1, 2, allowed=SOME, what="It")
        assert found.value.status == 503
        assert found.value.headers == {"Retry-After": "1"}
        ended = await asyncio.gather(*never, return_exceptions=True)
        assert [type(one) for one in ended] == [LimitError] * 2
        for function in (apart.crash, apart.end, apart.eat_memory, apart.mistake) * 2:
            with pytest.raises((PonnError, WorkerError)):
                await room.run(function, *["x"] * (function is apart.mistake), allowed=SOME, what="It")
        found = await asyncio.gather(*(room.run(apart.add, 1, j, allowed=SOME, what="It") for j in range(8)))
        return [one["sum"] for one in found]

    room = Room(2, 0.3)
    assert asyncio.run(crowd(room)) == list(range(1, 9))
    room.close()


@on_linux
def test_work_that_nobody_waits_for_is_ended_at_once(tmp_path):
    async def leave(room):
        working = asyncio.ensure_future(room.run(apart.rest, str(tmp_path / "pid"), 600, allowed=SOME, what="It"))
        waiting = asyncio.ensure_future(room.run(apart.add, 1, 2, allowed=SOME, what="It"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert not is_there(int((tmp_path / "pid").read_text()))
        return (await waiting)["sum"]

    room = Room(1, 20)
    assert asyncio.run(leave(room)) == 3
    room.close()
