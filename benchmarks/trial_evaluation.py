"""Does the value told from a biased log agree with the one of a randomised trial?

ACTG 175, a real trial of four arms, cut in two at random: one half is biased by rejection with known propensities, the
other stays as it was randomised. A policy is learned from the biased half and valued twice: on the biased rows kept
aside, and on the randomised half, which nothing was learned from. 100 splits; the two values should differ by no more
than 1.96 sqrt(se1^2 + se2^2) in about 95 of them.

    python benchmarks/trial_evaluation.py
"""

import argparse
import math
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from ponn.evaluation.intervals import Estimate
from ponn.evaluation.valuation import evaluate
from ponn.learning.holdout import learn_with_holdout
from ponn.methods import DEFAULT_METHOD
from ponn.simulate.catalogue import world
from record import RESULTS, now, write_record

SPLITS = 100
HOLDOUT = 0.5  # of the biased rows, about 500: both halves are needed, to learn from and to value on
BAR = 90


def split(method: str, seed: int) -> dict[str, Any]:
    """One split: the policy's value on the biased rows kept aside, and on the randomised half."""
    trial = world("actg175", seed=seed)
    outcome = learn_with_holdout(trial.part("train", "valid").log, method, seed=seed, holdout=HOLDOUT)
    biased = outcome.value["policy"]
    randomised = evaluate(outcome.policy, trial.part("test").log, allow_low_overlap=True, seed=seed)
    apart = abs(biased.value - randomised.value)
    return {
        "seed": seed,
        "biased": told(biased),
        "randomised": told(randomised),
        "practice": told(outcome.value["logging"]),
        "verdict": outcome.verdict.kind,
        "agree": apart <= 1.96 * math.hypot(biased.standard_error, randomised.standard_error),
    }


def told(found: Estimate) -> dict[str, Any]:
    """What is kept of an estimate."""
    return {name: getattr(found, name) for name in ("value", "low", "high", "standard_error", "n", "ess", "trusted")}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """How often both agree, and their means."""
    return {
        "splits": len(runs),
        "agree": sum(run["agree"] for run in runs),
        "agree_where_trusted": sum(run["agree"] for run in runs if run["biased"]["trusted"]),
        "trusted": sum(run["biased"]["trusted"] for run in runs),
        "mean": {name: mean(runs, name) for name in ("biased", "randomised", "practice")},
        "holds": sum(run["agree"] for run in runs) >= BAR * len(runs) / SPLITS,
    }


def mean(runs: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Mean value and mean standard error over splits."""
    return {part: sum(run[name][part] for run in runs) / len(runs) for part in ("value", "standard_error")}


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=[DEFAULT_METHOD])
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    started, found = now(), {}
    for method in chosen.methods:
        with ProcessPoolExecutor(chosen.workers) as pool:
            runs = list(pool.map(partial(split, method), range(chosen.splits)))
        found[method] = {**summary(runs), "runs": runs}
        print(method, summary(runs))
    if chosen.splits == SPLITS:
        print(write_record("trial_evaluation", found, seed=0, started=started, folder=RESULTS))


if __name__ == "__main__":
    main()
