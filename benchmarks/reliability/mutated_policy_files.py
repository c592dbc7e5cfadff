"""Does any mutated policy file do more than be refused: another exception than PonnError, a signal, memory, time?

Healthy policies of every kind (networks, regressions, forests, stacks; numbers, dates, truth values, texts; rules and
columns that say what is eligible; companions) are mutated in the ways of `tests/support/hostile_policies.py`, each by
a number that makes it again. Every file is loaded, asked for recommendations with reasons, explained and made ready
to serve in a process of its own, forked from one that has everything imported. It may reserve 1 GB more than that one
(RLIMIT_DATA) and have at most 1 GB in memory, Python and libraries included (its largest resident size), and take 10
seconds of processor time (other work on the machine must not fail a file; 120 seconds by the clock end what hangs).
Success and PonnError are both right; an answer that is not finite, any other exception, signal or limit is a failure,
and kept with its number. Linux only.

    python benchmarks/reliability/mutated_policy_files.py --number 20000
    python benchmarks/reliability/mutated_policy_files.py --only 1234      # one file again, its error in full
"""

import argparse
import gc
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # a process that is forked must be the only thread
    os.environ.setdefault(name, "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tests/support")]

from hostile_policies import healthy, mutated, try_file  # noqa: E402
from record import RESULTS, now, write_record  # noqa: E402

SEED = 26
MOST_MEMORY, MOST_SECONDS, MOST_WAITING = 1 << 30, 10, 120
AT_ONCE = 50  # files made by one process
KEPT = 200  # failures that are told in full
METHODS = (
    *("ponn-b", "lr-l1", "mlp-l1", "direct-forest", "ponn-dr", "ipw-forest", "offset-tree", "poem", "logging"),
    *("ponn", "banditnet"),
)


def main() -> None:
    """Make the policies, try the mutations, keep the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--number", type=int, default=20_000, help="files to try")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--workers", type=int, default=1, help="processes that try files at the same time")
    options.add_argument("--minutes", type=float, help="stop after so long, with as many files as were tried by then")
    options.add_argument("--only", type=int, help="try the file of this number alone, and show its error")
    options.add_argument("--out", type=Path, default=RESULTS / "reliability")
    asked = options.parse_args()
    started = now()
    with tempfile.TemporaryDirectory() as folder:
        files = made_apart(Path(folder))
        if asked.only is not None:
            name, kind, content = mutated(files, asked.only)
            (Path(folder) / "policy.ponn").write_bytes(content)
            print(name, kind, len(content), "bytes:", try_file(Path(folder) / "policy.ponn"))
            return
        cases = [asked.seed * 1_000_000 + one for one in range(asked.number)]
        found = tried(files, cases, Path(folder), asked.workers, asked.minutes)
    path = write_record("mutated_policy_files", found, seed=asked.seed, started=started, folder=asked.out)
    print(path, found["outcomes"], f"{len(found['failures'])} failures told")


def made_apart(folder: Path) -> dict[str, bytes]:
    """The healthy files, learned in a process of its own: torch and scikit-learn start threads."""

    def make() -> str:
        for number, (name, content) in enumerate(healthy(folder, METHODS).items()):
            (folder / f"{number}.healthy").write_bytes(content)
            (folder / f"{number}.name").write_text(name)
        return "made"

    outcome, told, *_ = apart(make, folder, most_memory=None, seconds=600)
    if outcome != "made":
        raise SystemExit(f"The healthy policies could not be made: {outcome} {told}")
    return {one.read_text(): one.with_suffix(".healthy").read_bytes() for one in sorted(folder.glob("*.name"))}


def tried(
    files: dict[str, bytes], cases: list[int], folder: Path, workers: int, minutes: float | None
) -> dict[str, Any]:
    """What came of each mutation, tried by several processes."""
    import ponn.serving.server  # noqa: F401 - imported once, here, and not in every process
    from ponn.cli.policy_commands import print_policy  # noqa: F401

    warm_up(files, folder)
    gc.collect()
    gc.freeze()  # else looking for garbage copies in every process what they could share
    begin, children = time.monotonic(), []
    for number in range(workers):
        place = folder / f"worker-{number}"
        place.mkdir()
        if not (child := os.fork()):
            os._exit(try_some(files, cases[number::workers], place, begin + 60 * minutes if minutes else math.inf))
        children.append(child)
    if any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children):
        raise SystemExit("A process that tries files failed.")
    found = [json.loads(line) for file in sorted(folder.glob("worker-*/tried")) for line in file.open()]
    return summed(found) | {"policies": sorted(files), "seconds": round(time.monotonic() - begin, 1)}


def warm_up(files: dict[str, bytes], folder: Path) -> None:
    """Import what trying a file imports, so that not every process does: 0.2 seconds of each."""
    for number, content in enumerate(files.values()):
        file = folder / f"{number}.warm"
        file.write_bytes(content)
        try_file(file)


def try_some(files: dict[str, bytes], cases: list[int], folder: Path, until: float) -> int:
    """Try these mutations, as many as there is time for; a line of JSON for each."""
    with (folder / "tried").open("w") as lines:
        for done, (case, name, kind, file) in enumerate(made(files, cases, folder), start=1):
            outcome, error, memory, seconds = apart(partial(try_file, file), folder, MOST_MEMORY, MOST_SECONDS)
            file.unlink()
            if not error and memory > MOST_MEMORY:
                outcome, error = "over memory", f"{memory:,} bytes"
            told = {"number": case, "policy": name, "mutation": kind, "outcome": outcome, "told": error}
            lines.write(json.dumps(told | {"memory": memory, "seconds": seconds}) + "\n")
            if error:
                print(f"{case} {name} {kind}: {outcome}\n{error}", flush=True)
            if time.monotonic() > until:
                break
            if done % 500 == 0:
                print(f"{folder.name}: {done:,} of {len(cases):,} files", flush=True)
    return 0


def summed(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What came of all files together."""
    kinds: dict[str, Counter[str]] = {}
    for one in found:
        kinds.setdefault(one["mutation"], Counter())[one["outcome"]] += 1
    failures = [one for one in sorted(found, key=lambda one: one["number"]) if one["told"]]
    return {
        "files": len(found),
        "outcomes": dict(Counter(one["outcome"] for one in found)),
        "by_mutation": {kind: dict(counts) for kind, counts in sorted(kinds.items())},
        "failures": failures[:KEPT],
        "number_of_failures": len(failures),
        "largest_memory_bytes": max(one["memory"] for one in found),
        "longest_processor_seconds": round(max(one["seconds"] for one in found), 3),
        "limits": {
            "resident_bytes": MOST_MEMORY,
            "RLIMIT_DATA_beyond_imports": MOST_MEMORY,
            "processor_seconds": MOST_SECONDS,
            "seconds": MOST_WAITING,
        },
    }


def made(files: dict[str, bytes], cases: list[int], folder: Path) -> Iterator[tuple[int, str, str, Path]]:
    """The mutations: number, policy, kind of mutation and the file, made some at a time in processes of their own."""
    for start in range(0, len(cases), AT_ONCE):
        some = cases[start : start + AT_ONCE]
        told, error, *_ = apart(partial(write_mutations, files, some, folder), folder, None, 60 * MOST_WAITING)
        if error:
            raise SystemExit(f"Mutations from {some[0]} on could not be made: {error}")
        for case, line in zip(some, told.splitlines(), strict=True):
            name, _, kind = line.rpartition(": ")
            yield case, name, kind, folder / f"{case}.ponn"


def write_mutations(files: dict[str, bytes], cases: list[int], folder: Path) -> str:
    """Write the files; a line for each."""
    lines = []
    for case in cases:
        name, kind, content = mutated(files, case)
        (folder / f"{case}.ponn").write_bytes(content)
        lines.append(f"{name}: {kind}")
    return "\n".join(lines)


def apart(work: Callable[[], str], folder: Path, most_memory: int | None, seconds: int) -> tuple[str, str, int, float]:
    """What work says in a process of its own, what went wrong, its largest memory and its processor time."""
    answer = folder / "answer"
    answer.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os._exit(worked(work, answer, most_memory, seconds))
    status, used = waited(child)
    lines = answer.read_text("utf-8", "replace") if answer.exists() else ""
    memory, spent = used.ru_maxrss * 1024, used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        outcome = "over time" if number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL) else "signal"
        return outcome, number.name, memory, spent
    if os.WEXITSTATUS(status):
        return "exception", lines or f"status {os.WEXITSTATUS(status)}", memory, spent
    return lines, "", memory, spent


def worked(work: Callable[[], str], answer: Path, most_memory: int | None, seconds: int) -> int:
    """The status of a process that does the work within limits and writes what came of it."""
    try:
        signal.alarm(MOST_WAITING if most_memory else 60 * MOST_WAITING)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if most_memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (reserved() + most_memory,) * 2)
        answer.write_text(work())
    except BaseException:
        answer.write_text(traceback.format_exc()[-3_000:], "utf-8", "backslashreplace")
        return 1
    return 0


def reserved() -> int:
    """Bytes that this process may write to, most of them never touched: Arrow alone reserves 1 GB."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize()


def waited(child: int) -> tuple[int, Any]:
    """The end of a process, and what it used."""
    _, status, used = os.wait4(child, 0)
    return status, used


if __name__ == "__main__":
    main()
