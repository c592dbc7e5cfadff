"""Is there a table that ends ponn in anything but a result or a PonnError?

Every case is a small log in one of eight formats with one to eight changes of one kind, or one of its own kind made by
hand, and is read in a process of its own: `read_log` and `check`, a stream to its end, and `recommend` with a small
policy. One process has imported everything and forks for each case, so that a case costs milliseconds.

Memory: the largest resident size of a case's process, as wait4 tells it, may not be above 1 GB. (RLIMIT_DATA would
count 1 GB of addresses that pyarrow's allocator reserves and never touches; it is set to 3 GB, to save the machine.)
Time: 10 s of processor time (so that other load of the machine does not count), and 60 s of the clock. Bombs are read
with the limits that a server sets, other files with and without them in turn. Anything but success or PonnError is kept
with its file, and

    python benchmarks/reliability/mutated_tables.py --seed 0 --only 1234

does one case again, in this process, with its traceback. Run all: python benchmarks/reliability/mutated_tables.py
A run that was stopped goes on where it was (--kept).
"""

import argparse
import contextlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow.dataset
import pyarrow.json
import table_mutations
import threadpoolctl
from table_mutations import case_of, written

import ponn
import ponn.evaluation.check
import ponn.log.reading
import ponn.policy.directories
import record
from ponn.errors import PonnError
from ponn.evaluation.readiness import check
from ponn.policy.batches import write_recommendations
from ponn.tables.limits import USUAL, Limits
from ponn.tables.streams import open_stream
from ponn.tables.table import read_table

MEMORY = 1 << 30
SECONDS = 10  # of processor time
LONGEST = 60  # of the clock, for what waits
LOADED = (
    ponn.evaluation.check,
    ponn.log.reading,
    ponn.policy.directories,
    pyarrow.dataset,
    pyarrow.json,
    threadpoolctl,
)  # else every child would
ROLES = {"action": "drug", "reward": "days"}
LIMITS = Limits(columns=10_000, cells=2_000_000, bytes=64 << 20)  # as a server sets them; both ways are tried


def look(path: Path, policy: ponn.Policy, limited: bool) -> dict[str, str]:
    """What each way of reading says of a file: ok, or the class of the error, which may only be a PonnError."""
    limits = LIMITS if limited else USUAL
    steps = {
        "read_log": lambda: check_log(path, limits),
        "stream": lambda: exhaust(path, limits),
        "recommend": lambda: recommend(path, policy, limits),
    }
    return {name: told(step) for name, step in steps.items()}


def told(step) -> str:
    """How a step ended."""
    try:
        step()
    except PonnError as error:
        return f"PonnError: {str(error)[-80:]}"
    return "ok"


def check_log(path: Path, limits: Limits) -> None:
    """Read a log and look at it, as `ponn check` does."""
    if limits is USUAL:
        ponn.read_log(path, **ROLES)
        check(path, **ROLES)
    else:
        table = read_table(path, limits=limits).table
        ponn.read_log(table, **ROLES)
        check(table, **ROLES)


def exhaust(path: Path, limits: Limits) -> None:
    """All rows of a stream."""
    stream = open_stream(path, limits=limits)
    for _ in stream.batches(stream.schema.names, 1_000):
        pass


def recommend(path: Path, policy: ponn.Policy, limits: Limits) -> None:
    """Recommendations for all rows, with all columns that are kept."""
    keep = [name for name in open_stream(path, limits=limits).schema.names if name not in ("action", "probability")]
    out = path.parent / "out.csv"
    write_recommendations(policy, path, out, keep=keep[:20], threads=1, limits=limits)
    out.unlink()


def is_limited(case: int, kind: str) -> bool:
    """Is a case read with limits?"""
    return bool(case % 2) or kind in table_mutations.BOMBS


# One case in a process of its own ------------------------------------------------------------------------


def in_own_process(path: Path, policy: ponn.Policy, limited: bool) -> dict[str, object]:
    """What a child found, or what became of it."""
    read, write = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        be_the_child(write, path, policy, limited)
    os.close(write)
    said = b""
    while (left := started + LONGEST - time.monotonic()) > 0 and select.select([read], [], [], left)[0]:
        if not (part := os.read(read, 1 << 16)):
            break
        said += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    found = {"seconds": round(seconds, 3), "memory": usage.ru_maxrss * 1024}
    if seconds > SECONDS or time.monotonic() - started > LONGEST:
        return found | {"fault": "over time"}
    if os.WIFSIGNALED(status):
        return found | {"fault": signal.Signals(os.WTERMSIG(status)).name}
    found |= json.loads(said) if said else {"fault": "no answer"}
    if found["memory"] > MEMORY:
        return {"fault": "over memory"} | found
    return found


def be_the_child(write: int, path: Path, policy: ponn.Policy, limited: bool) -> None:
    """Look at a file under the limits, say what was found and end."""
    resource.setrlimit(resource.RLIMIT_DATA, (3 * MEMORY, 3 * MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS + 1, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer = {"told": look(path, policy, limited)}
    except BaseException as error:
        answer = {"fault": type(error).__name__, "trace": traceback.format_exc()[-2000:]}
    with contextlib.suppress(BaseException):
        os.write(write, json.dumps(answer).encode())
    os._exit(0)


# The run -------------------------------------------------------------------------------------------------


def small_policy(folder: Path) -> ponn.Policy:
    """A policy for the tables of this benchmark; learned in a child, so that nothing of torch runs in this process."""
    path = folder / "small.ponn"
    child = os.fork()
    if child == 0:
        try:
            log = ponn.read_log(table_mutations.good_table(), **ROLES)
            ponn.learn(log, method="lr-l1", seed=0).save(path)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return ponn.load(path)


def run(number: int, seed: int, kept: Path, folder: Path, processes: int) -> list[dict[str, object]]:
    """What was found in every case; cases that an earlier run looked at are not looked at again."""
    policy = small_policy(folder)
    kept.mkdir(parents=True, exist_ok=True)
    done = {one["case"] for one in found_before(kept, seed)}
    workers = []
    for worker in range(processes):
        child = os.fork()
        if child == 0:
            try:
                own = folder / str(worker)
                own.mkdir()
                look_at_all(
                    [one for one in range(worker, number, processes) if one not in done], seed, kept, own, policy
                )
            finally:
                os._exit(0)
        workers.append(child)
    for child in workers:
        os.waitpid(child, 0)
    found = [one for one in found_before(kept, seed) if one["case"] < number]
    assert len(found) == number, "a worker ended early"
    return found


def found_before(kept: Path, seed: int) -> list[dict[str, object]]:
    """What was found so far, by case."""
    lines = (line for file in kept.glob(f"{seed}.*.jsonl") for line in file.read_text().splitlines())
    return sorted(map(json.loads, lines), key=lambda one: one["case"])


def look_at_all(cases: list[int], seed: int, kept: Path, folder: Path, policy: ponn.Policy) -> None:
    """Look at some cases, one after the other, and write down what was found."""
    with (kept / f"{seed}.{os.getpid()}.jsonl").open("a", buffering=1) as lines:
        for number, case in enumerate(cases, start=1):
            one = case_of(np.random.default_rng((seed, case)))
            path = written(one, folder)
            found = in_own_process(path, policy, is_limited(case, one.kind))
            if "fault" in found:
                keep(path, kept / f"{seed}-{case}-{found['fault']}{one.ending.strip('/')}")
                print(found["fault"], case, one.kind, one.ending, flush=True)
            lines.write(json.dumps({"case": case, "kind": one.kind, "format": one.ending, **found}) + "\n")
            remove(path)
            if number % 1000 == 0:
                print(f"{number:,} of {len(cases):,} cases", flush=True)


def summary(found: list[dict[str, object]]) -> dict[str, object]:
    """Counts of kinds, formats and ends, all faults, and what was slowest and largest."""
    faults = [one for one in found if "fault" in one]
    ends = Counter(f"{step}: {end.split(':')[0]}" for one in found for step, end in one.get("told", {}).items())
    label = lambda one: [one["case"], one["kind"], one["format"]]  # noqa: E731
    seconds = sorted([one["seconds"], *label(one)] for one in found)
    memory = sorted([one["memory"] >> 20, *label(one)] for one in found)
    return {
        "cases": len(found),
        "kinds": dict(Counter(one["kind"] for one in found).most_common()),
        "formats": dict(Counter(one["format"] for one in found).most_common()),
        "ends": dict(ends.most_common()),
        "signals": sum(one["fault"].startswith("SIG") for one in faults),
        "over_memory": sum(one["fault"] == "over memory" for one in faults),
        "over_time": sum(one["fault"] == "over time" for one in faults),
        "faults": faults,
        "processor_seconds": {"median": seconds[len(seconds) // 2][0], "slowest": seconds[-5:]},
        "megabytes": {"median": memory[len(memory) // 2][0], "largest": memory[-5:]},
    }


def keep(path: Path, target: Path) -> None:
    """Keep a file that made a fault."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = next(path.iterdir()) if path.is_dir() else path
    target.write_bytes(source.read_bytes())


def remove(path: Path) -> None:
    """Remove a file or folder of a case."""
    for one in path.iterdir() if path.is_dir() else (path,):
        one.unlink()
    if path.is_dir():
        path.rmdir()


def main() -> None:
    """Run cases and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--number", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one case, in this process")
    parser.add_argument(
        "--kept",
        type=Path,
        default=Path(tempfile.gettempdir(), "mutated_tables"),
        help="where faults go, and what was found so far: a run that was stopped goes on there",
    )
    parser.add_argument("--processes", type=int, default=2, help="that fork cases")
    asked = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name)
        if asked.only is not None:
            one = case_of(np.random.default_rng((asked.seed, asked.only)))
            print(one.kind, one.ending, len(one.data), "bytes")
            print(look(written(one, folder), small_policy(folder), is_limited(asked.only, one.kind)))
            return
        started = record.now()
        measured = summary(run(asked.number, asked.seed, asked.kept, folder, asked.processes))
        where = record.RESULTS / "reliability"
        print(record.write_record("mutated_tables", measured, seed=asked.seed, started=started, folder=where))
        if measured["faults"]:
            sys.exit(f"{len(measured['faults'])} faults; their files are in {asked.kept}")


if __name__ == "__main__":
    main()
