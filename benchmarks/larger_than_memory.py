"""Is a log of 60,000,000 x 40 (about 10 GB of Parquet) checked, learned from, valued and scored in under 2 GB?

The log is made by known formulas, so the policy's true value is known; it is compared with that of a policy learned in
memory from a sample. Every command is a fresh process tree whose memory is looked at all the time: `pss` counts pages
that processes share once, `rss` counts them for each. Files are removed at the end. With --folder a run that was
stopped goes on where it was: with the files it had, after the commands it had finished, and in the middle of the one
that it was in (whose seconds and memory are then those of the rest).

    r(a, x) = 1 / (1 + exp(1/2 - V_a . x)),   p0(a | x) = softmax(x W)
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ponn.engine.passes import Local, Passes
from ponn.log.shards import find_pieces, shards_of
from ponn.policy.policy import load
from record import RESULTS, now, write_record
from relevance_rows_per_second import OnlyRead, descendants

FEATURES, ACTIONS = 40, 10
FILE_ROWS, PART_ROWS = 1_000_000, 100_000
COLUMNS = ("--action", "action", "--reward", "reward")
BARS = {"gigabytes": 2.0, "value": 0.99}


# The log -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One file to write."""

    number: int
    rows: int
    folder: str

    @property
    def name(self) -> str:
        """What an error calls it."""
        return f"file {self.number}"


@dataclass(frozen=True)
class World:
    """The formulas, from a seed."""

    seed: int
    features: int = FEATURES
    actions: int = ACTIONS

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """W [d, k] of the logging policy and V [d, k] of the rewards."""
        rng = np.random.default_rng(self.seed)
        W = rng.normal(size=(self.features, self.actions)) / np.sqrt(self.features)
        V = np.zeros((self.features, self.actions))
        for a in range(self.actions):
            V[rng.choice(self.features, 5, replace=False), a] = rng.choice([-0.6, 0.6], 5)
        return W, V

    def expected(self, X: np.ndarray) -> np.ndarray:
        """r(a, x): [n, k]."""
        return 1 / (1 + np.exp(0.5 - X @ self.weights()[1]))

    def rows(self, rng: np.random.Generator, n: int) -> pa.Table:
        """Logged rows."""
        X = rng.normal(size=(n, self.features)).astype(np.float32)
        P = np.exp(X @ self.weights()[0])
        P /= P.sum(axis=1, keepdims=True)
        j, A = np.arange(n), (P.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, self.actions - 1)
        R = rng.random(n) < self.expected(X)[j, A]
        columns: dict[str, Any] = {f"x{i}": X[:, i] for i in range(self.features)}
        columns |= {"propensity": P[j, A], "action": A.astype(np.int8), "reward": R.astype(np.int8)}
        return pa.table(columns)

    def __call__(self, part: Part) -> dict[str, np.ndarray]:
        """Write a file."""
        rng = np.random.default_rng((self.seed, part.number))
        schema = self.rows(rng, 1).schema
        file = Path(part.folder) / f"part-{part.number:04d}.parquet"
        if not file.exists():
            unfinished = file.with_suffix(".unfinished")
            with pq.ParquetWriter(unfinished, schema, use_dictionary=False) as writer:
                for start in range(0, part.rows, PART_ROWS):
                    writer.write_table(self.rows(rng, min(PART_ROWS, part.rows - start)))
            unfinished.replace(file)
        return {"rows": np.array(part.rows)}


# Measuring -----------------------------------------------------------------------------------------------


def memory_of(pid: int) -> tuple[int, int]:
    """Proportional and resident bytes of a process."""
    found = {"Pss:": 0, "Rss:": 0}
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, value, *_ = line.split()
            if name in found:
                found[name] = int(value) * 1024
    except (OSError, ValueError):
        pass
    return found["Pss:"], found["Rss:"]


def command(*arguments: Any) -> dict[str, Any]:
    """Run ponn in a fresh process and look at its memory and that of its workers."""
    code = "from ponn.cli import main; main()"
    started, told = time.perf_counter(), []
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stdout is not None
    listener = threading.Thread(target=lambda: told.extend(process.stderr or ()))
    listener.start()
    peak = (0, 0)
    answers: list[str] = []
    reader = threading.Thread(target=lambda: answers.append((process.stdout and process.stdout.read()) or ""))
    reader.start()
    while process.poll() is None:
        each = [memory_of(one) for one in (process.pid, *descendants(process.pid))]
        peak = (max(peak[0], sum(one[0] for one in each)), max(peak[1], sum(one[1] for one in each)))
        time.sleep(0.25)
    listener.join()
    reader.join()
    if process.returncode:
        raise RuntimeError("".join(told))
    done = {"seconds": time.perf_counter() - started, "pss_gigabytes": peak[0] / 1e9, "rss_gigabytes": peak[1] / 1e9}
    print(f"ponn {arguments[0]}: {done['seconds']:.0f} s, {done['pss_gigabytes']:.2f} GB", flush=True)
    return done | {"answer": "".join(answers), "told": told}


def remembered(file: Path, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was found, by this run or by an earlier one."""
    if not file.exists():
        found = do()
        file.write_text(json.dumps(found))
    return dict(json.loads(file.read_text()))


def true_value(world: World, path: Path, seed: int) -> float:
    """What the policy is worth, on fresh rows, by the formulas."""
    rows = world.rows(np.random.default_rng((seed, 10**9)), 200_000)
    X = np.column_stack([rows.column(f"x{i}").to_numpy() for i in range(FEATURES)])
    chosen = load(path).predict(rows).astype(int)
    return float(world.expected(X)[np.arange(len(X)), chosen].mean())


def measured(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Everything, in order."""
    world, log = World(given.seed), folder / "log"
    log.mkdir(exist_ok=True)
    sizes = [min(FILE_ROWS, given.rows - first) for first in range(0, given.rows, FILE_ROWS)]
    with Local(given.workers) as engine:
        parts = [Part(number, rows, str(log)) for number, rows in enumerate(sizes)]
        list(Passes(engine).over("make the log", world, parts))
        shards = shards_of(find_pieces(log), FILE_ROWS)
        reading = Passes(engine)
        names = (*(f"x{i}" for i in range(FEATURES)), "propensity", "action", "reward")
        list(reading.over("only reading", OnlyRead(names), shards))
    size = sum(one.stat().st_size for one in log.iterdir())
    print(f"{given.rows:,} rows, {size / 1e9:.1f} GB; only reading {reading.done[0].seconds:.1f} s", flush=True)
    roles = [*COLUMNS, *(("--ignore",) if given.estimate else ("--propensity",)), "propensity"]
    training = ["--method", "ponn-b", *(word for one in given.set for word in ("--set", one))]
    engine_words = ("--engine", given.engine, "--workers", given.workers)
    policy, advice = folder / "policy.ponn", folder / "advice"
    commands: dict[str, tuple[Any, ...]] = {
        "check": ("check", log, *roles, *engine_words, "--json"),
        "learn": ("learn", log, *roles, *training, *engine_words, "--out", policy, "--json"),
        "evaluate": ("evaluate", policy, log, *engine_words, "--json"),
        "recommend": ("recommend", policy, log, *engine_words, "--out", advice),
    }
    runs = {
        name: remembered(folder / f"{name}.json", lambda words=words: command(*words))
        for name, words in commands.items()
    }
    values = {"on_disk": true_value(world, policy, given.seed)}
    if given.sample:
        sample = folder / "sample.parquet"
        pq.write_table(world.rows(np.random.default_rng((given.seed, 10**8)), given.sample), sample)
        small = folder / "small.ponn"
        words = ("learn", sample, *roles, *training, "--out", small, "--json")
        runs["learn in memory"] = remembered(folder / "small.json", lambda: command(*words))
        values["in_memory"] = true_value(world, small, given.seed)
    return {
        "rows": given.rows,
        "bytes": size,
        "only_reading_seconds": reading.done[0].seconds,
        "true_values": values,
        "passes": dict(load(policy).provenance)["passes"],
        "runs": {name: {key: one[key] for key in one if key != "told"} for name, one in runs.items()},
        "estimate": json.loads(runs["evaluate"]["answer"]),
    }


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    """Each bar, what was measured, and whether it holds."""
    on_disk = [found["runs"][name]["pss_gigabytes"] for name in ("check", "learn", "evaluate", "recommend")]
    held = {"gigabytes": {"bar": BARS["gigabytes"], "measured": max(on_disk)}}
    held["gigabytes"]["holds"] = max(on_disk) < BARS["gigabytes"]
    if "in_memory" in found["true_values"]:
        share = found["true_values"]["on_disk"] / found["true_values"]["in_memory"]
        held["value"] = {"bar": BARS["value"], "measured": share, "holds": share >= BARS["value"]}
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000_000)
    parser.add_argument("--sample", type=int, default=2_000_000, help="rows learned from in memory; 0: leave that out")
    parser.add_argument("--estimate", action="store_true", help="leave the propensities to be estimated")
    parser.add_argument("--set", action="append", default=None, metavar="NAME=VALUE", help="settings of learning")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="a folder of its own for the log, removed at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.set = ["epochs=60", "patience=8"] if given.set is None else given.set
    started = now()
    folder = given.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PONN_RUNS"] = str(folder / "runs")
    try:
        found = measured(folder, given)
    except BaseException:
        if given.folder is None:
            shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
    found["bars"] = verdict(found)
    for line in found["passes"]:
        each = line["seconds"] / line["passes"]
        print(
            f"{line['step']:>24}: {each:8.1f} s a pass, {each / found['only_reading_seconds']:.1f} times only reading"
        )
    print(json.dumps({"true values": found["true_values"], "bars": found["bars"]}, indent=1))
    print(write_record("larger_than_memory", found, seed=given.seed, started=started, folder=given.results))


if __name__ == "__main__":
    # workers must find these classes by a name that is not "__main__"
    import larger_than_memory

    larger_than_memory.main()
