"""How much longer does training take where weights shrink below 1e-38 and are kept as such numbers?

    python benchmarks/vanishing_weights.py [--turns 3]

banditnet with rectified units and a penalty on the squares of its weights on pendigits, with and without
`ponn.training.loop.tiny_numbers_are_zero`, in turns; the largest difference of what the two networks recommend is told.
"""

import argparse
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

import ponn
from ponn.simulate.worlds import World
from ponn.training import loop as train
from record import RESULTS, now, write_record

SETTINGS = {"activation": "relu", "l2": 1e-2, "epochs": 60, "patience": 60}


def learned(world: World, how: AbstractContextManager, seed: int) -> tuple[float, np.ndarray]:
    """Seconds of training, and probabilities of the actions."""
    start = time.perf_counter()
    with how:
        policy = ponn.learn(world.log, "banditnet", seed=seed, workers=1, **SETTINGS)
    return time.perf_counter() - start, policy.predict_proba(world.log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw results")
    asked = parser.parse_args()

    started, world = now(), ponn.simulate.world("pendigits", seed=asked.seed, scaling="paper")
    raw: dict[str, list[float]] = {"zero": [], "kept": []}
    for _ in range(asked.turns):
        zero, h = learned(world, nullcontext(), asked.seed)
        kept, h_kept = learned(world, patch.object(train, "tiny_numbers_are_zero", nullcontext), asked.seed)
        raw["zero"].append(zero)
        raw["kept"].append(kept)
    ratio, difference = min(raw["kept"]) / min(raw["zero"]), float(np.abs(h - h_kept).max())
    told = {"times as long where kept": ratio, "largest difference of a probability": difference}
    print(
        f"kept: {min(raw['kept']):.1f} s, zero: {min(raw['zero']):.1f} s, {ratio:.1f} times; differ by {difference:.1e}"
    )
    path = write_record(
        "vanishing_weights", {"summary": told, "raw": raw}, seed=asked.seed, started=started, folder=asked.results
    )
    print(f"Raw results: {path}")


if __name__ == "__main__":
    main()
