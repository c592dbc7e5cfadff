"""Reward models of several kinds, all but one on the features that Step B keeps, cross-fitted and stacked.

symbol   meaning                                                                              shape
X        design columns                                                                       [n, D]
A, R     action taken and reward in [0, 1]                                                    [n]
f        masks: does action a see a design column? One set per fold, from the other folds     [k, D]
Q        r_hat(a, x), calibrated, of one kind of model                                        [n, k]
share    weight of each kind in the stack: not negative, adding up to 1                       [kinds]

Every fold's models learn from the rows of the other folds, so that a row's own prediction comes from models that never
saw it. Each kind is calibrated on those honest predictions, then the shares that make the observed rewards most likely
are found, then the stack is calibrated. Kinds with a share learn again from all rows, under several seeds; what new
rows promise is the mean of these, an ensemble. An action that models never saw promises 0.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ponn.learning.dr.pieces import Pieces
from ponn.learning.forests import Growth, grow, seed_of
from ponn.policy.inference import sigmoid, softmax
from ponn.settings import Settings
from ponn.steps.reward import fit_one_action, fit_ridge
from ponn.training.reward_network import EVALUATED_ROWS, Losses, Plan, fit_heads, taken_reward, taken_share

Found = TypeVar("Found")
Counted = Callable[[int, int], None]  # is told how many are done of how many

SURE = 1e-3  # predictions are kept this far from 0 and 1: a forest's votes know no more
CALIBRATION_STEPS = 25  # of Newton's method in two numbers; it settles in under ten
SHARE_STEPS = 1_000  # of expectation maximisation for the shares
SPARSE_PENALTIES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
MOST_LEAVES = 20_000  # of a tree: the time of a forest then grows no faster than its rows
# Rows that all trees of a forest may see together: beyond 20,000 rows there are fewer of the usual 100 trees, as each
# errs less; never fewer than FEWEST_TREES.
MOST_SEEN, FEWEST_TREES = 2_000_000, 20
SMOOTH_LEAF = 15  # fewest rows in a leaf of the smooth forest, for outcomes that are mostly noise
# Boosting by trees of two leaves, a sum of steps in single features, and of four. Of seven combinations the first had
# the smallest error of r(a, x) in three of four parametric worlds (0.060 against 0.068 to 0.086 with more leaves where
# effects are steps, 0.143 by the smooth forest); the second is for what features do together and was
# taken because it is quick; it was not tuned.
ADDITIVE: dict[str, Any] = {"max_leaf_nodes": 2, "learning_rate": 0.1, "max_iter": 100}
BOOSTING: dict[str, Any] = {"max_leaf_nodes": 4, "learning_rate": 0.1, "max_iter": 50}
BOOSTED_LEAF = 10  # fewest rows in a leaf
BINS = 64  # of every column in boosting
# Principal components that forests for all actions see beside their columns, and the rows they are found in. Told which
# columns are noise, the share forest was right in 88.8, 98.4 and 96.9 % of the test rows without, 89.1, 98.6 and 97.0 %
# with them (ten satimage logs, four of pendigits and of optdigits; the second forest without: 88.6, 98.3 and 96.9 %).
COMPONENTS, COMPONENT_ROWS = 12, 20_000
MOST_COMPONENT_COLUMNS = 1_000  # beyond which the matrix of their products grows large; not compared
ROUNDING = 1e-9  # of the largest variance: directions with less hold nothing but rounding errors


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to learn rewards from."""

    X: np.ndarray  # [n, D]
    A: np.ndarray  # [n]
    R: np.ndarray  # [n]
    weight: np.ndarray  # [n], mean 1
    k: int

    def take(self, rows: np.ndarray) -> "Rows":
        """Some of them."""
        return Rows(self.X[rows], self.A[rows], self.R[rows], self.weight[rows], self.k)


class Part(NamedTuple):
    """One fold's task: rows to learn from, rows to predict (the rows learned from stand at `places`), masks."""

    seen: Rows
    X_new: np.ndarray  # [m, D]
    places: np.ndarray  # [n]; without meaning where X_new is other rows, for kinds that do not ask
    f: np.ndarray  # [k, D]
    seed: int
    settings: Settings


TakenLoss = Callable[[Tensor, Tensor, Tensor], Losses]
Predictions = Mapping[str, np.ndarray]  # of kinds fitted before, for X_new: [m, k] each
Reading = Callable[[np.ndarray], np.ndarray]  # columns [n, D] to inputs of a network [n, inputs]
Member = Callable[[Part, Predictions], np.ndarray]  # predictions for X_new: [m, k]


# Kinds of models -----------------------------------------------------------------------------------------


def linear(part: Part, before: Predictions) -> np.ndarray:
    """A logistic regression per action on the action's own features."""

    def one(X: np.ndarray, R: np.ndarray, weight: np.ndarray, X_new: np.ndarray, a: int) -> np.ndarray:
        W, c = fit_ridge(X, R, weight, part.settings.reward_penalty)
        return sigmoid(X_new.astype(float) @ W + c)

    return by_action(part, one)


def sparse_linear(part: Part, before: Predictions) -> np.ndarray:
    """The same with an L1 penalty on all features, so that one kind of model is not bound to what Step B keeps.

    Per action the penalty that predicts a quarter of its rows best from the others.
    """

    def one(X: np.ndarray, R: np.ndarray, weight: np.ndarray, X_new: np.ndarray, a: int) -> np.ndarray:
        kept = np.random.default_rng(seed_of(part.seed, a)).permutation(len(R)) % 4 > 0

        def loss(l1: float) -> float:
            W, c, _ = fit_one_action(X[kept], R[kept], weight[kept], l1)
            return float(weight[~kept] @ logistic_losses(sigmoid(X[~kept].astype(float) @ W + c), R[~kept]))

        W, c, _ = fit_one_action(X, R, weight, min(SPARSE_PENALTIES, key=loss))
        return sigmoid(X_new.astype(float) @ W + c)

    return by_action(part._replace(f=np.ones_like(part.f)), one)


def forest(part: Part, before: Predictions) -> np.ndarray:
    """A forest of extremely randomised trees per action on the action's own features."""
    return by_action(part, lambda *rows: grown(part, *rows))


def smooth_forest(part: Part, before: Predictions) -> np.ndarray:
    """Half as many trees with large leaves; all columns are tried, as a split that leaves too few rows is given up."""
    s = part.settings
    smooth = replace(s, trees=max(1, s.trees // 2), leaf=max(s.leaf, SMOOTH_LEAF), columns=1.0)
    return forest(part._replace(settings=smooth), before)


def grown(part: Part, X: np.ndarray, R: np.ndarray, weight: np.ndarray, X_new: np.ndarray, a: int) -> np.ndarray:
    """Predictions of one action's forest."""
    model = grow("ExtraTreesRegressor", X, R, weight, seed_of(part.seed, a), **growth(part.settings, len(R)))
    return np.asarray(model.predict(X_new))


def additive_boosting(part: Part, before: Predictions) -> np.ndarray:
    """Per action a sum of step functions of its own features, by boosting."""
    return boosted(part, ADDITIVE)


def boosting(part: Part, before: Predictions) -> np.ndarray:
    """Per action a sum of small trees on its own features, by boosting."""
    return boosted(part, BOOSTING)


def boosted(part: Part, shape: dict[str, Any]) -> np.ndarray:
    """Predictions of each action's boosted trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    fixed = {**shape, "min_samples_leaf": BOOSTED_LEAF, "early_stopping": False}

    def one(X: np.ndarray, R: np.ndarray, weight: np.ndarray, X_new: np.ndarray, a: int) -> np.ndarray:
        model = HistGradientBoostingRegressor(**fixed, random_state=seed_of(part.seed, a))
        return np.asarray(model.fit(X, R, sample_weight=weight).predict(X_new))

    return by_action(in_bins(part), one)


def in_bins(part: Part) -> Part:
    """The same task with every column as its place among quantiles of the rows seen; their own values keep a place.

    With row weights scikit-learn looks for quantiles itself, which takes 30 times as long as the trees.
    """
    edges = np.quantile(part.seen.X, np.arange(1, BINS) / BINS, axis=0).T  # [D, BINS - 1]

    def places(X: np.ndarray) -> np.ndarray:
        found = [np.searchsorted(e, x) + np.searchsorted(e, x, "right") for e, x in zip(edges, X.T, strict=True)]
        return np.stack(found, axis=1).astype(np.float32)

    return part._replace(seen=replace(part.seen, X=places(part.seen.X)), X_new=places(part.X_new))


def growth(settings: Settings, n: int) -> Growth:
    """How a forest on n rows grows."""
    s = settings
    trees = min(s.trees, max(FEWEST_TREES, MOST_SEEN // n))
    return {"trees": trees, "leaf": max(s.leaf, n // MOST_LEAVES), "columns": float(s.columns)}


def by_action(part: Part, fit: Callable[..., np.ndarray]) -> np.ndarray:
    """One model per action on its own columns; where there is nothing to learn from, the mean reward of its rows."""
    rows, Q = part.seen, np.zeros((len(part.X_new), part.seen.k))
    for a in range(rows.k):
        taken = np.flatnonzero((rows.A == a) & (rows.weight > 0))
        if not len(taken):
            continue
        R, weight = rows.R[taken], rows.weight[taken]
        if not part.f[a].any() or R.min() == R.max():
            Q[:, a] = np.average(R, weights=weight)
        else:
            Q[:, a] = fit(rows.X[taken][:, part.f[a]], R, weight, part.X_new[:, part.f[a]], a)
    return np.clip(Q, 0.0, 1.0)


def reward_heads(part: Part, before: Predictions) -> np.ndarray:
    """A network with a head per action on the union of their features; each head is a logistic regression."""
    return network_rewards(part, taken_reward, logistic_link, part.settings.epochs)


def share_heads(part: Part, before: Predictions) -> np.ndarray:
    """The same with rewards that share one unit: the better where at most one action is right, else given no share.

    The mean of two networks, of which one reads the pieces of the columns beside them.
    """
    pieces = Pieces.of(part.seen.X[:, union(part.f)], len(part.X_new))
    readings = (np.asarray, pieces.beside) if len(pieces) else (np.asarray,)
    r = [network_rewards(part, taken_share, softmax, part.settings.epochs, read) for read in readings]
    return np.asarray(np.mean(r, axis=0))


def brief_heads(part: Part, before: Predictions) -> np.ndarray:
    """The first after a fifth of the epochs, for outcomes that are mostly noise."""
    return network_rewards(part, taken_reward, logistic_link, max(1, part.settings.epochs // 5))


def logistic_link(S: np.ndarray) -> np.ndarray:
    """Log odds to probabilities."""
    return sigmoid(S.astype(float))


def network_rewards(
    part: Part, loss: TakenLoss, link: Callable[[np.ndarray], np.ndarray], epochs: int, read: Reading = np.asarray
) -> np.ndarray:
    """Predictions of a network; read: what it makes of its columns, of new rows block by block, as pieces take room."""
    rows, columns = part.seen, union(part.f)
    A, R = torch.tensor(rows.A.astype(np.int64)), tensor(rows.R)
    network = fit_heads(
        tensor(read(rows.X[:, columns])),
        rows.k,
        lambda S, chosen: loss(S, A[chosen], R[chosen]),
        tensor(rows.weight),
        replace(plan_of(part.settings, part.seed), epochs=epochs),
    )
    with torch.inference_mode():
        blocks = np.array_split(part.X_new, range(EVALUATED_ROWS, len(part.X_new), EVALUATED_ROWS))
        S = np.concatenate([network.scores(tensor(read(block[:, columns]))).numpy() for block in blocks])
    never = np.bincount(rows.A, minlength=rows.k) == 0
    return np.where(never, 0.0, link(S))


def second_forest(part: Part, before: Predictions) -> np.ndarray:
    """One forest for all actions on what the first models say of every row, with the outcome seen in its place.

    An action's own forest learns from the rows in which it was taken, this one from all rows.
    """
    rows, r = part.seen, taught_by(part, before, "second forest")
    r[np.arange(len(r)), rows.A] = rows.R
    return forest_for_all(part, r)


def share_forest(part: Part, before: Predictions) -> np.ndarray:
    """The same with rewards that share one unit: what an outcome leaves of the unit goes to the other actions."""
    rows, r = part.seen, taught_by(part, before, "share forest")
    j, taken = np.arange(len(r)), np.bincount(rows.A, minlength=rows.k) > 0
    r = np.where(taken, np.maximum(r, SURE), 0.0)
    r[j, rows.A] = 0.0
    r *= ((1 - rows.R) / np.maximum(r.sum(axis=1), SURE))[:, None]
    r[j, rows.A] = rows.R
    return forest_for_all(part, r)


def taught_by(part: Part, before: Predictions, kind: str) -> np.ndarray:
    """What the teachers of a kind say of the rows seen, on average."""
    return np.asarray(np.mean([before[name][part.places] for name in TEACHERS[kind]], axis=0))  # [n, k]


def forest_for_all(part: Part, r: np.ndarray) -> np.ndarray:
    """Predictions of one forest for rewards r [n, k] of all actions, on columns that some action sees."""
    columns, rows = union(part.f), part.seen
    X, X_new = with_components(rows.X[:, columns], part.X_new[:, columns])
    model = grow("ExtraTreesRegressor", X, r, rows.weight, part.seed, **growth(part.settings, len(r)))
    return np.clip(model.predict(X_new), 0.0, 1.0)


def with_components(X: np.ndarray, X_new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with the first principal components of X beside their columns, as trees cut along single columns only."""
    if X.shape[1] > MOST_COMPONENT_COLUMNS:
        return X, X_new
    Z = X[:: math.ceil(len(X) / COMPONENT_ROWS)].astype(float)
    Z -= Z.mean(axis=0)
    variances, directions = np.linalg.eigh(Z.T @ Z)  # the largest last
    some = np.flatnonzero(variances > ROUNDING * variances[-1])[::-1][:COMPONENTS]
    W = directions[:, some].astype(X.dtype)  # [D, components]
    return np.hstack([X, X @ W]), np.hstack([X_new, X_new @ W])


def tensor(x: np.ndarray) -> Tensor:
    """Single precision in memory of torch's own."""
    return torch.tensor(np.ascontiguousarray(x, np.float32))


def plan_of(settings: Settings, seed: int) -> Plan:
    """How the settings train a network with heads."""
    s = settings
    return Plan(s.hidden, s.epochs, s.batch, s.learning_rate, s.dropout, s.l2, seed)


def union(f: np.ndarray) -> np.ndarray:
    """Columns that some action sees; all, where none sees any: a network needs an input."""  # [D]
    found = f.any(axis=0)
    return np.asarray(found if found.any() else np.ones_like(found))


MEMBERS: Mapping[str, Member] = {
    "linear": linear,
    "sparse linear": sparse_linear,
    "forest": forest,
    "smooth forest": smooth_forest,
    "additive boosting": additive_boosting,
    "boosting": boosting,
    "reward network": reward_heads,
    "share network": share_heads,
    "brief network": brief_heads,
    "second forest": second_forest,
    "share forest": share_forest,
}
TEACHERS = {
    "second forest": ("forest", "reward network", "share network"),
    "share forest": ("forest", "share network"),
}
# Rows that speak for a kind before any outcome is looked at: where there is little to learn, losses differ by chance
# and the plainest kind errs least. Of 0 to 40, on two logs each of eight worlds: 5 gained 1.2 and 0.7 points of true
# value where signals are weakest and changed the others by +0.1 to -0.2.
PRIOR_ROWS = {"linear": 5.0}
# An action taken in fewer rows than FEW promises as if LENT more had brought what the other actions promise: one lucky
# outcome would else be promised to everybody. Beyond, its own rows decide; no log of the comparison has fewer than 44.
FEW, LENT = 20, 5
WORTHWHILE = 0.01  # share in the first fold from which on the others fit a kind too
COUNTS = 0.05  # share from which on a kind is in the stack: one with less takes as long to fit; for time, not compared


# Cross-fitting and stacking ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Calibration:
    """r = sigmoid(slope * log odds + intercept); where a slope below 0 would turn the order round, the mean for all."""

    slope: float = 1.0
    intercept: float = 0.0

    def __call__(self, q: np.ndarray) -> np.ndarray:
        """The calibrated predictions."""
        return sigmoid(self.slope * log_odds(q) + self.intercept)


@dataclass(frozen=True, eq=False)
class Stack:
    """Calibrated predictions of the stack and how good they are."""

    honest: np.ndarray  # Q of the rows learned from, each by models that never saw it: [n, k]
    everywhere: np.ndarray  # Q by the models of all rows: of these rows, which they saw, then of new ones: [m, k]
    shares: Mapping[str, float]
    losses: Mapping[str, float]  # honest logistic loss of each kind and of the "stack"


def cross_fit(
    parts: Sequence[Part], members: Sequence[str], workers: int, told: Counted | None = None
) -> list[dict[str, np.ndarray]]:
    """Predictions of every kind for X_new of every part; kinds that learn from others are fitted after them.

    A kind in a part is a task of its own, so that processes wait less for each other.
    """
    found: list[dict[str, np.ndarray]] = [{} for _ in parts]
    for taught in (False, True):
        kinds = [name for name in members if (name in TEACHERS) is taught]
        places = [(number, name) for number in range(len(parts)) for name in kinds]
        tasks = [(parts[number], name, said_by_teachers(found[number], name)) for number, name in places]
        counted = told and piece_of_work(told, sum(map(len, found)), len(tasks), len(parts) * len(members))
        answers = each_in_a_process(fit_kind, tasks, workers, counted)
        for (number, name), Q in zip(places, answers, strict=True):
            found[number][name] = Q
    return found


def piece_of_work(told: Counted, start: int, size: int, total: int) -> Counted:
    """Tells of work that counts as `size` of `total` and begins at `start`."""
    return lambda done, of: told(start + size * done // of, total)


def said_by_teachers(found: Predictions, kind: str) -> Predictions:
    """What the kinds say that a kind learns from."""
    return {name: found[name] for name in TEACHERS.get(kind, ())}


def fit_kinds(part: Part, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Predictions of some kinds that nobody teaches, in one task: for quick ones."""
    return {name: fit_kind(part, name, {}) for name in names}


def fit_kind(part: Part, name: str, before: Predictions) -> np.ndarray:
    """Predictions of one kind of model; one thread, as sums must not depend on how many there are."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return lent(MEMBERS[name](part, before), part.seen)


def lent(Q: np.ndarray, rows: Rows) -> np.ndarray:
    """Predictions [m, k] of which those for actions with few rows are drawn to the mean of the other actions'."""
    taken = np.bincount(rows.A[rows.weight > 0], minlength=rows.k)
    there, few = taken > 0, (taken > 0) & (taken < FEW)
    if not few.any() or there.sum() < 2:
        return Q
    others = (Q[:, there].sum(axis=1, keepdims=True) - Q) / (there.sum() - 1)  # [m, k]
    return np.where(few, (taken * Q + LENT * others) / (taken + LENT), Q)


def each_in_a_process(
    function: Callable[..., Found], tasks: Sequence[tuple[Any, ...]], workers: int, told: Counted | None = None
) -> list[Found]:
    """What the function gives for every task, in order; in processes of their own where there are workers.

    told: is told how many are done of how many.
    """
    found: list[Found] = []
    for one in answers_in_order(function, tasks, workers):
        found.append(one)
        if told:
            told(len(found), len(tasks))
    return found


def answers_in_order(function: Callable[..., Found], tasks: Sequence[tuple[Any, ...]], workers: int) -> Iterable[Found]:
    """One answer after the other, as soon as it and those before it are there."""
    workers = min(workers, len(tasks))
    if workers <= 1:
        return (function(*task) for task in tasks)
    from joblib import Parallel, delayed

    processes = Parallel(n_jobs=workers, backend="loky", return_as="generator", batch_size=1)
    found: Iterable[Found] = processes(delayed(function)(*task) for task in tasks)
    return found


def worthwhile(found: Predictions, rows: Rows) -> list[str]:
    """The kinds that get a share by their honest predictions [n, k] in one fold, or that something speaks for."""
    j = np.arange(len(rows.A))
    shares = mixture({name: one[j, rows.A] for name, one in found.items()}, rows, prior={}).shares
    return with_teachers({name for name, share in shares.items() if share >= WORTHWHILE} | PRIOR_ROWS.keys())


def with_teachers(kinds: Collection[str]) -> list[str]:
    """These kinds and those that they learn from, in the order in which they are fitted."""
    wanted = {teacher for name in kinds for teacher in (name, *TEACHERS.get(name, ()))}
    return [name for name in MEMBERS if name in wanted]


@dataclass(frozen=True, eq=False)
class Mixture:
    """How the kinds are put together: each calibrated, their shares, and the calibration of the whole."""

    each: Mapping[str, Calibration]
    shares: Mapping[str, float]
    whole: Calibration
    losses: dict[str, float]  # honest logistic loss of each kind and of the "stack"

    def __call__(self, found: Predictions) -> np.ndarray:
        """The stack's predictions [m, k] from those of several fits of every kind, [fits, m, k] each."""
        parts = (share * self.each[name](found[name]).mean(axis=0) for name, share in self.shares.items())
        return self.whole(np.sum([*parts], axis=0))


def mixture(q: Predictions, rows: Rows, prior: Mapping[str, float] = PRIOR_ROWS) -> Mixture:
    """The likeliest one, given honest predictions [n] of every kind for the actions taken."""
    each = {name: calibrated(one, rows) for name, one in q.items()}
    right = {name: each[name](one) for name, one in q.items()}
    losses = {name: mean_loss(one, rows) for name, one in right.items()}
    kinds = np.stack([*right.values()], axis=1)  # [n, kinds]
    share = likeliest_shares(kinds, rows, np.array([prior.get(name, 0.0) for name in q]))
    whole = calibrated(kinds @ share, rows)
    losses["stack"] = mean_loss(whole(kinds @ share), rows)
    return Mixture(each, dict(zip(q, share.tolist(), strict=True)), whole, losses)


def stacked(rows: Rows, fold: np.ndarray, found: Sequence[Predictions]) -> tuple[Mixture, np.ndarray]:
    """How the kinds that count are put together, and honest predictions [n, k], from every fold's for all rows."""
    j = np.arange(len(rows.A))
    own = {name: one[fold, j] for name, one in together(found).items()}  # [n, k] each
    taken = {name: one[j, rows.A] for name, one in own.items()}  # [n] each
    tried = mixture(taken, rows)
    mixed = mixture({name: taken[name] for name, share in tried.shares.items() if share >= COUNTS}, rows)
    mixed = replace(mixed, losses=tried.losses | {"stack": mixed.losses["stack"]})
    return mixed, mixed({name: own[name][None] for name in mixed.shares})


def together(found: Sequence[Predictions]) -> dict[str, np.ndarray]:
    """Predictions [m, k] of several fits as one array [fits, m, k] for each kind."""
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def log_odds(q: np.ndarray) -> np.ndarray:
    """log(q / (1 - q)), q kept away from 0 and 1."""
    q = np.clip(q, SURE, 1 - SURE)
    return np.asarray(np.log(q / (1 - q)))


def logistic_losses(q: np.ndarray, R: np.ndarray) -> np.ndarray:
    """The logistic loss of each prediction."""
    q = np.clip(q, SURE, 1 - SURE)
    return np.asarray(-R * np.log(q) - (1 - R) * np.log(1 - q))  # [n]


def mean_loss(q: np.ndarray, rows: Rows) -> float:
    """Weighted mean logistic loss of predictions [n] for the actions taken."""
    return float(np.average(logistic_losses(q, rows.R), weights=rows.weight))


def calibrated(q: np.ndarray, rows: Rows) -> Calibration:
    """Slope and intercept of the log odds by Newton's method, held near (1, 0) by a prior worth about one row."""
    z, R, w = log_odds(q), rows.R, rows.weight
    Z, start = np.column_stack([z, np.ones(len(z))]), np.array([1.0, 0.0])

    def loss(theta: np.ndarray) -> float:
        s = Z @ theta
        return float(w @ (np.logaddexp(0, s) - R * s) + np.sum((theta - start) ** 2) / 2)

    theta = start
    for _ in range(CALIBRATION_STEPS):
        p = sigmoid(Z @ theta)
        slope = Z.T @ (w * (p - R)) + (theta - start)
        move = np.linalg.solve((Z * (w * p * (1 - p))[:, None]).T @ Z + np.eye(2), slope)
        while loss(theta - move) > loss(theta) and np.abs(move).max() > 1e-9:
            move = move / 2
        theta = theta - move
    if theta[0] < 0:
        mean = (w @ R + 0.5) / (w.sum() + 1)  # with the same prior
        return Calibration(0.0, float(np.log(mean / (1 - mean))))
    return Calibration(float(theta[0]), float(theta[1]))


def likeliest_shares(q: np.ndarray, rows: Rows, prior: np.ndarray) -> np.ndarray:
    """Shares of the kinds whose mixture q @ share [n] has the least logistic loss, by expectation maximisation.

    prior [kinds]: so many rows speak for a kind beforehand (a Dirichlet distribution of the shares).
    """
    share = np.full(q.shape[1], 1 / q.shape[1])
    w = rows.weight / rows.weight.sum()
    for _ in range(SHARE_STEPS):
        mixed = np.clip(q @ share, SURE, 1 - SURE)
        share = share * ((w * rows.R / mixed) @ q + (w * (1 - rows.R) / (1 - mixed)) @ (1 - q)) + prior / len(q)
        share /= share.sum()
    return share
