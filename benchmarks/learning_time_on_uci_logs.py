"""Does PONN-DR, which tunes itself, learn from a UCI log within a minute on two cores?

Three logs of each UCI world of the comparison with peers, training and validation rows together, and one log of all
rows of each table; each in a process of its own that may use all cores. Seconds by the clock, so nothing else should
run: the load before each log is told beside them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import product
from typing import Any

from peer_worlds import UCI, make_world
from record import now, write_record

NAME, SEEDS = "learning_time_on_uci_logs", 3
WHOLE = ", all rows"


def measure(name: str, seed: int) -> dict[str, Any]:
    """Learn once, here."""
    import ponn

    world = make_world(name.removesuffix(WHOLE), seed)
    log = world.log if name.endswith(WHOLE) else world.part("train", "valid").log
    load, started = os.getloadavg()[0], time.perf_counter()
    ponn.learn(log, "ponn-dr", seed=seed)
    seconds = time.perf_counter() - started
    return {"world": name, "seed": seed, "rows": len(log), "seconds": seconds, "load_before": load}


def in_a_process(name: str, seed: int) -> dict[str, Any]:
    """Learn once, elsewhere."""
    command = [sys.executable, __file__, "--one", name, "--seed", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure every log and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole = [f"{name}{WHOLE}" for name in UCI if name.endswith("paper")]
    parser.add_argument("--one", choices=[*UCI, *whole], help="measure this world here and print it")
    parser.add_argument("--seed", type=int, default=0, help="of the log that is measured here")
    given, started = parser.parse_args(), now()
    if given.one:
        print(json.dumps(measure(given.one, given.seed)))
        return
    logs = []
    for name, seed in [*product(UCI, range(SEEDS)), *((name, 0) for name in whole)]:
        logs.append(in_a_process(name, seed))
        print(f"{name} {seed}: {logs[-1]['seconds']:.1f} s, load before {logs[-1]['load_before']:.1f}", flush=True)
    write_record(NAME, {"logs": logs}, seed=0, started=started)


if __name__ == "__main__":
    main()
