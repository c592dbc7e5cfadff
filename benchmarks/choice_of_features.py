"""How should PONN-DR choose its rule of selection: by rewards predicted or by value, and among which rules?

On logs of the comparison's simulated worlds that no result rests on (seeds from 1000 on, on which PONN-DR's own rules
were chosen as well), all rules of PONN-DR and further ones (the loss l1, the weight lambda2 of correlations) are judged
in every fold by the models that PONN-DR judges them with: by the loss with which rewards held out are predicted, by the
doubly robust value of taking what is promised most, and by the true value of that, which only a simulation knows. Then
what several ways of choosing would have taken, in points of true value above no selection.

    python benchmarks/choice_of_features.py --workers 2

symbol   meaning                                                                   shape
Q        rewards that a rule's models promise in rows they never saw               [n, k]
G        doubly robust scores by the models without selection, the same for all    [n, k]
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

import numpy as np

from peer_worlds import SIMULATED, make_world
from ponn.learning.dr.robust import (
    NO_SELECTION,
    SCREENED,
    SCREENING,
    THRESHOLDS,
    Ground,
    fewest_of_the_best,
    part_of,
    prepare_ground,
    screened_rows,
    selections,
    size,
    step_b_without,
    under,
)
from ponn.learning.dr.scores import doubly_robust_scores, gain
from ponn.learning.dr.stacking import fit_kinds, logistic_losses, mixture
from ponn.log.encoding import Encoding
from ponn.methods import settings_of
from ponn.policy.models import greedy
from ponn.settings import Settings
from ponn.steps.relevance import Relevance, relevance
from record import now, write_record

FIRST_SEED, SEEDS = 1_000, 3
CORRELATIONS = {"l2": (0.003, 0.01), "l1": (0.03, 0.1)}  # lambda2: the paper's range, ten times that for l1


@dataclass(frozen=True, eq=False)
class Rule:
    """A way to select features, with Step B under its loss in every fold and on all rows."""

    settings: Settings
    by_fold: Sequence[Relevance]
    whole: Relevance


# One log -------------------------------------------------------------------------------------------------


def judged(task: tuple[str, int]) -> dict[str, Any]:
    """Every rule on one log: columns and pairs kept, held-out loss, doubly robust and true gain over no selection."""
    name, seed = task
    world = make_world(name, seed).part("train", "valid")
    ground = prepare_ground(world.log, Encoding.fit(world.log), settings_of("ponn-dr"), seed)
    rules = all_rules(ground)
    Q = {rule: promised(ground, one) for rule, one in rules.items()}
    j, A, R = np.arange(len(world.log)), ground.rows.A, ground.rows.R
    by_fold = screened_rows(ground)  # the order of rows that PONN-DR's functions expect
    losses = {rule: logistic_losses(one[j, A], R)[by_fold] for rule, one in Q.items()}
    G = doubly_robust_scores(Q[NO_SELECTION], A, R, ground.step_a.weights)
    sizes = {rule: size(one.whole, ground, one.settings) for rule, one in rules.items()}
    own = [rule for rule, _ in selections(ground.settings)]
    found = {}
    for rule, one in Q.items():
        estimated = gain(greedy(one), greedy(Q[NO_SELECTION]), G, None, None)
        truly = world.value(greedy(one)) - world.value(greedy(Q[NO_SELECTION]))
        found[rule] = {
            "own": rule in own,
            "size": sizes[rule],
            "loss": float(losses[rule].mean()),
            "gain": 100 * estimated.value,
            "error": 100 * estimated.error,
            "true_gain": 100 * truly,
        }
    ways = {way: choose(ground, losses, sizes, found) for way, choose in WAYS.items()}
    return {"world": name, "seed": seed, "rules": found, "chosen": ways}


def all_rules(ground: Ground) -> dict[str, Rule]:
    """The rules of PONN-DR by name, then those it does not try."""
    rules = {}
    for loss in CORRELATIONS:
        s = replace(ground.settings, loss=loss)
        there = replace(ground, settings=s)
        whole = relevance(ground.log, ground.encoding, ground.step_a, s)
        by_fold = [step_b_without(there, number) for number in range(ground.folds)]
        tried = dict(selections(s)) if loss == ground.settings.loss else thresholds(s, (0.0,))
        for name, option in (tried | thresholds(s, CORRELATIONS[loss])).items():
            rules[name] = Rule(option, by_fold, whole)
    return rules


def thresholds(settings: Settings, lambda2s: Sequence[float]) -> dict[str, Settings]:
    """The paper's rule with the values of lambda1 that PONN-DR knows for this loss."""
    s = replace(settings, select="threshold")
    return {
        f"{s.loss}, lambda1 = {lambda1:g}, lambda2 = {lambda2:g}": replace(s, lambda1=lambda1, lambda2=lambda2)
        for lambda1 in THRESHOLDS[s.loss]
        for lambda2 in lambda2s
    }


def promised(ground: Ground, rule: Rule) -> np.ndarray:
    """Q: linear models and small forests, calibrated and mixed."""
    rows, small = ground.rows, replace(ground, settings=replace(rule.settings, **SCREENING))
    own = {name: np.empty((len(rows.A), rows.k)) for name in SCREENED}
    for number in range(ground.folds):
        held = np.flatnonzero(ground.fold == number)
        part = part_of(small, number, under(rule.by_fold[number], rule.settings), rows.X[held])
        for name, found in fit_kinds(part, SCREENED).items():
            own[name][held] = found
    taken = {name: one[np.arange(len(rows.A)), rows.A] for name, one in own.items()}
    return mixture(taken, rows)({name: one[None] for name, one in own.items()})


# Ways to choose ------------------------------------------------------------------------------------------

Losses, Sizes, Found = Mapping[str, np.ndarray], Mapping[str, tuple[int, int]], Mapping[str, dict[str, Any]]


def smallest_good(ground: Ground, losses: Losses, sizes: Sizes, found: Found) -> str:
    """As PONN-DR does, but for rules that it closes after two folds."""
    return fewest_of_the_best(ground, {rule: one for rule, one in losses.items() if found[rule]["own"]}, sizes)


def smallest_good_of_all(ground: Ground, losses: Losses, sizes: Sizes, found: Found) -> str:
    """The same among all rules."""
    return fewest_of_the_best(ground, losses, sizes)


def lowest_loss(ground: Ground, losses: Losses, sizes: Sizes, found: Found) -> str:
    """The best prediction, whatever the size."""
    return min(losses, key=lambda rule: float(losses[rule].mean()))


def highest_value(ground: Ground, losses: Losses, sizes: Sizes, found: Found) -> str:
    """The highest doubly robust value."""
    return max(found, key=lambda rule: found[rule]["gain"])


def smallest_valuable(ground: Ground, losses: Losses, sizes: Sizes, found: Found) -> str:
    """The smallest rule that is at most one standard error (of its gain) below the highest value, and not below 0."""
    most = max(one["gain"] for one in found.values())
    good = [rule for rule, one in found.items() if one["gain"] >= max(0.0, most - one["error"])]
    return min(good or [NO_SELECTION], key=lambda rule: sizes[rule])


WAYS: dict[str, Callable[[Ground, Losses, Sizes, Found], str]] = {
    "by loss, smallest of PONN-DR's rules": smallest_good,
    "by loss, smallest of all rules": smallest_good_of_all,
    "by loss, lowest of all rules": lowest_loss,
    "by value, highest of all rules": highest_value,
    "by value, smallest of all rules": smallest_valuable,
}


# All logs ------------------------------------------------------------------------------------------------


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per way: mean true gain over no selection, its standard error over logs, the worst, how often a rule is new."""
    found = {}
    for way in WAYS:
        taken = [run["rules"][run["chosen"][way]] for run in runs]
        gains = [one["true_gain"] for one in taken]
        found[way] = {
            "mean": mean(gains),
            "error": stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None,
            "worst": min(gains),
            "logs_below_by_half_a_point": sum(one < -0.5 for one in gains),
            "not_ponn_drs": sum(not one["own"] for one in taken),
            "columns": mean(one["size"][0] for one in taken),
        }
    best = [max(one["true_gain"] for one in run["rules"].values()) for run in runs]
    return found | {"the truth told": {"mean": mean(best)}}


def main() -> None:
    """Judge all rules on all logs and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", help="names separated by commas; default all")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--workers", type=int, default=1)
    given, started = parser.parse_args(), now()
    worlds = given.worlds.split(",") if given.worlds else SIMULATED
    tasks = [(name, FIRST_SEED + number) for number in range(given.seeds) for name in worlds]
    runs = []
    with ProcessPoolExecutor(given.workers) as pool:
        for run in pool.map(judged, tasks):
            runs.append(run)
            taken = {way: f"{run['rules'][rule]['true_gain']:+.2f} {rule}" for way, rule in run["chosen"].items()}
            print(run["world"], run["seed"], taken, flush=True)
    for way, one in summary(runs).items():
        print(way, one)
    if not given.worlds:
        write_record("choice_of_features", {"ways": summary(runs), "runs": runs}, seed=FIRST_SEED, started=started)


if __name__ == "__main__":
    main()
