"""How fast is Step B? Against only reading the same columns, against Polars and DuckDB, and how its cost grows.

A log of 5,000,000 x 40 float32 in Parquet, 10 actions, ceil(n^(1/3)) bins, Gram matrix included, propensities known;
once with plain columns (0.8 GB, by which the bars are judged) and once with the dictionaries that pyarrow writes unless
told otherwise (1.3 GB: no two numbers are alike), which take longer to read.
Every measurement is a fresh process tree, so that peak memory is honest; the ways alternate within each turn.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

from ponn.engine.passes import Arrays, Local, map_shards
from ponn.log.encoding import Encoding
from ponn.log.features import NumberFeature, bin_count
from ponn.log.log import Columns
from ponn.log.sharded import Reader
from ponn.log.shards import FileShard, find_pieces, shards_of
from ponn.steps.shard_steps import Practice, TallySums, unpacked_tally
from ponn.steps.tally import BLOCK_ROWS as BATCH
from ponn.steps.tally import COMPILED, Taken, Tally, tally_batch
from record import RESULTS, now, write_record

PROCESSES = 2
# Workers are processes; more threads in each only get in each other's way.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": str(PROCESSES)}
SHARDS = 4
ACTIONS = 10
LOGS: dict[str, dict[str, Any]] = {"plain": {"use_dictionary": False}, "dictionaries": {}}  # how columns are written
BARS = {"reading": 2.2, "polars": 2.5, "duckdb": 4.0, "memory": 0.5, "minmax": 12.0}


# The log -------------------------------------------------------------------------------------------------


def write_log(folder: Path, n: int, d: int, k: int, seed: int, **how: Any) -> None:
    """Parquet shards with features x0.., action, binary reward and propensity of the logged action."""
    rng = np.random.default_rng(seed)
    for shard in range(SHARDS):
        rows = n // SHARDS
        columns = {f"x{i}": rng.random(rows, dtype=np.float32) for i in range(d)}
        columns["action"] = rng.integers(0, k, rows).astype(np.int8)
        columns["reward"] = (rng.random(rows) < 0.5).astype(np.int8)
        columns["propensity"] = rng.uniform(0.05, 0.15, rows).astype(np.float32)
        pq.write_table(pa.table(columns), folder / f"part-{shard}.parquet", row_group_size=250_000, **how)


def known_encoding(n: int, d: int) -> Encoding:
    """Equal bins over [0, 1], as an encoding fitted before."""
    s = bin_count(n)
    return Encoding(
        tuple(NumberFeature(f"x{i}", "number", 0.0, 1.0, s, None, None, False, 0.5, 0.2887) for i in range(d)), n
    )


# Ways to do it -------------------------------------------------------------------------------------------


def reader(d: int, k: int) -> Reader:
    """How the columns of this log are read, as known before."""
    columns = Columns("action", "reward", propensity="propensity", features=tuple(f"x{i}" for i in range(d)))
    return Reader(columns, tuple(range(k)), (0.0, 1.0), False, False)


@dataclass(frozen=True)
class OnlyRead:
    """Only read the columns."""

    names: tuple[str, ...]

    def __call__(self, shard: FileShard) -> Arrays:
        """Rows read."""
        return {"rows": np.array(sum(len(table) for piece in shard.pieces for _, table in piece.tables(self.names)))}


def start_workers(folder: Path, d: int, k: int) -> Local:
    """Processes that have loaded their modules and tallied a little: starting them is not part of what is measured."""
    engine = Local(PROCESSES)
    first = [FileShard((one,)) for one in find_pieces(folder)[:PROCESSES]]
    list(map_shards(tally_sums(first[0].rows, d, k), first, engine=engine))
    return engine


def tally_sums(n: int, d: int, k: int) -> TallySums:
    """Step B of the rows of a shard."""
    return TallySums(reader(d, k), known_encoding(n, d), Practice(None, np.inf, 0))


def ours(folder: Path, n: int, d: int, k: int, engine: Local) -> None:
    parts = map_shards(tally_sums(n, d, k), shards_of(find_pieces(folder), n // SHARDS), engine=engine)
    total = reduce(add, map(unpacked_tally, parts))
    assert total.levels.N[-1] == n // SHARDS * SHARDS


def reading(folder: Path, n: int, d: int, k: int, engine: Local) -> None:
    shards = shards_of(find_pieces(folder), n // SHARDS)
    parts = map_shards(OnlyRead(tuple(reader(d, k).names)), shards, engine=engine)
    assert sum(int(one["rows"]) for one in parts) == n // SHARDS * SHARDS


def polars(folder: Path, n: int, d: int, k: int, engine: Local) -> None:
    import polars as pl

    s = bin_count(n)
    log = pl.scan_parquet(folder / "*.parquet").with_columns(u=pl.col("reward") / pl.col("propensity"))
    queries = []
    for i in range(d):
        level = (pl.col(f"x{i}") * s).floor().clip(0, s - 1).cast(pl.Int16).alias("level")
        sums = (pl.len().alias("N"), pl.col("u").sum().alias("S"), (pl.col("u") ** 2).sum().alias("Q"))
        queries.append(log.select(level, "action", "u").group_by("action", "level").agg(*sums))
    for i in range(d):  # the upper triangle of the Gram matrix
        products = [(pl.col(f"x{i}") * pl.col(f"x{j}")).sum().alias(f"g{j}") for j in range(i, d)]
        queries.append(log.select(products))
    pl.collect_all(queries, engine="streaming")


def duckdb(folder: Path, n: int, d: int, k: int, engine: Local) -> None:
    import duckdb as db

    s = bin_count(n)
    connection = db.connect()
    connection.execute(f"SET threads = {PROCESSES}")
    source = f"read_parquet('{folder}/*.parquet')"
    for i in range(d):
        connection.execute(
            f"SELECT action, least(floor(x{i} * {s}), {s - 1})::SMALLINT AS level, count(*), sum(reward / propensity), "
            f"sum((reward / propensity) * (reward / propensity)) FROM {source} GROUP BY 1, 2"
        ).fetchall()
    products = ", ".join(f"sum(x{i}::DOUBLE * x{j})" for i in range(d) for j in range(i, d))
    connection.execute(f"SELECT {products} FROM {source}").fetchall()


WAYS = {"reading": reading, "ours": ours, "polars": polars, "duckdb": duckdb}


# Measuring -----------------------------------------------------------------------------------------------


def tree_memory(pid: int) -> int:
    """Bytes that a process and its descendants hold by themselves; mapped files are the kernel's cache."""
    return sum(own_bytes(one) for one in (pid, *descendants(pid)))


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(one) for one in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def own_bytes(pid: int) -> int:
    """Resident minus shared pages; cheap to ask, so that asking does not slow what is measured."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def measure(way: str, folder: Path, n: int, d: int, k: int) -> dict[str, float]:
    """Seconds inside the work (imports left out) and peak anonymous memory of the process tree."""
    arguments = [sys.executable, __file__, "--way", way, "--folder", str(folder), "--rows", str(n)]
    arguments += ["--features", str(d), "--actions", str(k)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD)
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_memory(process.pid))
        time.sleep(0.05)
    assert process.stdout is not None
    if process.returncode:
        raise RuntimeError(f"{way} failed")
    return {"seconds": float(process.stdout.read()), "peak_gigabytes": peak / 1e9}


def compare(n: int, d: int, turns: int, seed: int, **how: Any) -> dict[str, Any]:
    """All ways in turn on one log, written in this way."""
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder), n, d, ACTIONS, seed, **how)
        gigabytes = sum(one.stat().st_size for one in Path(folder).iterdir()) / 1e9
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        measure("reading", Path(folder), n, d, ACTIONS)  # fills the file cache
        for _ in range(turns):
            for way in WAYS:
                runs[way].append(measure(way, Path(folder), n, d, ACTIONS))
                print(
                    f"{way:>8}  {runs[way][-1]['seconds']:.2f} s  {runs[way][-1]['peak_gigabytes']:.2f} GB", flush=True
                )
    seconds = {way: median(one["seconds"] for one in found) for way, found in runs.items()}
    return {"gigabytes": gigabytes, "runs": runs, "seconds": seconds}


def in_memory(n: int, d: int, turns: int, seed: int) -> dict[str, Any]:
    """Step B on an array in memory against one plain min/max pass, both in PROCESSES forked processes."""
    global ARRAY, OUTCOME
    rng = np.random.default_rng(seed)
    ARRAY = rng.random((n, d), dtype=np.float32)
    OUTCOME = (rng.integers(0, ACTIONS, n), (rng.random(n) < 0.5) / rng.uniform(0.05, 0.15, n))
    found: dict[str, list[float]] = {"minmax": [], "ours": []}
    pieces = [(start, start + n // PROCESSES) for start in range(0, n // PROCESSES * PROCESSES, n // PROCESSES)]
    for _ in range(turns):
        for name, work in (("minmax", range_piece), ("ours", tally_piece)):
            with ProcessPoolExecutor(PROCESSES) as pool:
                list(pool.map(abs, range(PROCESSES)))  # workers are up
                start = time.perf_counter()
                parts = list(pool.map(work, pieces))
                if name == "ours":
                    parts[0] + parts[1]
                found[name].append(time.perf_counter() - start)
    return found


def range_piece(piece: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest value of every column."""
    part = ARRAY[slice(*piece)]
    return part.min(axis=0), part.max(axis=0)


def tally_piece(piece: tuple[int, int]) -> Tally:
    """Step B of some rows."""
    n, d = ARRAY.shape
    encoding = known_encoding(n, d)
    A, u = OUTCOME
    total = Tally.zero(encoding, ACTIONS)
    for start in range(piece[0], piece[1], BATCH):
        stop = min(start + BATCH, piece[1])
        columns = [pa.chunked_array([x]) for x in ARRAY[start:stop].T.copy()]
        total += tally_batch(encoding, columns, Taken(A[start:stop], u[start:stop], ACTIONS))
    return total


def growth(seed: int, quick: bool) -> list[dict[str, Any]]:
    """Seconds of one process while one axis varies; the Gram matrix measured by itself."""
    small = 20 if quick else 1
    axes: list[tuple[str, list[tuple[int, int, int]]]] = [
        ("rows", [(rows // small, 20, 5) for rows in (100_000, 1_000_000, 10_000_000)]),
        ("features", [(200_000 // small, features, 5) for features in (10, 100, 1_000)]),
        ("actions", [(1_000_000 // small, 20, actions) for actions in (2, 20, 200)]),
    ]
    found = []
    for axis, cases in axes:
        for n, d, k in cases:
            seconds = {gram: tally_seconds(n, d, k, seed, gram) for gram in (False, True)}
            case = {"axis": axis, "rows": n, "features": d, "actions": k, "seconds": seconds[False]}
            case |= {"with_gram": seconds[True], "nanoseconds_per_cell": seconds[False] / n / d * 1e9}
            print(f"{axis:>9}: {n:>11,} x {d:<5} k={k:<4} {case['seconds']:8.2f} s, with Gram {seconds[True]:8.2f} s, "
                  f"{case['nanoseconds_per_cell']:.1f} ns per cell", flush=True)  # fmt: skip
            found.append(case)
    return found


def tally_seconds(n: int, d: int, k: int, seed: int, gram: bool) -> float:
    """Time to tally n rows, made batch by batch outside the clock; always 47 levels, so that only the axis varies."""
    rng = np.random.default_rng(seed)
    encoding = known_encoding(100_000, d)
    total, spent, left = Tally.zero(encoding, k), 0.0, n
    base = [rng.random(BATCH, dtype=np.float32) for _ in range(min(d, 50))]
    while left > 0:
        rows = min(left, BATCH)
        columns = [pa.chunked_array([base[i % len(base)][:rows]]) for i in range(d)]
        taken = Taken(rng.integers(0, k, rows), (rng.random(rows) < 0.5) * 5.0, k)
        start = time.perf_counter()
        total += tally_batch(encoding, columns, taken, gram)
        spent += time.perf_counter() - start
        left -= rows
    return spent


def verdict(compared: dict[str, Any], memory: dict[str, Any]) -> dict[str, dict[str, float | bool]]:
    """Each bar, what was measured on one log, and whether it holds."""
    seconds = compared["seconds"]
    peak = median(one["peak_gigabytes"] for one in compared["runs"]["ours"])
    measured = {
        "reading": seconds["ours"] / seconds["reading"],
        "polars": seconds["polars"] / seconds["ours"],
        "duckdb": seconds["duckdb"] / seconds["ours"],
        "memory": peak,
        "minmax": median(memory["ours"]) / median(memory["minmax"]),
    }
    at_most = ("reading", "memory", "minmax")
    return {
        name: {"bar": bar, "measured": measured[name], "holds": (measured[name] <= bar) == (name in at_most)}
        for name, bar in BARS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--actions", type=int, default=ACTIONS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        if given.way in ("polars", "duckdb"):
            __import__(given.way)
        with start_workers(given.folder, given.features, given.actions) as engine:
            start = time.perf_counter()
            WAYS[given.way](given.folder, given.rows, given.features, given.actions, engine)
            print(time.perf_counter() - start)
        return
    started = now()
    n, turns = (100_000, 1) if given.quick else (given.rows, given.turns)
    compared = {name: compare(n, given.features, turns, given.seed, **how) for name, how in LOGS.items()}
    with threadpool_limits(1):
        memory = in_memory(n * 2 // 5, given.features, turns, given.seed)
        grown = growth(given.seed, given.quick)
    measured = {
        "rows": n,
        "features": given.features,
        "actions": ACTIONS,
        "bins": bin_count(n),
        "processes": PROCESSES,
        "compiled": COMPILED,
        "compared": compared,
        "in_memory": memory,
        "growth": grown,
        "bars": {log: verdict(found, memory) for log, found in compared.items()},
    }
    for log, bars in measured["bars"].items():
        for name, bar in bars.items():
            told = f"{bar['measured']:.2f} (bar {bar['bar']}) {'holds' if bar['holds'] else 'MISSED'}"
            print(f"{log:>12}, {name:>8}: {told}")
    print(write_record("relevance_rows_per_second", measured, seed=given.seed, started=started, folder=given.results))


if __name__ == "__main__":
    # workers must find these classes by a name that is not "__main__"
    import relevance_rows_per_second

    relevance_rows_per_second.main()
