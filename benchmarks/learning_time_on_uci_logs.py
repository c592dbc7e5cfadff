"""Does PONN-DR, which tunes itself, learn from a UCI log within a minute on two cores?

The logs of the comparison with peers, training and validation rows together; each in a process of its own that may use
all cores. Seconds by the clock, so nothing else should run: the load before each log is told beside them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from peer_worlds import UCI, make_world
from record import now, write_record

NAME, SEED = "learning_time_on_uci_logs", 0


def measure(name: str) -> dict[str, Any]:
    """Learn once, here."""
    import ponn

    world = make_world(name, SEED).part("train", "valid")
    load, started = os.getloadavg()[0], time.perf_counter()
    ponn.learn(world.log, "ponn-dr", seed=SEED)
    return {"world": name, "rows": len(world.log), "seconds": time.perf_counter() - started, "load_before": load}


def in_a_process(name: str) -> dict[str, Any]:
    """Learn once, elsewhere."""
    done = subprocess.run([sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure every log and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=UCI, help="measure this log here and print it")
    given, started = parser.parse_args(), now()
    if given.one:
        print(json.dumps(measure(given.one)))
        return
    logs = []
    for name in UCI:
        logs.append(in_a_process(name))
        print(f"{name}: {logs[-1]['seconds']:.1f} s, load before {logs[-1]['load_before']:.1f}", flush=True)
    write_record(NAME, {"logs": logs}, seed=SEED, started=started)


if __name__ == "__main__":
    main()
