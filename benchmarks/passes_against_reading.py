"""What do Step B, Step A and evaluation cost on disk, in times of only reading the same files?

Bars for 5,000,000 x 40 with 10 actions: Step B at most 2.2 times only reading with local processes and 4 times on Ray
(without its start), Step A at most 12 passes, evaluation at most 3. Times are the clock's, the least of several rounds,
each of which reads and counts by turns: what the best round shows is least disturbed by other work. Step B is measured
on the log of relevance_rows_per_second.py with plain columns, which read fastest; how often Step A passes depends on
what there is to learn, so passes are counted on a log with a logging policy and rewards (--world measures Step B on
that one too).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cost_per_row import random_policy
from larger_than_memory import ACTIONS, FEATURES, Part, World
from ponn.engine.choice import engine_of
from ponn.engine.passes import Engine, Passes
from ponn.evaluation.shard_evaluation import compare_sharded
from ponn.log.sharded import ShardedLog, read_sharded
from ponn.settings import Settings
from ponn.steps.shard_steps import Practice, TallySums, fit_practice
from record import RESULTS, now, write_record
from relevance_rows_per_second import OnlyRead, write_log

ROLES = {"action": "action", "reward": "reward", "propensity": "propensity"}
BARS = {"local": 2.2, "ray": 4.0, "Step A": 12, "evaluation": 3}
FILES = 5


def made(folder: Path, rows: int, seed: int, engine: Engine) -> None:
    """A log with a logging policy and rewards, in files."""
    folder.mkdir()
    parts = [Part(number, rows // FILES, str(folder)) for number in range(FILES)]
    list(Passes(engine).over("make the log", World(seed), parts))


def opened(folder: Path, engine: Engine) -> tuple[ShardedLog, Any]:
    """A log in eight or more shards, and its encoding."""
    log = read_sharded(folder, Passes(engine), shard_rows=500_000, **ROLES)
    return log, log.fit_encoding(Passes(engine), Settings())


def seconds_of(engine: Engine, work: Callable[[Any], Any], log: ShardedLog) -> float:
    """One pass."""
    started = time.perf_counter()
    for _ in Passes(engine).over("pass", work, log.shards):
        pass
    return time.perf_counter() - started


def step_b_against_reading(log: ShardedLog, encoding: Any, engines: dict[str, Engine], rounds: int) -> dict[str, Any]:
    """Seconds of only reading with local processes, and of Step B with each engine."""
    names = (*log.features, *log.columns.roles().values())
    works = {"only reading": ("local", OnlyRead(names))}
    works |= {name: (name, TallySums(log.reader, encoding, Practice(None, np.inf, 0))) for name in engines}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for name in engines:  # workers start, imports are done
        seconds_of(engines[name], works[name][1], log)
    for _ in range(rounds):
        for name, (engine, work) in works.items():
            seconds[name].append(seconds_of(engines[engine], work, log))
    return seconds


def pass_counts(folder: Path, engine: Engine, seed: int) -> dict[str, int]:
    """Passes over the rows of Step A, and of an evaluation with known propensities."""
    log, encoding = opened(folder, engine)
    unknown = read_sharded(folder, Passes(engine), action="action", reward="reward", ignore=["propensity"])
    step_a, evaluation = Passes(engine), Passes(engine)
    fit_practice(unknown, encoding, step_a, Settings())
    policy = random_policy(log, encoding, np.random.default_rng(seed))
    compare_sharded({"policy": policy}, log, encoding, evaluation)
    return {"Step A": len(step_a.done), "evaluation": len(evaluation.done)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", default="local,ray", help="with commas; local must be among them")
    parser.add_argument("--world", action="store_true", help="Step B on the log with a logging policy too")
    parser.add_argument("--no-passes", action="store_true", help="leave out the counts of passes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    started = now()
    engines = {name: engine_of(name, given.workers) for name in given.engines.split(",")}
    try:
        with tempfile.TemporaryDirectory() as name:
            world, plain = Path(name) / "world", Path(name) / "plain"
            if given.world or not given.no_passes:
                made(world, given.rows, given.seed, engines["local"])
            if not given.world:
                plain.mkdir()
                write_log(plain, given.rows, FEATURES, ACTIONS, given.seed, use_dictionary=False)
            log, encoding = opened(world if given.world else plain, engines["local"])
            seconds = step_b_against_reading(log, encoding, engines, given.rounds)
            counts = {} if given.no_passes else pass_counts(world, engines["local"], given.seed)
    finally:
        for one in engines.values():
            one.close()
    measured = {name: min(seconds[name]) / min(seconds["only reading"]) for name in engines} | counts
    bars = {name: {"bar": BARS[name], "measured": one, "holds": one <= BARS[name]} for name, one in measured.items()}
    for name, one in bars.items():
        print(f"{name:>12}: {one['measured']:.2f}, at most {one['bar']} {'holds' if one['holds'] else 'FAILS'}")
    found = {"rows": given.rows, "world": given.world, "seconds": seconds, "bars": bars}
    print(write_record("passes_against_reading", found, seed=given.seed, started=started, folder=given.results))


if __name__ == "__main__":
    # workers must find these classes by a name that is not "__main__"
    import passes_against_reading

    passes_against_reading.main()
