"""How does the time to learn a policy by PONN-DR grow with the rows?

A parametric world with 20 features and 5 actions; every size in a process of its own. Processor seconds, so that other
load does not count, and the most memory that the process held. Sizes that were measured before stay in the record.
`--rows 1000000` adds one.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from record import RESULTS, now, write_record

NAME = "learning_time_by_rows"
ROWS = (10_000, 30_000, 100_000)
WORLD: dict[str, Any] = {"features": 20, "actions": 5}


def measure(rows: int) -> dict[str, Any]:
    """Learn once, here."""
    import ponn
    from ponn.simulate.synthetic import synthetic

    sys.path.append(str(Path(__file__).parent / "peers"))
    from trials import peak, used

    world = synthetic(rows=rows, seed=1_000, **WORLD)
    started, wall = os.times(), time.perf_counter()
    steps: list[tuple[str, float]] = []
    policy = ponn.learn(
        world.log,
        "ponn-dr",
        workers=1,
        progress=lambda message, done=0, total=0: steps.append((message, used(started))),
    )
    seconds = used(started)
    by_step: dict[str, float] = {}
    for (message, begun), (_, ended) in pairwise([*steps, ("", seconds)]):
        by_step[message] = by_step.get(message, 0.0) + ended - begun
    return {
        "rows": rows,
        "cpu_seconds": seconds,
        "seconds": time.perf_counter() - wall,
        "milliseconds_per_row": 1_000 * seconds / rows,
        "steps": by_step,
        "peak_bytes": peak(),
        "selection": policy.provenance["training"]["selection"],
    }


def in_a_process(rows: int) -> dict[str, Any]:
    """Learn once, elsewhere, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", str(rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, and write the record with what it held before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--one", type=int, help="measure this size here and print it")
    given, started = parser.parse_args(), now()
    if given.one:
        print(json.dumps(measure(given.one)))
        return
    path = RESULTS / f"{NAME}.json"
    before = json.loads(path.read_text())["measured"]["sizes"] if path.exists() else []
    found = {one["rows"]: one for one in before}
    for rows in given.rows:
        found[rows] = in_a_process(rows)
        print(f"{rows} rows: {found[rows]['cpu_seconds']:.0f} s of processor time", flush=True)
        write_record(
            NAME, {"world": WORLD, "sizes": [found[one] for one in sorted(found)]}, seed=1_000, started=started
        )


if __name__ == "__main__":
    main()
