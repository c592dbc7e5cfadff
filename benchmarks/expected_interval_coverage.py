"""How often does the interval of an expected reward (`expected_low` to `expected_high`) hold the true E[R | x, a]?

    python benchmarks/expected_interval_coverage.py [--logs 5]

Worlds whose truth is known; policies learned on 70 % of the rows; rows and actions looked at are those of the other
30 % that the policy calls supported and whose action somebody similar took. Nominal: 0.95.
covered   share of these pairs (row, action) whose truth the interval holds
best      the same, only the action that promises most in each row
width     mean width of the interval, as a share of the reward's range
nobody    share of the supported pairs without anybody similar who took the action: no interval is given
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ponn
from ponn.simulate.synthetic import synthetic
from record import RESULTS, now, write_record

SIZES = (500, 2_000, 10_000)
METHODS = ("logging", "lr-l1", "direct-forest")  # the reward model a policy carries; two that promise by themselves
TWELVE = {"features": 12, "actions": 3, "bias": 0.7, "categorical": 0.3}
WORLDS: dict[str, dict[str, Any]] = {
    "linear": TWELVE | {"shape": "linear", "relevant": 3, "effect": 0.08},
    "step": TWELVE | {"shape": "step", "relevant": 3, "effect": 0.16},
    "bump": TWELVE | {"shape": "bump", "relevant": 3, "effect": 0.12},
    "xor": TWELVE | {"shape": "step", "relevant": 2, "effect": 0.12, "xor_pairs": 1},
    "step, continuous": TWELVE | {"shape": "step", "relevant": 3, "effect": 0.16, "reward": "continuous"},
}


def world(name: str, n: int, seed: int) -> ponn.World:
    """A world by name."""
    if name == "breast-cancer":
        return ponn.simulate.world(name, rows=n, seed=seed)
    return synthetic(rows=n, seed=seed, **WORLDS[name])


def coverage(made: ponn.World, method: str) -> np.ndarray:
    """Pairs supported, pairs with an interval, covered, sum of widths; and, of the best actions, intervals, covered."""
    rest = made.part("test")
    policy = ponn.learn(made.part("train", "valid").log, method)
    X = policy.encoding.design(rest.log)
    supported, r, n = policy.support(X), policy.promised(X), len(X)
    assert supported is not None
    assert r is not None
    ends = [policy.expected_interval(X, np.full(n, a)) for a in range(len(policy.actions))]
    low, high = (np.column_stack(one) for one in zip(*ends, strict=True))  # [n, k]
    known = supported & ~np.isnan(low)
    hit = known & (low <= rest.expected) & (rest.expected <= high)
    best = np.arange(n), r.argmax(axis=1)
    width = np.where(known, high - low, 0).sum()
    return np.array([supported.sum(), known.sum(), hit.sum(), width, known[best].sum(), hit[best].sum()])


def main() -> None:
    """Print the table and keep the raw results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=5, help="logs per world and size")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw results")
    asked = parser.parse_args()
    started, measured = now(), dict[str, Any]()
    for name in ("breast-cancer", *WORLDS):
        for n in SIZES:
            for method in METHODS:
                total = sum(coverage(world(name, n, seed), method) for seed in range(asked.logs))
                pairs, known, hit, width, best, best_hit = map(float, total)
                found = {"covered": hit / known, "best": best_hit / best, "width": width / known}
                found["nobody"] = 1 - known / pairs
                measured[f"{name}, n = {n}, {method}"] = found
                told = "  ".join(f"{what} {value:.3f}" for what, value in found.items())
                print(f"{name:17s} {n:6d} {method:14s} {told}", flush=True)
    content = {"logs": asked.logs, "cases": measured}
    path = write_record("expected_interval_coverage", content, seed=0, started=started, folder=asked.results)
    print(f"Raw results: {path}")


if __name__ == "__main__":
    sys.exit(main())
