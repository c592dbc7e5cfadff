"""What does valuing a policy cost beyond fitting its corrections? At most 3 times, with 1,000,000 rows x 10 actions.

`ponn.evaluate` from a log in memory to an Estimate (encoding, cross-fitted propensities and reward models, the policy's
probabilities on every row, doubly robust value, normal interval, overlap) against its fits alone: the same scikit-learn
models fitted to the same folds of a design matrix that is ready, nothing predicted. Both alternate within each turn,
medians are compared. A world with few features makes the bar harder, as fits grow faster with them than the rest.
The policy is a network of the usual size, learned from a few rows of the same world: its worth does not matter here.

Matrix products run on one thread, so that the processor time of this process is the time it would take alone; on a busy
machine that, not the clock, is to be compared. One turn of 1,000,000 rows takes some 2 to 3 minutes of one core, nearly
all of it in the fits of the propensity models; --rows 250000 takes a quarter.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import ponn
from ponn.evaluation.valuation import FOLDS
from ponn.simulate.synthetic import Synthetic, fresh
from ponn.steps.propensity import fold_numbers, make_classifier
from ponn.steps.reward import fit_rewards
from record import RESULTS, now, write_record

ROWS, FEATURES, ACTIONS, LEARNED_FROM = 1_000_000, 10, 10, 5_000
BAR = 3.0  # times the fits alone


def fits_alone(X: np.ndarray, log: ponn.Log, fold: np.ndarray, settings: ponn.Settings) -> None:
    """The propensity model and the reward models of each fold, fitted and thrown away."""
    k = len(log.actions)
    for number in range(FOLDS):
        seen = fold != number
        rows, A, R = X[seen], log.A[seen], log.R[seen]
        make_classifier(settings, k * X.shape[1]).fit(rows.astype(float), A)
        fit_rewards(rows, A, R, np.ones(len(A)), k, settings.reward_penalty)


def measure(rows: int, turns: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Seconds by the clock and of the processor: of the fits alone and of the whole evaluation, in turns."""
    told(f"making a log of {rows:,} rows")
    world = Synthetic(rows=rows, features=FEATURES, actions=ACTIONS, relevant=3, bias=0.5, seed=seed)
    policy = ponn.learn(fresh(world, LEARNED_FROM, seed + 1).log, epochs=5)
    log = fresh(world, rows, seed + 2).log
    X, fold = ponn.Encoding.fit(log).design(log), fold_numbers(log, FOLDS, 0)
    ways: dict[str, Callable[[], Any]] = {
        "fits alone": lambda: fits_alone(X, log, fold, ponn.Settings()),
        "evaluate": lambda: print(ponn.evaluate(policy, log)),
    }
    found: dict[str, dict[str, list[float]]] = {way: {"clock": [], "processor": []} for way in ways}
    for turn in range(turns):
        for way, work in ways.items():
            told(f"turn {turn + 1} of {turns}: {way}")
            start = time.perf_counter(), time.process_time()
            work()
            found[way]["clock"].append(time.perf_counter() - start[0])
            found[way]["processor"].append(time.process_time() - start[1])
    return found


def told(what: str) -> None:
    """Say what is done next, and when."""
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    started = now()
    with threadpool_limits(1):
        found = measure(given.rows, given.turns, given.seed)
    middle = {way: {kind: median(took) for kind, took in times.items()} for way, times in found.items()}
    for way, took in middle.items():
        print(f"{way:>12}: {took['processor']:8.2f} s of the processor, {took['clock']:8.2f} s by the clock")
    ratio = middle["evaluate"]["processor"] / middle["fits alone"]["processor"]
    print(f"{ratio:.2f} times the fits alone (bar {BAR}): {'holds' if ratio <= BAR else 'MISSED'}")
    measured = {
        "sizes": {"rows": given.rows, "features": FEATURES, "actions": ACTIONS, "folds": FOLDS},
        "seconds": found,
        "bars": {"evaluate": {"bar": BAR, "measured": ratio, "holds": ratio <= BAR}},
    }
    print(write_record("evaluation_cost", measured, seed=given.seed, started=started, folder=given.results))


if __name__ == "__main__":
    main()
