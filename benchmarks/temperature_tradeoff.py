"""What does drawing from PONN-DR's stochastic policy softmax(r / T) cost, and what exploration does it buy?

On logs of the comparison's simulated worlds that no result rests on (seed 1000) PONN-DR is learned once, then drawn
from at several temperatures T and judged by the truth in the test rows:

    kept      share of what the recommendations gain over current practice that draws gain too
    explored  mean probability of drawing another action than the recommended one
    actions   how many equally likely actions would be as uncertain: exp of the mean entropy
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

import ponn
from peer_worlds import SIMULATED, make_world
from ponn.policy.models import Heads, greedy
from record import now, write_record

SEED = 1_000
TEMPERATURES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
WORLDS = tuple(name for name in SIMULATED if not name.endswith(("50", "hard")))  # the quicker ones


def judged(name: str) -> dict[str, Any]:
    """One world at every temperature."""
    world = make_world(name, SEED)
    policy = ponn.learn(world.part("train", "valid").log, "ponn-dr", seed=SEED, workers=1)
    test, model = world.part("test"), policy.model
    assert isinstance(model, Heads)
    X = policy.encoding.design(test.log)
    chosen = greedy(model.scores(X))
    best, practice = test.value(chosen), test.value(test.propensities)
    by_temperature = {}
    for T in TEMPERATURES:
        h = replace(model, temperature=T).probabilities(X)
        entropy = -(h * np.log(np.maximum(h, np.finfo(float).tiny))).sum(axis=1)
        by_temperature[str(T)] = {
            "kept": (test.value(h) - practice) / (best - practice),
            "explored": float(1 - (h * chosen).sum(axis=1).mean()),
            "actions": float(np.exp(entropy.mean())),
        }
    return {"world": name, "recommendations": best, "practice": practice, "temperatures": by_temperature}


def main() -> None:
    """Judge all worlds and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    started, worlds = now(), []
    for name in WORLDS:
        worlds.append(judged(name))
        told = {
            T: {what: round(one, 2) for what, one in found.items()} for T, found in worlds[-1]["temperatures"].items()
        }
        print(name, told, flush=True)
    write_record("temperature_tradeoff", {"worlds": worlds}, seed=SEED, started=started)


if __name__ == "__main__":
    main()
