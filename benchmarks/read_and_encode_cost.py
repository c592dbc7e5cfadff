"""What does reading and encoding a log cost, against reading it and standardising its columns by hand?

    python benchmarks/read_and_encode_cost.py [--rows 1000000] [--features 40] [--repeats 5]

baseline   pyarrow.parquet.read_table, then (x - mean) / sd of every feature in NumPy, into one float64 array; the
           array is [d, n], the fastest layout for it ([n, d], as a network reads it, takes twice the time)
ponn       ponn.read_log, Encoding.fit, .levels (Step B), .design (Step C)

The two take turns; each measurement is a process of its own, so that its peak memory is its own. It does the work
three times: "first" pays for memory the system has not handed out before, "again" (the median of the others) does
not. Memory is the first peak over what the process held before it read anything, as a multiple of the table in Arrow.
The bars hold for the float64 log at full size, first and again; the other logs are told without a bar. Linux only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from record import RESULTS, now, write_record

SEED = 20_261_115
ROWS, FEATURES = 1_000_000, 40
MOST_TIME, MOST_MEMORY = 3.0, 3.0  # issue 2, "Must hold"
ACTION, REWARD = "action", "reward"
AGAIN = 2
MB = 1e6


# The logs ------------------------------------------------------------------------------------------------


def feature_table(rows: int, features: int, dtype: type = np.float64) -> pa.Table:
    """Every fourth feature has few values, which become levels; the others are cut into bins."""
    random = np.random.default_rng(SEED)
    columns: dict[str, Any] = {}
    for i in range(features):
        x = random.normal(10, 1 + i, rows)
        columns[f"x{i}"] = (np.round(x / (1 + i)) if i % 4 == 0 else x).astype(dtype)
    columns[ACTION] = random.integers(0, 5, rows)
    columns[REWARD] = random.random(rows)
    return pa.table(columns)


def float64_log(rows: int, features: int, path: Path) -> None:
    pq.write_table(feature_table(rows, features), path)


def float32_log(rows: int, features: int, path: Path) -> None:
    pq.write_table(feature_table(rows, features, np.float32), path)


def row_groups_log(rows: int, features: int, path: Path) -> None:
    """The float64 log in ten row groups, as an appending writer leaves it: every column has several chunks."""
    pq.write_table(feature_table(rows, features), path, row_group_size=max(rows // 10, 1))


def mixed_log(rows: int, features: int, path: Path) -> None:
    """One cell in ten is missing; every fifth feature is text, with 6 or 200 different ones."""
    random = np.random.default_rng(SEED + 1)
    table = feature_table(rows, features)
    for i in range(features):
        missing = random.random(rows) < 0.1
        if i % 5 == 1:
            texts = pa.array([f"text number {level}" for level in range(200 if i % 2 else 6)])
            chosen = pa.array(random.integers(0, len(texts), rows), mask=missing)
            column = pa.DictionaryArray.from_arrays(chosen, texts).cast(pa.string())
        else:
            column = pa.array(table.column(i).to_numpy(), mask=missing)
        table = table.set_column(i, f"x{i}", column)
    pq.write_table(table, path)


LOGS: dict[str, Callable[[int, int, Path], None]] = {
    "float64": float64_log,
    "float32": float32_log,
    "row groups": row_groups_log,
    "missing and text": mixed_log,
}


# The two ways, each in a process of its own --------------------------------------------------------------


def baseline(path: str) -> tuple[int, int]:
    """Text columns, where there are any, are standardised by the number of their text."""
    table = pq.read_table(path)
    features = table.drop_columns([ACTION, REWARD])
    Z = np.empty((features.num_columns, table.num_rows))
    for i, column in enumerate(features.columns):
        if pa.types.is_string(column.type):
            column = pa.chunked_array([column.combine_chunks().dictionary_encode().indices])
        x = column.to_numpy()
        mean, sd = (np.nanmean, np.nanstd) if column.null_count else (np.mean, np.std)
        Z[i] = (x - mean(x)) / sd(x)
    return table.nbytes, Z.nbytes


def ours(path: str) -> tuple[int, int]:
    import ponn

    log = ponn.read_log(path, action=ACTION, reward=REWARD)
    encoding = ponn.Encoding.fit(log)
    levels = encoding.levels(log)
    design = encoding.design(log)
    return log.table.nbytes, levels.nbytes + design.nbytes


def measure(way: str, path: str) -> None:
    """Print seconds, peak memory over the start, and the sizes of the table and of what was made of it."""
    import ponn.log.encoding  # noqa: F401  start-up is no part of either time

    run = {"baseline": baseline, "ponn": ours}[way]
    before = memory("VmRSS")
    first, (table, made) = timed(run, path)
    peak = memory("VmHWM") - before
    again = [timed(run, path)[0] for _ in range(AGAIN)]
    print(json.dumps({"first": first, "again": again, "peak": peak, "table": table, "made": made}))


def timed(run: Callable[[str], tuple[int, int]], path: str) -> tuple[float, tuple[int, int]]:
    start = time.perf_counter()
    sizes = run(path)
    return time.perf_counter() - start, sizes


def memory(what: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at its highest (unlike ru_maxrss, not inherited from the parent)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {what}")


# Taking turns --------------------------------------------------------------------------------------------

Raw = dict[str, list[dict[str, Any]]]  # way → its measurements


def in_turns(path: Path, repeats: int) -> Raw:
    """Measurements of both ways, alternating."""
    found: Raw = {"baseline": [], "ponn": []}
    for _ in range(repeats):
        for way, measurements in found.items():
            command = [sys.executable, __file__, "--measure", way, str(path)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            measurements.append(json.loads(done.stdout))
    return found


def summary(found: Raw) -> dict[str, dict[str, float]]:
    """Per way, median seconds and highest peak memory."""
    return {
        way: {
            "first": median(one["first"] for one in measurements),
            "again": median(seconds for one in measurements for seconds in one["again"]),
            "memory": max(one["peak"] / one["table"] for one in measurements),
            "table": measurements[0]["table"],
            "made": measurements[0]["made"],
        }
        for way, measurements in found.items()
    }


def line(name: str, told: dict[str, dict[str, float]]) -> str:
    """One row of the printed table."""
    theirs, ours = told["baseline"], told["ponn"]
    times = "".join(
        f"{theirs[when]:>8.3f}{ours[when]:>7.3f}{ours[when] / theirs[when]:>7.2f}" for when in ("first", "again")
    )
    sizes = f"{ours['table'] / MB:>8.0f}{theirs['made'] / MB:>7.0f}{ours['made'] / MB:>7.0f}"
    return f"{name:<17}{times}{sizes}{theirs['memory']:>8.2f}{ours['memory']:>7.2f}"


HEAD = """
                          first, s              again, s               MB made  peak / table
log                base   ponn  ratio    base   ponn  ratio   table   base   ponn    base   ponn"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--log", choices=LOGS, action="append", help="only this log; repeat. Default: all")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw results")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "PATH"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(*asked.measure)
        return 0

    started = now()
    raw: dict[str, Raw] = {}
    print(f"{asked.rows:,} rows x {asked.features} features, medians of {asked.repeats} turns")
    print(HEAD)
    for name in asked.log or LOGS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.parquet"
            LOGS[name](asked.rows, asked.features, path)
            raw[name] = in_turns(path, asked.repeats)
        print(line(name, summary(raw[name])), flush=True)
    told = {name: summary(found) for name, found in raw.items()}
    measured = {"rows": asked.rows, "features": asked.features, "summary": told, "raw": raw}
    path = write_record("read_and_encode_cost", measured, seed=SEED, started=started, folder=asked.results)
    print(f"Raw results: {path}")
    at_full_size = (asked.rows, asked.features) == (ROWS, FEATURES)
    return verdict(told["float64"]) if at_full_size and "float64" in told else 0


def verdict(told: dict[str, dict[str, float]]) -> int:
    """Say whether the bars hold; the exit status."""
    ratios = [told["ponn"][when] / told["baseline"][when] for when in ("first", "again")]
    memory_ratio = told["ponn"]["memory"]
    held = max(ratios) <= MOST_TIME and memory_ratio <= MOST_MEMORY
    print(
        f"{'Held' if held else 'NOT HELD'}: float64 log, time {ratios[0]:.2f} first and {ratios[1]:.2f} again "
        f"(at most {MOST_TIME:g}), memory {memory_ratio:.2f} (at most {MOST_MEMORY:g})"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
