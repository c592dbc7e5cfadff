"""How many rows per second does batch scoring make, against the products of its network alone, and in what memory?

A network of the paper's size (80 design columns, 10 actions, two policy layers of 100 sigmoid units) recommends for a
Parquet file and writes action and probability to another. The limit is what the same cores would do if nothing but the
network's products cost time: FLOPs of a row over the rate of a large single-precision product, measured right before
and right after, with as many threads, so that both see the same load. Peak memory is that of the process, at two
numbers of rows. Other formats are told without a bar. Linux only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.log.encoding import Encoding
from ponn.log.features import NumberFeature
from ponn.policy.inference import Architecture
from ponn.policy.models import Network
from ponn.policy.policy import Policy
from ponn.tables.files import writing
from record import RESULTS, now, write_record

SEED = 20_261_117
ROWS, LONGER = 1_000_000, 4  # rows of the bar on speed; how many times as many for the bar on memory
FEATURES, ACTIONS, HIDDEN = 80, 10, (100, 100)
FLOPS = 2 * (FEATURES * ACTIONS * HIDDEN[0] + ACTIONS * HIDDEN[0] * HIDDEN[1] + ACTIONS * HIDDEN[1])  # of one row
LEAST_SHARE, MOST_GROWTH = 0.20, 1.20
PRODUCT, PRODUCTS = 1_024, 24  # size of the large product, and how many of it each thread makes
WRITTEN_ROWS = 100_000
OTHERS = (".csv", ".csv.gz", ".jsonl", ".feather")
OTHER_ROWS = 50_000


def made_policy() -> Policy:
    """The paper's network with random weights on standard normal numbers."""
    rng = np.random.default_rng(SEED)
    architecture = Architecture(ACTIONS, FEATURES, HIDDEN)
    weights = {name: rng.normal(size=shape).astype(np.float32) * 0.3 for name, shape in architecture.shapes.items()}
    features = tuple(
        NumberFeature(f"x{i}", "number", -6.0, 6.0, 10, None, None, False, 0.0, 1.0) for i in range(FEATURES)
    )
    actions = tuple(f"action {a}" for a in range(ACTIONS))
    selected = np.ones((ACTIONS, FEATURES), bool)
    return Policy(actions, Encoding(features, ROWS), Network(architecture, weights), selected, (), "ponn", {}, {})


def write_rows(path: Path, rows: int) -> None:
    """Standard normal numbers in single precision."""
    rng = np.random.default_rng(SEED)
    schema = pa.schema([(f"x{i}", pa.float32()) for i in range(FEATURES)])
    with writing(path, schema) as write:
        for start in range(0, rows, WRITTEN_ROWS):
            X = rng.standard_normal((FEATURES, min(WRITTEN_ROWS, rows - start)), np.float32)
            write(pa.table(list(X), schema))


# One measurement, in a process of its own ----------------------------------------------------------------


def measure(rows: str, out: str) -> None:
    """Print seconds, FLOP per second of large products before and after, and the peak memory."""
    from ponn.policy.batches import cores, one_blas_thread, write_recommendations

    policy = made_policy()
    with one_blas_thread():
        before = product_rate(cores())
        done = write_recommendations(policy, rows, out, columns=("action", "probability"))
        peak = peak_memory()
        after = product_rate(cores())
    print(json.dumps({"rows": done.rows, "seconds": done.seconds, "rates": [before, after], "peak": peak}))


def product_rate(threads: int) -> float:
    """FLOP per second of large products, one stream of them in each thread."""
    one = np.ones((PRODUCT, PRODUCT), np.float32)

    def multiply(_: int) -> None:
        out = np.empty_like(one)
        for _ in range(PRODUCTS):
            np.matmul(one, one, out=out)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply, range(threads)))  # warm
        start = time.perf_counter()
        list(pool.map(multiply, range(threads)))
        return threads * PRODUCTS * 2 * PRODUCT**3 / (time.perf_counter() - start)


def peak_memory() -> int:
    """Bytes of this process at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def measured(rows: Path, out: Path, repeats: int) -> list[dict[str, Any]]:
    """Measurements in processes of their own."""
    command = [sys.executable, __file__, "--measure", str(rows), str(out)]
    return [json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout) for _ in range(repeats)]


# What they say -------------------------------------------------------------------------------------------


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Median rows per second, share of the products' limit, and highest peak memory."""
    speeds = [one["rows"] / one["seconds"] for one in found]
    shares = [speed * FLOPS / np.mean(one["rates"]) for speed, one in zip(speeds, found, strict=True)]
    return {
        "rows": found[0]["rows"],
        "rows_per_second": median(speeds),
        "share": median(shares),
        "limit": median(float(np.mean(one["rates"])) / FLOPS for one in found),
        "peak": max(one["peak"] for one in found),
    }


def line(name: str, told: dict[str, float]) -> str:
    """One row of the printed table."""
    return (
        f"{name:<22}{told['rows']:>11,}{told['rows_per_second']:>12,.0f}{told['limit']:>12,.0f}"
        f"{told['share']:>8.1%}{told['peak'] / 1e6:>9.0f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw results")
    parser.add_argument("--measure", nargs=2, metavar=("ROWS", "OUT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(*asked.measure)
        return 0

    started = now()
    told: dict[str, dict[str, float]] = {}
    raw: dict[str, list[dict[str, Any]]] = {}
    print(f"{'from':<22}{'rows':>11}{'rows/s':>12}{'limit':>12}{'share':>8}{'peak MB':>9}")
    cases = [(".parquet", asked.rows, asked.repeats), (".parquet", LONGER * asked.rows, 1)]
    cases += [(ending, min(OTHER_ROWS, asked.rows), 1) for ending in OTHERS]
    for ending, rows, repeats in cases:
        name = f"{ending} {rows:,}"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"rows{ending}"
            write_rows(path, rows)
            raw[name] = measured(path, Path(folder) / "out.parquet", repeats)
        told[name] = summary(raw[name])
        print(line(ending, told[name]), flush=True)
    path = write_record(
        "recommend_rows_per_second", {"summary": told, "raw": raw}, seed=SEED, started=started, folder=asked.results
    )
    print(f"Raw results: {path}")
    short, long = list(told.values())[:2]
    return verdict(short, long) if asked.rows >= ROWS else 0


def verdict(short: dict[str, float], long: dict[str, float]) -> int:
    """Say whether the bars hold; the exit status."""
    growth = long["peak"] / short["peak"]
    held = short["share"] >= LEAST_SHARE and growth <= MOST_GROWTH
    print(
        f"{'Held' if held else 'NOT HELD'}: {short['share']:.1%} of the products' limit (at least {LEAST_SHARE:.0%}); "
        f"peak memory with {LONGER} times the rows {growth:.2f} times (at most {MOST_GROWTH:g})"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
