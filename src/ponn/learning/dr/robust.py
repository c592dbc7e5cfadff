"""PONN-DR: the policy learned from what every action promises in every row, rewarded or not.

1. Step A, cross-fitted: the propensity of a row comes from other rows.
2. Step B in every fold on the rows of the others. Which rule selects the features (the paper's threshold with one of
   several lambda1, a test at one of several rates, or no selection) is chosen by how well rewards are predicted.
3. Reward models of several kinds on those features (one kind on all), cross-fitted, calibrated and stacked, then fitted
   on all rows (stacking.py).
4. Doubly robust scores of every row and action (scores.py).
5. One small network learns what the stack promises for every row and action; the policy is softmax(r / T) of its
   rewards r. If that is clearly worth more by the doubly robust value on rows held out, it goes on learning from the
   scores; the network before then stays with the policy, to say what to expect.

All rows given take part, each in turn held out: there is no separate validation part.

symbol   meaning                                                        shape
Q        honest rewards of the stack: by models that never saw the row  [n, k]
G        doubly robust scores                                           [n, k]
T        temperature
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ponn.errors import PonnError
from ponn.evaluation.estimators import standard_error
from ponn.learning.dr.scores import doubly_robust_scores, gain, policy_value
from ponn.learning.dr.stacking import (
    MEMBERS,
    Counted,
    Part,
    Rows,
    Stack,
    cross_fit,
    each_in_a_process,
    fit_kinds,
    logistic_losses,
    mixture,
    piece_of_work,
    plan_of,
    stacked,
    tensor,
    together,
    union,
    with_teachers,
    worthwhile,
)
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.policy.models import Heads, greedy
from ponn.settings import Settings
from ponn.steps.propensity import Propensities, fold_numbers, propensities
from ponn.steps.relevance import Relevance, relevance
from ponn.training.loop import DivergenceError
from ponn.training.reward_network import HeadNetwork, Losses, Plan, every_reward, fit_heads, train_heads, value

SELECTING = "Step B: which selection of features predicts rewards best"
STACKING = "Reward models on the features kept, cross-fitted and stacked"
DISTILLING = "Step C: one small network against the doubly robust scores"
NO_SELECTION = "no selection"
# Rates that are tried for the test of relevance: an action's own set or the sets of all pooled, rows weighted by 1/p or
# alike. Weighted, the test is right and weak: on two logs with strong bias, 10 actions and 3,500 rows it found none and
# one of 30 relevant pairs at a rate of 0.5, with rows that count alike 27 and 26, half of what it found.
RATES = {(False, False): (0.01, 0.1), (True, False): (0.001, 0.1), (False, True): (0.1, 0.5), (True, True): (0.1,)}
SCREENED = ("linear", "forest")  # the reward models that compare selections ...
SCREENING: dict[str, Any] = {"trees": 20, "leaf": 3}  # ... and their forest
FIRST_FOLDS = 2  # in which all selections are compared; in the others only those that may still be chosen
STILL_OPEN = 2.0  # standard errors above the lowest loss of the first folds; not tuned
SCREENED_ROWS = 50_000  # that compare selections, so that the time of that does not grow for ever
# Fits on all rows, under so many seeds, whose mean teaches the small network. On four logs each of the UCI worlds one
# fit was better than the mean of the five folds' fits, by 0.2, 0.1 and 0.3 points (satimage, pendigits, optdigits); on
# two logs each of seven worlds three were better than one by 0.06 on average (optdigits 0.3, satimage hard -0.04).
ENSEMBLE = 3
STUDENT_DROPOUT = 0.1  # of the small network: what it learns has less noise than outcomes
STUDENT_EPOCHS = 2  # times those of a reward network, where it has no more rows than that
# Rows that the small network learns from, where the log has fewer: the rest is drawn, at most MOST_DRAWN times the log.
# On two logs each it agreed with the stack on 89.8, 97.2 and 99.0 % of new rows with four times the log, all of them of
# any two rows, on 93.5, 97.5 and 99.3 % with eight times, half of them of neighbours (a world with steps, satimage,
# optdigits).
ENOUGH_ROWS, MOST_DRAWN, NEAR = 30_000, 8, 10
MOST_PROMISES = 200_000  # drawn rows times actions: what the stack has to predict for them takes its time
WORTH_PROCESSES = 15_000  # rows times actions from which on processes save more time than they take to start
THRESHOLDS = {"l2": (0.06, 0.2), "l1": (0.4, 1.0)}  # values of lambda1 that are tried, by the loss of Step B
VALUE_EPOCHS = (3, 10)  # passes over the scores that are tried after imitation
VALUE_STEP = 0.1  # of the learning rate


@dataclass(frozen=True, eq=False)
class Robust:
    """A policy, the rewards it promises, and how both came about."""

    policy: Heads
    rewards: Heads  # the same network, unless it went on learning from the scores
    settings: Settings  # with the selection that was chosen
    value: float  # cross-fitted doubly robust value of what the stack's honest rewards prefer, rewards in [0, 1]
    error: float  # its standard error
    details: dict[str, Any]


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
    step_b: Relevance | None  # on all rows

    @property
    def folds(self) -> int:
        """How many."""
        return int(self.fold.max()) + 1


class Say(Protocol):
    """Who is told what is being done and, where it is a number of things, how many are done of how many."""

    def __call__(self, message: str, done: int = 0, total: int = 0) -> None:
        """Take note."""


def learn_robust(ground: Ground, workers: int, say: Say) -> Robust:
    """Steps 2 to 5."""
    n = len(ground.log)
    workers = workers if n * ground.rows.k >= WORTH_PROCESSES else 1
    say(SELECTING)
    chosen = choose_selection(ground, workers, partial(say, SELECTING))
    ground = replace(ground, settings=chosen.settings)
    say(STACKING)
    columns = union(masks_of(chosen.whole, ground))
    drawn = drawn_rows(ground, columns)
    stack = fit_stack(ground, chosen, drawn, workers, partial(say, STACKING))
    G = doubly_robust_scores(stack.honest, ground.rows.A, ground.rows.R, ground.step_a.weights)
    say(DISTILLING)
    epochs, tried = choose_value_epochs(ground, stack, G, columns, workers, partial(say, DISTILLING))
    policy, promised = distilled(ground, stack, G, columns, drawn, epochs)
    worth = policy_value(greedy(stack.honest, ground.log.eligible), G, ground.rows.weight)
    error = standard_error(worth.psi, ground.group)
    return Robust(
        policy,
        promised,
        chosen.settings,
        worth.value,
        error,
        {
            "cross_fitted_value": worth.value,
            "cross_fitted_error": error,
            "shares": {name: round(share, 4) for name, share in stack.shares.items()},
            "losses": dict(stack.losses),
            "selection": chosen.name,
            "selections": dict(chosen.losses),
            "value_epochs": epochs,
            "value_gains": tried,
            "folds": ground.folds,
            "distillation_loss": distillation_loss(policy, ground.rows.X, stack.everywhere[:n]),
        },
    )


def prepare_ground(log: Log, encoding: Encoding, settings: Settings, seed: int) -> Ground:
    """Folds, the rows, cross-fitted Step A and Step B on all rows."""
    group = None if log.columns.group is None else log.group_numbers()
    units = len(log) if group is None else int(group.max()) + 1
    if units < 2:
        raise PonnError(
            f"Every row has to be held out in turn, but there is one piece that must stay together ({len(log)} rows). "
            "Give more rows, or a finer group column."
        )
    if settings.folds < 2:
        raise PonnError(f"folds is {settings.folds}; ponn-dr holds every row out in turn, so expected at least 2.")
    folds = min(settings.folds, units)
    rows = Rows(encoding.design(log), log.A, log.R, log.row_weights / log.row_weights.mean(), len(log.actions))
    step_a = propensities(log, encoding, settings, folds=folds, seed=seed)
    step_b = relevance(log, encoding, step_a, settings) if settings.relevance else None
    return Ground(log, encoding, settings, seed, rows, fold_numbers(log, folds, seed), group, step_a, step_b)


# Relevance that adapts -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Selection:
    """The rule that was chosen, Step B under it in every fold and on all rows, and the losses of all rules tried."""

    name: str
    settings: Settings
    whole: Relevance | None
    by_fold: tuple[Relevance | None, ...]
    losses: dict[str, float]


def choose_selection(ground: Ground, workers: int, told: Counted) -> Selection:
    """Of the rules under which small reward models predict held-out rewards best, the one with fewest features.

    "Best" is within one standard error of the lowest loss, and no worse than without selection.
    """
    s, whole = ground.settings, ground.step_b
    if whole is None:
        return Selection(NO_SELECTION, s, None, (None,) * ground.folds, {})
    found = [step_b_without(ground, number) for number in range(ground.folds)]
    options, some = dict(selections(s)), sampled(ground, SCREENED_ROWS)
    losses, means = compare_rules(some, found, options, workers, told) if len(options) > 1 else ({}, {})
    sizes = {name: size(whole, ground, option) for name, option in options.items()}
    name = fewest_of_the_best(some, losses, sizes) if losses else rule_name(s)
    best = options[name]
    return Selection(name, best, under(whole, best), tuple(under(one, best) for one in found), means)


def compare_rules(
    ground: Ground, by_fold: Sequence[Relevance], options: Mapping[str, Settings], workers: int, told: Counted
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Losses of all rows under the rules that are open after the first folds, and mean losses of every rule.

    A closed rule's mean is that of the first folds' best plus by how much it was worse there. Two folds of a small log
    are too few: on one of pendigits they took a rule whose policy is right in 97.2 % of the test rows, all five one
    whose policy is right in 98.8 %.
    """
    folds = np.unique(ground.fold).tolist()  # those with rows: a sample may leave none of a fold
    first, rest = folds[:FIRST_FOLDS], folds[FIRST_FOLDS:]
    total = len(options) * len(folds)
    predicted = screened(ground, by_fold, options, first, workers, lambda done, of: told(done, total))
    losses = {name: screening_losses(ground, one) for name, one in predicted.items()}
    best = min(losses, key=lambda name: float(losses[name].mean()))
    still = [name for name in losses if name == NO_SELECTION or near(ground, losses[name], losses[best], STILL_OPEN)]
    open_options = {name: options[name] for name in still}
    more = screened(ground, by_fold, open_options, rest, workers, lambda done, of: told(total - of + done, total))
    open_ones = {name: screening_losses(ground, predicted[name] + more[name]) for name in still}
    worse = {name: float((one - losses[best]).mean()) for name, one in losses.items()}
    means = {name: float(open_ones[best].mean()) + by for name, by in worse.items()}
    return open_ones, means | {name: float(one.mean()) for name, one in open_ones.items()}


def sampled(ground: Ground, most: int) -> Ground:
    """The same with at most so many rows, drawn at random; Step B stays that of all rows."""
    n = len(ground.rows.A)
    if n <= most:
        return ground
    some = np.sort(np.random.default_rng((ground.seed, most)).permutation(n)[:most])
    group = None if ground.group is None else ground.group[some]
    return replace(ground, rows=ground.rows.take(some), fold=ground.fold[some], group=group)


def size(found: Relevance, ground: Ground, option: Settings) -> tuple[int, int]:
    """Columns that some action's model reads, then pairs of action and column: the fewer the easier to read."""
    f = masks_of(under(found, option), replace(ground, settings=option))
    return int(f.any(axis=0).sum()), int(f.sum())


def fewest_of_the_best(ground: Ground, losses: Mapping[str, np.ndarray], sizes: Mapping[str, tuple[int, int]]) -> str:
    """The smallest rule within a standard error of the lowest loss (of the paired difference), no worse than none."""
    lowest = min(losses.values(), key=np.mean)
    most = losses.get(NO_SELECTION, np.full(1, np.inf)).mean()
    good = [name for name, one in losses.items() if near(ground, one, lowest, 1.0) and one.mean() <= most]
    return min(good, key=lambda name: sizes[name])


def near(ground: Ground, losses: np.ndarray, lowest: np.ndarray, errors: float) -> bool:
    """Is the mean of the losses at most so many standard errors (of the paired difference) above the lowest?"""
    worse = losses - lowest
    rows = screened_rows(ground)[: len(worse)]
    group = None if ground.group is None else ground.group[rows]
    return float(worse.mean()) <= errors * standard_error(worse - worse.mean(), group)


def selections(settings: Settings) -> Iterator[tuple[str, Settings]]:
    """The rules to compare, by name; a rule that was asked for stands alone."""
    if settings.select != "auto":
        yield rule_name(settings), settings
        return
    tried = [replace(settings, relevance=False)]
    for (pooled, even), rates in RATES.items():
        tried += [replace(settings, select="fdr", fdr=rate, pooled=pooled, even=even) for rate in rates]
    tried += [replace(settings, select="threshold", lambda1=lambda1) for lambda1 in THRESHOLDS[settings.loss]]
    yield from ((rule_name(one), one) for one in tried)


def rule_name(settings: Settings) -> str:
    """A rule of selection in words."""
    s = settings
    if not s.relevance:
        return NO_SELECTION
    if s.select == "fdr":
        return f"test at {s.fdr:g}" + ", rows alike" * s.even + ", sets pooled" * s.pooled
    return f"lambda1 = {s.lambda1:g}" + (f", lambda2 = {s.lambda2:g}" if s.lambda2 else "")


def step_b_without(ground: Ground, number: int) -> Relevance:
    """Step B on the rows of the other folds."""
    rows = np.flatnonzero(ground.fold != number)
    return relevance(ground.log.take(rows), ground.encoding, ground.step_a.take(rows), ground.settings)


def under(found: Relevance, settings: Settings) -> Relevance | None:
    """The same sums under another rule."""
    if not settings.relevance:
        return None
    return found.under(settings)


def screened(
    ground: Ground,
    by_fold: Sequence[Relevance],
    options: Mapping[str, Settings],
    folds: Iterable[int],
    workers: int,
    told: Counted,
) -> dict[str, list[dict[str, np.ndarray]]]:
    """What linear models and small forests under every rule predict for the actions taken in some folds, [rows] each.

    A rule in a fold is a task of its own, all in one go: processes need not wait for each other after every rule.
    """
    held = {number: np.flatnonzero(ground.fold == number) for number in folds}
    parts = {number: part_of(ground, number, None, ground.rows.X[rows]) for number, rows in held.items()}
    places = [(name, number) for name in options for number in held]
    tasks = []
    for name, number in places:
        small = replace(ground, settings=replace(options[name], **SCREENING))
        f = masks_of(under(by_fold[number], options[name]), small)
        tasks.append((parts[number]._replace(f=f, settings=small.settings), ground.rows.A[held[number]]))
    answers = each_in_a_process(screened_part, tasks, workers, told)
    found: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in options}
    for (name, _), predicted in zip(places, answers, strict=True):
        found[name].append(predicted)
    return found


def screened_part(part: Part, A: np.ndarray) -> dict[str, np.ndarray]:
    """What small models predict for the actions taken in the rows that are held out."""
    return {name: Q[np.arange(len(A)), A] for name, Q in fit_kinds(part, SCREENED).items()}


def screening_losses(ground: Ground, found: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Held-out logistic loss, row by row of the folds predicted: by linear models and small forests, calibrated, mixed.

    A forest alone would drop weak features that only sums over many rows can use, and is too sure of itself where
    there is little to learn, which must not speak for the rule with the fewest features.
    """
    own = {name: np.concatenate([one[name] for one in found]) for name in SCREENED}  # [rows] each
    rows = ground.rows.take(screened_rows(ground)[: len(own[SCREENED[0]])])
    q = mixture(own, rows)({name: one[None] for name, one in own.items()})
    return rows.weight * logistic_losses(q, rows.R)  # [rows]


def screened_rows(ground: Ground) -> np.ndarray:
    """All rows, fold by fold."""
    return np.argsort(ground.fold, kind="stable")


def part_of(ground: Ground, number: int, selected: Relevance | None, X_new: np.ndarray) -> Part:
    """One fold's task; X_new is all rows of the log, unless it is only for screening."""
    seen = np.flatnonzero(ground.fold != number)
    return Part(ground.rows.take(seen), X_new, seen, masks_of(selected, ground), ground.seed + number, ground.settings)


def masks_of(selected: Relevance | None, ground: Ground) -> np.ndarray:
    """f_a over design columns."""
    k, D = ground.rows.k, ground.rows.X.shape[1]
    if selected is None:
        return np.ones((k, D), bool)
    f = selected.selected[:, ground.encoding.owner]  # [k, D]
    return np.broadcast_to(f.any(axis=0), f.shape) if ground.settings.pooled else f


def drawn_rows(ground: Ground, columns: np.ndarray) -> np.ndarray:
    """Rows that take each feature from one of two rows of the log, for the small network alone (Bucila et al. 2006).

    The stack says what they promise, so that a small log can teach the network all that the stack has learned. Half of
    them mix a row with any other, half with one near it in the columns [D] that the network reads.
    """
    X, owner, n = ground.rows.X, ground.encoding.owner, len(ground.rows.A)
    m = max(0, min(MOST_DRAWN * n, ENOUGH_ROWS - n, MOST_PROMISES // ground.rows.k))
    rng = np.random.default_rng((ground.seed, m))
    one, two = rng.integers(n, size=(2, m))
    two[: m // 2] = neighbours(X[:, columns], one[: m // 2], rng)
    first = rng.random((m, len(ground.encoding.features))) < 0.5  # [m, d]
    return np.where(first[:, owner], X[one], X[two])  # [m, D]


def neighbours(X: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each of these rows one of the NEAR rows nearest to it, drawn at random."""
    from sklearn.neighbors import NearestNeighbors
    from threadpoolctl import threadpool_limits

    if not len(rows):
        return rows
    places, at = np.unique(rows, return_inverse=True)
    wanted = min(NEAR + 1, len(X))  # the nearest to a row is the row itself, or its twin
    with threadpool_limits(1):  # which of several twins is found depends on the number of threads
        found = NearestNeighbors(n_neighbors=wanted).fit(X).kneighbors(X[places], return_distance=False)
    return np.asarray(found[at, rng.integers(min(1, wanted - 1), wanted, size=len(rows))])


def fit_stack(ground: Ground, chosen: Selection, drawn: np.ndarray, workers: int, told: Counted) -> Stack:
    """Reward models, cross-fitted and stacked, then fitted on all rows; these predict the drawn rows as well.

    All kinds are fitted in the first fold, the worthwhile ones in the others, those with a share on all rows.
    """
    rows, fold = ground.rows, ground.fold
    parts = [part_of(ground, number, one, rows.X) for number, one in enumerate(chosen.by_fold)]
    total = len(parts) + ENSEMBLE
    first, held = cross_fit(parts[:1], list(MEMBERS), workers)[0], np.flatnonzero(fold == 0)
    told(1, total)
    kinds = worthwhile({name: one[held] for name, one in first.items()}, rows.take(held))
    others = cross_fit(parts[1:], kinds, workers, piece_of_work(told, 1, len(parts) - 1, total))
    mixed, honest = stacked(rows, fold, [{name: first[name] for name in kinds}, *others])
    again = [whole_part(ground, number, chosen.whole, drawn) for number in range(ENSEMBLE)]
    found = cross_fit(again, with_teachers(mixed.shares), workers, piece_of_work(told, len(parts), ENSEMBLE, total))
    return Stack(honest, mixed(together(found)), mixed.shares, mixed.losses)


def whole_part(ground: Ground, number: int, selected: Relevance | None, drawn: np.ndarray) -> Part:
    """One of the ensemble's tasks: all rows to learn from, and the drawn ones to predict too."""
    rows, seed = ground.rows, ground.seed + ground.folds + number
    X_new = np.concatenate([rows.X, drawn])
    return Part(rows, X_new, np.arange(len(rows.A)), masks_of(selected, ground), seed, ground.settings)


# From rewards to a policy ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lesson:
    """What the small network learns from."""

    X: Tensor  # [n, columns]
    r: Tensor  # [n, k]
    G: Tensor  # [n, k]
    weight: Tensor  # [n]
    plan: Plan
    T: float

    def take(self, rows: Tensor) -> "Lesson":
        """Some of the rows."""
        return replace(self, X=self.X[rows], r=self.r[rows], G=self.G[rows], weight=self.weight[rows])


def lesson(
    ground: Ground, r: np.ndarray, G: np.ndarray, columns: np.ndarray, drawn: np.ndarray | None = None
) -> Lesson:
    """Rows, rewards and scores in single precision; drawn rows come last, have rewards and no scores."""
    s, X, weight = ground.settings, ground.rows.X, ground.rows.weight
    plan = replace(plan_of(s, ground.seed), dropout=min(s.dropout, STUDENT_DROPOUT), epochs=STUDENT_EPOCHS * s.epochs)
    if drawn is not None and len(drawn):
        X, weight = np.concatenate([X, drawn]), np.concatenate([weight, np.ones(len(drawn))])
        plan = replace(plan, epochs=s.epochs, dropout=0.0)
    return Lesson(tensor(X[:, columns]), tensor(r), tensor(G), tensor(weight), plan, s.temperature)


def taught_rewards(given: Lesson) -> HeadNetwork:
    """A network that promises what the stack promises."""

    def loss(S: Tensor, rows: Tensor) -> Losses:
        return every_reward(S, given.r[rows])

    return fit_heads(given.X, given.r.shape[1], loss, given.weight, given.plan)


def go_on_by_value(network: HeadNetwork, given: Lesson, epochs: int) -> None:
    """A few passes over the doubly robust scores; a network that diverges on them stays as it was."""

    def loss(S: Tensor, rows: Tensor) -> Losses:
        return value(S, given.G[rows], given.T)

    plan, start = replace(given.plan, epochs=epochs), network.weight.clone()
    try:
        train_heads(network, given.X, loss, given.weight, plan, plan.learning_rate * VALUE_STEP)
    except DivergenceError:  # of scores with propensities near 0
        network.weight.copy_(start)


def choose_value_epochs(
    ground: Ground, stack: Stack, G: np.ndarray, columns: np.ndarray, workers: int, told: Counted
) -> tuple[int, dict[str, Any]]:
    """How many passes over the scores: the number worth most on rows held out, if clearly worth more than none.

    The scores are cross-fitted once, as is usual; a fold's policy is learned from the other folds' scores. These
    policies are only compared with each other, so they are taught for less long than the one that is kept, and without
    drawn rows.
    """
    given = lesson(ground, stack.honest, G, columns)
    given = replace(given, plan=replace(given.plan, epochs=ground.settings.epochs))
    held = [np.flatnonzero(ground.fold == number) for number in range(ground.folds)]
    seen = [torch.tensor(np.flatnonzero(ground.fold != number)) for number in range(ground.folds)]
    tasks = [(given.take(rows), given.X[torch.tensor(others)]) for rows, others in zip(seen, held, strict=True)]
    policies = {epochs: np.zeros_like(G) for epochs in (0, *VALUE_EPOCHS)}
    for rows, scores in zip(held, each_in_a_process(scores_by_epochs, tasks, workers, told), strict=True):
        for epochs, h in policies.items():
            h[rows] = greedy(scores[epochs], eligible_in(ground.log, rows))
    gains = {
        epochs: gain(policies[epochs], policies[0], G, ground.rows.weight, ground.group) for epochs in VALUE_EPOCHS
    }
    best = max(VALUE_EPOCHS, key=lambda epochs: gains[epochs].value)
    tried = {str(epochs): [one.value, one.error] for epochs, one in gains.items()}
    return (best if gains[best].clear else 0), tried


def scores_by_epochs(seen: Lesson, X_new: Tensor) -> dict[int, np.ndarray]:
    """Scores of new rows after so many passes over the scores of the rows seen."""
    network = taught_rewards(seen)
    start, found = network.weight.clone(), {}
    for epochs in (0, *VALUE_EPOCHS):
        network.weight.copy_(start)
        if epochs:
            go_on_by_value(network, seen, epochs)
        found[epochs] = network.scores(X_new).numpy()
    return found


def eligible_in(log: Log, rows: np.ndarray) -> np.ndarray | None:
    """Which actions are eligible in some rows; None: all in all."""
    return None if log.eligible is None else log.eligible[rows]


def distilled(
    ground: Ground, stack: Stack, G: np.ndarray, columns: np.ndarray, drawn: np.ndarray, epochs: int
) -> tuple[Heads, Heads]:
    """The policy, and the rewards it promises."""
    given = lesson(ground, stack.everywhere, G, columns, drawn)
    network = taught_rewards(given)
    promised = network.model(columns, given.T, promises=True)
    if not epochs:
        return promised, promised
    go_on_by_value(network, given.take(torch.arange(len(G))), epochs)
    return network.model(columns, given.T, promises=False), promised


def distillation_loss(policy: Heads, X: np.ndarray, r: np.ndarray) -> float:
    """How much less the small network's actions promise than the stack's own, by the stack's account."""
    return float(np.mean(r.max(axis=1) - r[np.arange(len(r)), policy.scores(X).argmax(axis=1)]))
