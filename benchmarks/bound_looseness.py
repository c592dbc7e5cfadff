"""How loose is Theorem 1: by what factor does the bound exceed |G_hat - g|, and from how many rows does it certify?

    python benchmarks/bound_looseness.py [--logs 2000]

Small finite worlds with known propensities (those of tests/test_bounds.py), all pairs at once, delta = 0.05.
ratio      median over logs and pairs (a, i) of bound / |G_hat - g|
violated   share of logs with any pair beyond its bound (allowed: 3 delta = 0.15)
certified  share of truly relevant pairs with G_hat > bound; the printed form may not certify
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from record import RESULTS, now, write_record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/steps"))  # the worlds and their simulator live there
from test_bounds import LOSSES, WORLDS, bounds_of, simulated_logs, true_relevance

SEED = 20_261_116
ROWS = (300, 3_000, 30_000, 300_000)
DELTA = 0.05


def looseness(name: str, n: int, loss: str, T: int) -> dict[str, dict[str, float]]:
    """Ratio, violated, certified per form."""
    logs = simulated_logs(WORLDS[name], n, T, np.random.default_rng([SEED, n]))
    g = true_relevance(WORLDS[name], loss)
    error = np.abs(logs.G[loss] - g)
    found = {}
    for form, bound in bounds_of(WORLDS[name], logs, n, loss, DELTA).items():
        found[form] = {
            "ratio": float(np.median(bound / np.maximum(error, 1e-12))),
            "violated": float(np.any(error > bound, axis=(1, 2)).mean()),
        }
        if form != "printed":
            found[form]["certified"] = float((logs.G[loss] > bound)[:, g > 1e-12].mean())
    return found


def line(name: str, n: int, loss: str, found: dict[str, dict[str, float]]) -> str:
    """One line of the table."""
    forms = [
        f"{form} {f['ratio']:8.1f} {f['violated']:.3f} {f.get('certified', float('nan')):.2f}"
        for form, f in found.items()
    ]
    return f"{name:21s} {n:7d} {loss}  " + "  |  ".join(forms)


def main() -> int:
    """Print the table and keep the raw results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=2000, help="simulated logs per world and size")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw results")
    asked = parser.parse_args()
    started, measured = now(), dict[str, Any]()
    print("world                       n loss  form ratio violated certified")
    for loss in LOSSES:
        for name in WORLDS:
            for n in ROWS:
                found = looseness(name, n, loss, asked.logs)
                measured[f"{name}, n = {n}, {loss}"] = found
                print(line(name, n, loss, found), flush=True)
    path = write_record(
        "bound_looseness",
        {"logs": asked.logs, "delta": DELTA, "cases": measured},
        seed=SEED,
        started=started,
        folder=asked.results,
    )
    print(f"Raw results: {path}")
    return int(any(f["violated"] > 3 * DELTA for found in measured.values() for f in found.values()))


if __name__ == "__main__":
    sys.exit(main())
