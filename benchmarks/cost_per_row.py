"""What does each pass over a log on disk cost per row, and how does that grow with rows, features and actions?

Processor seconds of one process (not the clock's, so that other load does not count), beside only reading the same
columns; and the bytes of a partial result, which is what travels over a network.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

from larger_than_memory import World
from ponn.engine.passes import Here, Passes, pack
from ponn.evaluation.shard_evaluation import ValueSums
from ponn.log.sharded import ShardedLog, Summarising, read_sharded
from ponn.log.survey import Names, Surveying
from ponn.policy.inference import Architecture
from ponn.policy.models import Network
from ponn.policy.policy import Policy
from ponn.settings import Settings
from ponn.steps.shard_steps import ContributingRows, LoggingSums, Practice, RewardSums, TallySums
from record import RESULTS, now, write_record
from relevance_rows_per_second import OnlyRead

CASES = [(100_000, 40, 10), (300_000, 40, 10), (1_000_000, 40, 10), (200_000, 10, 10), (200_000, 160, 10),
         (200_000, 40, 2), (200_000, 40, 40)]  # fmt: skip
FOLDS = 5


class Timed:
    """This process, with its processor seconds and the bytes of its partial results."""

    def __init__(self) -> None:
        self.seconds, self.bytes = 0.0, 0

    def run(self, work: Callable[[Any], Any], shards: dict[int, Any]) -> Iterator[tuple[int, bytes]]:
        """Results in order."""
        for place, shard in shards.items():
            started = time.process_time()
            content = pack(work(shard))
            self.seconds += time.process_time() - started
            self.bytes = max(self.bytes, len(content))
            yield place, content

    def close(self) -> None:
        """Nothing was started."""


def random_policy(log: ShardedLog, encoding: Any, rng: np.random.Generator) -> Policy:
    """A network of the default size that was never trained: what it takes to ask it does not depend on its weights."""
    shape = Architecture(len(log.actions), len(encoding.owner), Settings().hidden)
    weights = {name: 0.1 * rng.normal(size=size).astype(np.float32) for name, size in shape.shapes.items()}
    selected = np.ones((len(log.actions), len(log.features)), bool)
    return Policy(log.actions, encoding, Network(shape, weights), selected, (), "ponn", {}, {})


def passes_of(log: ShardedLog, encoding: Any, rng: np.random.Generator) -> dict[str, Any]:
    """The work of every pass."""
    reader, size, k = log.reader, len(encoding.owner) + 1, len(log.actions)
    theta = 0.1 * rng.normal(size=(1, size, k))
    folded = np.repeat(theta, FOLDS, axis=0)
    known, estimated = Practice(None, np.inf, 0), Practice(theta, 1e3, 0)
    policy = random_policy(log, encoding, rng)
    names = [*log.features, *reader.columns.roles().values()]
    return {
        "only reading": OnlyRead(tuple(names)),
        "survey": Surveying(Names(reader.columns, log.features), False, 100),
        "levels": Summarising(reader, 100),
        "Step A": LoggingSums(reader, encoding, theta, 0),
        "Step A, 5 folds": LoggingSums(reader, encoding, folded, 0),
        "Step B": TallySums(reader, encoding, known),
        "Step B, propensities estimated": TallySums(reader, encoding, estimated),
        "reward models": RewardSums(reader, encoding, theta, 0),
        "reward models, 5 folds": RewardSums(reader, encoding, folded, 0),
        "rows of Step C": ContributingRows(reader, encoding, known, True, False, 1.0),
        "values": ValueSums(reader, encoding, known, folded, (policy,), 0, 10_000, np.ones(len(log.actions))),
    }


def measure(n: int, d: int, k: int, seed: int) -> dict[str, Any]:
    """Seconds per million rows and bytes of each pass."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(World(seed, d, k).rows(rng, n), Path(folder) / "part.parquet", row_group_size=100_000)
        roles = {"action": "action", "reward": "reward", "propensity": "propensity"}
        log = read_sharded(folder, Passes(Here()), **roles)
        encoding = log.fit_encoding(Passes(Here()), Settings())
        found = {}
        for name, work in passes_of(log, encoding, rng).items():
            engine = Timed()
            list(Passes(engine).over(name, work, log.shards))
            each = engine.seconds / n * 1e6
            found[name] = {"seconds_per_million": each, "bytes": engine.bytes}
            told = f"{each:7.2f} s per million rows, {engine.bytes / 1e6:8.2f} MB"
            print(f"{n:>9,} x {d:<4} k={k:<3} {name:>32}: {told}", flush=True)
    return {"rows": n, "features": d, "actions": k, "passes": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    started = now()
    small = 20 if given.quick else 1
    with threadpool_limits(1):
        cases = [measure(n // small, d, k, given.seed) for n, d, k in CASES]
    print(write_record("cost_per_row", {"cases": cases}, seed=given.seed, started=started, folder=given.results))


if __name__ == "__main__":
    main()
