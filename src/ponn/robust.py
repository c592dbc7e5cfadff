"""PONN-DR: the policy learned from what every action promises in every row, rewarded or not.

1. Step A, cross-fitted: the propensity of a row comes from other rows.
2. Step B in every fold on the rows of the others. Which rule selects the features (the paper's threshold with one of
   several lambda1, a test at one of several rates, or no selection) is chosen by how well rewards are predicted.
3. Reward models of several kinds on those features, cross-fitted, calibrated and stacked (stacking.py).
4. Doubly robust scores of every row and action (scores.py).
5. The policy: a network that imitates softmax(r / T), r the stack's rewards, on the log's rows and on rows between
   them; then, if that is clearly worth more by the doubly robust value on rows held out, trained on the scores.
6. A second small network for the rewards that the policy promises.

All rows given take part, each in turn held out: there is no separate validation part.

symbol   meaning                                                        shape
Q        honest rewards of the stack: by models that never saw the row  [n, k]
G        doubly robust scores                                           [n, k]
T        temperature
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ponn.encode import Encoding
from ponn.estimators import standard_error
from ponn.heads import HeadNetwork, Losses, Plan, fit_heads, imitation, rewards, train_heads, value
from ponn.inference import softmax
from ponn.log import Log
from ponn.models import Heads, greedy
from ponn.propensity import Propensities, fold_numbers, propensities
from ponn.relevance import Relevance, relevance
from ponn.scores import doubly_robust_scores, gain, policy_value
from ponn.settings import LAMBDA1, Settings
from ponn.stacking import MEMBERS, Part, Rows, Stack, cross_fit, logistic_losses, plan_of, stacked, tensor, union

OWN_RATES, POOLED_RATES = (0.01, 0.1), (0.001, 0.1)  # tried for the test of relevance
SCREENING: dict[str, Any] = {"trees": 20, "leaf": 3}  # of the forest that compares selections
SCREENING_FOLDS = 2
MOST_MIXED = 20_000  # rows between the log's rows that the policy is shown
STUDENT: dict[str, Any] = {"dropout": 0.0, "l2": 0.0}  # a function without noise is imitated: nothing to guard against
WORTH_PROCESSES = 5_000  # rows times actions from which on processes save more time than they take to start
VALUE_EPOCHS = (3, 10)  # passes over the scores that are tried after imitation
VALUE_STEP = 0.1  # of the learning rate


@dataclass(frozen=True, eq=False)
class Robust:
    """A policy, the rewards it promises, and how both came about."""

    policy: Heads
    rewards: Heads
    relevance: Relevance | None  # on all rows, with the selection that was chosen
    settings: Settings
    value: float  # cross-fitted doubly robust value of the greedy policy, rewards in [0, 1]
    error: float  # its standard error
    details: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Ground:
    """What all steps share."""

    log: Log
    encoding: Encoding
    settings: Settings
    seed: int
    rows: Rows
    fold: np.ndarray  # [n]
    group: np.ndarray | None
    step_a: Propensities  # cross-fitted

    @property
    def folds(self) -> int:
        """How many."""
        return int(self.fold.max()) + 1


class Say(Protocol):
    """Who is told what is being done."""

    def __call__(self, message: str) -> None:
        """Take note."""


def learn_robust(log: Log, encoding: Encoding, settings: Settings, seed: int, workers: int, say: Say) -> Robust:
    """Steps 1 to 6."""
    workers = workers if len(log) * len(log.actions) >= WORTH_PROCESSES else 1
    ground = prepare_ground(log, encoding, settings, seed)
    say("Step B: which selection of features predicts rewards best")
    chosen = choose_selection(ground, workers)
    ground = replace(ground, settings=chosen.settings)
    say("Reward models on the features kept, cross-fitted and stacked")
    mixed = rows_between(ground.rows.X, np.random.default_rng(seed))
    X = np.concatenate([ground.rows.X, mixed])  # [n + m, D]
    stack = fit_stack(ground, chosen, X, workers)
    G = doubly_robust_scores(stack.honest, ground.rows.A, ground.rows.R, ground.step_a.weights)
    say("Step C: one small network against the doubly robust scores")
    columns = union(masks_of(chosen.whole, ground))
    epochs, tried = choose_value_epochs(ground, stack, G, columns)
    policy, promised = distilled(ground, stack, G, X, columns, epochs)
    worth = policy_value(greedy(stack.honest), G, ground.rows.weight)
    error = standard_error(worth.psi, ground.group)
    return Robust(
        policy,
        promised,
        chosen.whole,
        chosen.settings,
        worth.value,
        error,
        {
            "cross_fitted_value": worth.value,
            "cross_fitted_error": error,
            "shares": {name: round(share, 4) for name, share in stack.shares.items()},
            "losses": dict(stack.losses),
            "selections": dict(chosen.losses),
            "value_epochs": epochs,
            "value_gains": tried,
            "folds": ground.folds,
            "agreement": agreement(policy, ground.rows.X, stack.everywhere[: len(log)]),
        },
        ground.step_a.notes,
    )


def prepare_ground(log: Log, encoding: Encoding, settings: Settings, seed: int) -> Ground:
    """Folds, cross-fitted Step A and the rows."""
    group = None if log.columns.group is None else log.group_numbers()
    units = len(log) if group is None else int(group.max()) + 1
    folds = max(2, min(settings.folds, units))
    rows = Rows(encoding.design(log), log.A, log.R, log.row_weights / log.row_weights.mean(), len(log.actions))
    step_a = propensities(log, encoding, settings, folds=folds, seed=seed)
    return Ground(log, encoding, settings, seed, rows, fold_numbers(log, folds, seed), group, step_a)


# Relevance that adapts -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Selection:
    """The rule that was chosen, Step B under it in every fold and on all rows, and the losses of all rules tried."""

    settings: Settings
    whole: Relevance | None
    by_fold: tuple[Relevance | None, ...]
    losses: dict[str, float]


def choose_selection(ground: Ground, workers: int) -> Selection:
    """The rule under which a small forest per action predicts held-out rewards best; no selection is one of them."""
    s = ground.settings
    if not s.relevance:
        return Selection(s, None, (None,) * ground.folds, {})
    found = [step_b(ground, ground.fold != number) for number in range(ground.folds)]
    options = dict(selections(s))
    losses = {}
    if len(options) > 1:
        losses = {
            name: screened(ground, [under(one, option) for one in found[:SCREENING_FOLDS]], option, workers)
            for name, option in options.items()
        }
    best = options[min(losses, key=losses.__getitem__)] if losses else next(iter(options.values()))
    if not best.relevance:
        return Selection(best, None, (None,) * ground.folds, losses)
    whole = step_b(ground, np.ones(len(ground.fold), bool))
    return Selection(best, under(whole, best), tuple(under(one, best) for one in found), losses)


def selections(settings: Settings) -> Iterator[tuple[str, Settings]]:
    """The rules to compare, by name; a rule that was asked for stands alone."""
    if settings.select != "auto":
        yield settings.select, settings
        return
    yield "no selection", replace(settings, relevance=False)
    for pooled, rates in ((False, OWN_RATES), (True, POOLED_RATES)):
        for rate in rates:
            name = f"test at {rate:g}" + ", sets pooled" * pooled
            yield name, replace(settings, select="fdr", fdr=rate, pooled=pooled)
    for lambda1 in LAMBDA1[settings.loss]:
        yield f"lambda1 = {lambda1:g}", replace(settings, select="threshold", lambda1=lambda1)


def step_b(ground: Ground, seen: np.ndarray) -> Relevance:
    """Step B on some rows."""
    rows = np.flatnonzero(seen)
    return relevance(ground.log.take(rows), ground.encoding, ground.step_a.take(rows), ground.settings)


def under(found: Relevance, settings: Settings) -> Relevance | None:
    """The same sums under another rule."""
    if not settings.relevance:
        return None
    return replace(found, select=settings.select, fdr=settings.fdr, lambda1=settings.lambda1, lambda2=settings.lambda2)


def screened(ground: Ground, by_fold: Sequence[Relevance | None], settings: Settings, workers: int) -> float:
    """Held-out logistic loss of a small forest per action under a selection."""
    small = replace(ground, settings=replace(settings, **SCREENING))
    held = [np.flatnonzero(ground.fold == number) for number in range(len(by_fold))]
    parts = [part_of(small, number, one, ground.rows.X[held[number]]) for number, one in enumerate(by_fold)]
    q = [Q["forest"] for Q in cross_fit(parts, ["forest"], workers)]
    rows = ground.rows.take(np.concatenate(held))
    return logistic_losses(np.concatenate(q)[np.arange(len(rows.A)), rows.A], rows)


def part_of(ground: Ground, number: int, selected: Relevance | None, X_new: np.ndarray) -> Part:
    """One fold's task; X_new begins with all rows of the log, unless it is only for screening."""
    seen = np.flatnonzero(ground.fold != number)
    return Part(ground.rows.take(seen), X_new, seen, masks_of(selected, ground), ground.seed + number, ground.settings)


def masks_of(selected: Relevance | None, ground: Ground) -> np.ndarray:
    """f_a over design columns."""
    k, D = ground.rows.k, ground.rows.X.shape[1]
    if selected is None:
        return np.ones((k, D), bool)
    f = selected.selected[:, ground.encoding.owner]  # [k, D]
    return np.broadcast_to(f.any(axis=0), f.shape) if ground.settings.pooled else f


def fit_stack(ground: Ground, chosen: Selection, X: np.ndarray, workers: int) -> Stack:
    """All kinds of reward models, cross-fitted, for the rows of the log and those between."""
    parts = [part_of(ground, number, one, X) for number, one in enumerate(chosen.by_fold)]
    return stacked(ground.rows, ground.fold, cross_fit(parts, list(MEMBERS), workers))


# From rewards to a policy ------------------------------------------------------------------------------------


def rows_between(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """New rows on the way from one row to another: where the policy is to do as the stack does, but no row was."""
    m = min(len(X), MOST_MIXED)
    one, two = (X[rng.choice(len(X), m, replace=False)] for _ in range(2))
    share = rng.uniform(0.0, 0.5, (m, 1)).astype(X.dtype)
    return np.asarray(one + share * (two - one))


def student_plan(ground: Ground) -> Plan:
    """How the policy's network is trained."""
    return plan_of(replace(ground.settings, **STUDENT), ground.seed)


def imitated(X: Tensor, wanted: Tensor, weight: Tensor, plan: Plan) -> HeadNetwork:
    """A network whose softmax is close to the probabilities wanted."""
    return fit_heads(X, wanted.shape[1], lambda S, rows: imitation(S, wanted[rows]), weight, plan)


def by_value(network: HeadNetwork, X: Tensor, G: Tensor, weight: Tensor, plan: Plan, T: float, epochs: int) -> None:
    """Go on training a policy for a few passes over the doubly robust scores."""

    def loss(S: Tensor, rows: Tensor) -> Losses:
        return value(S, G[rows], T)

    if epochs:
        train_heads(network, X, loss, weight, replace(plan, epochs=epochs), plan.learning_rate * VALUE_STEP)


def choose_value_epochs(ground: Ground, stack: Stack, G: np.ndarray, columns: np.ndarray) -> tuple[int, dict[str, Any]]:
    """How many passes over the scores: the number worth most on rows held out, if clearly worth more than none.

    The scores are cross-fitted once, as is usual; a fold's policy is learned from the other folds' scores.
    """
    T, plan = ground.settings.temperature, student_plan(ground)
    X = tensor(ground.rows.X[:, columns])
    wanted, scores, weight = (tensor(one) for one in (softmax(stack.honest / T), G, ground.rows.weight))
    policies = {epochs: np.zeros_like(G) for epochs in (0, *VALUE_EPOCHS)}
    for number in range(ground.folds):
        seen, held = (torch.tensor(np.flatnonzero(one)) for one in (ground.fold != number, ground.fold == number))
        start = imitated(X[seen], wanted[seen], weight[seen], plan)
        first = start.weight.clone()
        for epochs, h in policies.items():
            start.weight.copy_(first)
            by_value(start, X[seen], scores[seen], weight[seen], plan, T, epochs)
            h[held.numpy()] = greedy(start.scores(X[held]).numpy())
    gains = {
        epochs: gain(policies[epochs], policies[0], G, ground.rows.weight, ground.group) for epochs in VALUE_EPOCHS
    }
    best = max(VALUE_EPOCHS, key=lambda epochs: gains[epochs].value)
    told = {str(epochs): [one.value, one.error] for epochs, one in gains.items()}
    return (best if gains[best].clear else 0), told


def distilled(
    ground: Ground, stack: Stack, G: np.ndarray, X: np.ndarray, columns: np.ndarray, epochs: int
) -> tuple[Heads, Heads]:
    """The policy and its rewards as one small network each."""
    T, plan, n = ground.settings.temperature, student_plan(ground), len(G)
    inputs = tensor(X[:, columns])
    r = stack.everywhere
    weight = tensor(np.concatenate([ground.rows.weight, np.ones(len(X) - n)]))
    policy = imitated(inputs, tensor(softmax(r / T)), weight, plan)
    by_value(policy, inputs[:n], tensor(G), weight[:n], plan, T, epochs)
    wanted = tensor(r)
    promised = fit_heads(inputs, r.shape[1], lambda S, rows: rewards(S, wanted[rows]), weight, plan)
    return policy.model("softmax", columns), promised.model("logistic", columns)


def agreement(policy: Heads, X: np.ndarray, r: np.ndarray) -> float:
    """In which share of rows the small network recommends what the stack promises most for."""
    return float(np.mean(policy.scores(X).argmax(axis=1) == r.argmax(axis=1)))
