"""What should teach PONN-DR's small network: the stack's promises, or doubly robust scores, and by which objective?

On logs of the comparison's simulated worlds that no result rests on (seeds from 1000 on), PONN-DR is learned up to its
stack and scores. Then networks of the same shape are taught in several ways and judged by the truth in the test rows:

    promises                  every action's logistic loss against what the stack promises, drawn rows included
    promises, then value      the same, then passes over the scores by the negative value of softmax(r / T)
    promises, then costs      the same, then passes over the scores by the cost-sensitive cross-entropy
    value, costs              these objectives and the scores alone, from the start
    costs by promises         cost-sensitive cross-entropy with promises instead of scores, drawn rows included

PONN-DR does the first, and the second where cross-fitted value says that it is clearly better.

    python benchmarks/choice_of_objective.py --workers 2

symbol   meaning                                                                            shape
S        scores of the network, one per action; the policy takes the highest                [n, k]
G        doubly robust scores of rows and actions, or what the stack promises               [n, k]
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from peer_worlds import SIMULATED, make_world
from ponn.learning.dr.robust import (
    VALUE_EPOCHS,
    VALUE_STEP,
    Lesson,
    choose_selection,
    drawn_rows,
    fit_stack,
    go_on_by_value,
    lesson,
    masks_of,
    prepare_ground,
    taught_rewards,
)
from ponn.learning.dr.scores import doubly_robust_scores
from ponn.learning.dr.stacking import union
from ponn.log.encoding import Encoding
from ponn.methods import settings_of
from ponn.policy.models import greedy
from ponn.training.reward_network import HeadNetwork, Loss, Losses, fit_heads, train_heads, value
from record import now, write_record

FIRST_SEED, SEEDS = 1_000, 1
PROMISES = "promises"


def costs(S: Tensor, G: Tensor) -> Losses:
    """Cost-sensitive cross-entropy: -sum_a w_a log softmax(S)_a, w_a what action a's score is above the row's lowest.

    Its minimum is softmax(S) in proportion to E[w | x] = E[G | x] - E[min G | x], which is highest where E[G | x] is.
    """
    w = G - G.min(dim=1, keepdim=True).values
    log_h = S.log_softmax(dim=1)
    return Losses(-(w * log_h).sum(dim=1), w.sum(dim=1, keepdim=True) * log_h.exp() - w)


def told_nothing(*_: int) -> None:
    """Progress that nobody watches."""


def judged(task: tuple[str, int]) -> dict[str, Any]:
    """Every way on one log: its true value above that of promises, in points."""
    name, seed = task
    torch.set_num_threads(1)
    world = make_world(name, seed)
    log, test = world.part("train", "valid").log, world.part("test")
    ground = prepare_ground(log, Encoding.fit(log), settings_of("ponn-dr"), seed)
    chosen = choose_selection(ground, 1, told_nothing)
    ground = replace(ground, settings=chosen.settings)
    columns = union(masks_of(chosen.whole, ground))
    drawn = drawn_rows(ground, columns)
    stack = fit_stack(ground, chosen, drawn, 1, told_nothing)
    G = doubly_robust_scores(stack.honest, ground.rows.A, ground.rows.R, ground.step_a.weights)
    X = torch.tensor(ground.encoding.design(test.log)[:, columns], dtype=torch.float32)
    alone, whole = lesson(ground, stack.honest, G, columns), lesson(ground, stack.everywhere, G, columns, drawn)
    found = {way: 100 * test.value(greedy(network.scores(X).numpy())) for way, network in taught(alone, whole, len(G))}
    return {"world": name, "seed": seed, "values": found}


def taught(alone: Lesson, whole: Lesson, n: int) -> Iterator[tuple[str, HeadNetwork]]:
    """A network by each way; alone: the log's n rows, whole: drawn ones too. The last one is changed on the way."""
    yield "value", from_the_start(alone, lambda S, rows: value(S, alone.G[rows], alone.T))
    yield "costs", from_the_start(alone, lambda S, rows: costs(S, alone.G[rows]))
    yield "costs by promises", from_the_start(whole, lambda S, rows: costs(S, whole.r[rows]))
    network = taught_rewards(whole)
    yield PROMISES, network
    start, own = network.weight.clone(), whole.take(torch.arange(n))
    for epochs in VALUE_EPOCHS:
        for way, go_on in (("value", go_on_by_value), ("costs", go_on_by_costs)):
            network.weight.copy_(start)
            go_on(network, own, epochs)
            yield f"{PROMISES}, then {way}, {epochs} passes", network


def from_the_start(given: Lesson, loss: Loss) -> HeadNetwork:
    """A network that knows nothing else."""
    return fit_heads(given.X, given.r.shape[1], loss, given.weight, given.plan)


def go_on_by_costs(network: HeadNetwork, given: Lesson, epochs: int) -> None:
    """As `go_on_by_value`, by the other objective."""
    plan = replace(given.plan, epochs=epochs)
    step = plan.learning_rate * VALUE_STEP
    train_heads(network, given.X, lambda S, rows: costs(S, given.G[rows]), given.weight, plan, step)


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per way: mean true value above that of promises, its standard error over logs, best and worst."""
    found = {}
    for way in runs[0]["values"]:
        gains = [run["values"][way] - run["values"][PROMISES] for run in runs]
        error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None
        found[way] = {"mean": mean(gains), "error": error, "worst": min(gains), "best": max(gains), "logs": len(gains)}
    return found


def main() -> None:
    """Teach in every way on all logs and write the record."""
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
            print(run["world"], run["seed"], {way: round(one, 2) for way, one in run["values"].items()}, flush=True)
    for way, one in summary(runs).items():
        print(way, one)
    if not given.worlds:
        write_record("choice_of_objective", {"ways": summary(runs), "runs": runs}, seed=FIRST_SEED, started=started)


if __name__ == "__main__":
    main()
