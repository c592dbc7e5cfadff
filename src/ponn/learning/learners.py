"""How each kind of model is learned from prepared rows. One function per learner; a method names the one it uses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ponn.engine.passes import cores
from ponn.learning.dr.robust import Ground, learn_robust
from ponn.learning.forests import direct_forest, ipw_forest, offset_tree
from ponn.learning.partition import fit_similar
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.policy.inference import Architecture
from ponn.policy.models import LinearRewards, Model, Network, RewardNetwork, with_action
from ponn.settings import Settings
from ponn.steps.propensity import (
    Propensities,
    fit_converges,
    likeliest_penalty,
    make_classifier,
    stops_told,
    with_eligibility,
)
from ponn.steps.relevance import Relevance
from ponn.steps.reward import fit_linear_rewards, fit_rewards, logistic_loss
from ponn.training.loop import Candidate, Problem, Rows, Trained, train
from ponn.training.many import train_many


class Progress(Protocol):
    """Who is told what is being done and, where it is a number of things, how many are done of how many."""

    def __call__(self, message: str, done: int = 0, total: int = 0) -> None:
        """Take note."""


def silent(message: str, done: int = 0, total: int = 0) -> None:
    """Nobody is told."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """What all candidates share: one encoding, one pass of Step A, one of Step B."""

    train: Log
    valid: Log
    encoding: Encoding
    step_a: Propensities  # of the training rows
    step_b: Relevance | None
    problem: Problem
    ground: Ground | None = None  # of a learner that holds out every row in turn: all rows train, none validates


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model, its validation loss (comparable within a method) and what is to be told about its training."""

    model: Model
    valid_loss: float
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    companions: Mapping[str, Model] = field(default_factory=dict)  # better ones than `companions` fits
    settings: Settings | None = None  # where the learner chose some by itself


Learner = Callable[[Prepared, Sequence[Candidate], int | None, Progress], list[Fitted]]


# Networks ------------------------------------------------------------------------------------------------


def policy_networks(
    prepared: Prepared, options: Sequence[Candidate], workers: int | None, say: Progress
) -> list[Fitted]:
    """Step C: policy networks by any criterion."""
    trained = train_all(prepared.problem, options, workers, say)
    return [Fitted(Network(one.architecture, one.weights), one.valid_loss, details(one), one.notes) for one in trained]


def reward_networks(
    prepared: Prepared, options: Sequence[Candidate], workers: int | None, say: Progress
) -> list[Fitted]:
    """MLP-L1: networks that predict the reward from (x, action), without importance weights."""
    k = prepared.problem.k
    problem = Problem(
        reward_rows(prepared.problem.train, prepared.train, k),
        reward_rows(prepared.problem.valid, prepared.valid, k),
        1,
    )
    everything = np.ones((1, problem.train.X.shape[1]), bool)
    trained = train_all(problem, [replace(one, masks=everything) for one in options], workers, say)
    return [
        Fitted(RewardNetwork(one.architecture, one.weights, k), one.valid_loss, details(one), one.notes)
        for one in trained
    ]


def reward_rows(rows: Rows, log: Log, k: int) -> Rows:
    """Rows of a network with one output: the action is part of the input."""
    return Rows(with_action(rows.X, rows.A, k), np.zeros_like(rows.A), rows.R, log.row_weights, rows.n)


def train_all(
    problem: Problem, options: Sequence[Candidate], workers: int | None, say: Progress
) -> tuple[Trained, ...]:
    """Train one network here, or many in processes of their own."""
    if len(options) == 1:
        most, by = options[0].settings.epochs, problem.trainer or train
        return (by(problem, options[0], progress=lambda epoch, _: say("Step C: passes over the rows", epoch, most)),)
    quick = [replace(option, settings=replace(option.settings, watched=0)) for option in options]

    def tell(done: int, total: int, newest: Trained) -> None:
        say("Step C: networks trained", done, total)

    return train_many(problem, quick, workers=workers, progress=tell)


def details(trained: Trained) -> dict[str, Any]:
    """How training went, for the policy's provenance."""
    return {
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        "retries": trained.retries,
        "mean_ratio": None if trained.ratio is None else float(trained.ratio.total),
        "history": curve(trained),
    }


CURVE_POINTS = 60  # of the training curves that a policy keeps; a picture shows no more


def curve(trained: Trained) -> dict[str, list[float]]:
    """Losses at evenly spread epochs, the best one among them, to four figures."""
    spread = np.linspace(0, trained.epochs, min(trained.epochs + 1, CURVE_POINTS)).round().astype(int)
    epochs = sorted({*spread.tolist(), trained.best_epoch})
    names = ("train_loss", "valid_loss")
    losses = {name: [float(f"{getattr(trained.history[e], name):.4g}") for e in epochs] for name in names}
    return {"epoch": epochs, **losses}


# Others --------------------------------------------------------------------------------------------------


def linear_rewards(
    prepared: Prepared, options: Sequence[Candidate], workers: int | None, say: Progress
) -> list[Fitted]:
    """LR-L1: a logistic regression of the reward per action."""
    rows, valid = prepared.problem.train, prepared.problem.valid
    weight, valid_weight = prepared.train.row_weights, prepared.valid.row_weights
    found = []
    for option in options:
        model, notes = fit_linear_rewards(rows.X, rows.A, rows.R, weight, prepared.problem.k, option.settings.l1)
        model = pooled_where_rare(model, rows.A, rows.R, option.settings.min_cell)
        loss = logistic_loss(model.rewards(valid.X), valid.A, valid.R, valid_weight)
        found.append(Fitted(model, loss, notes=notes))
    return found


def logging_policy(
    prepared: Prepared, options: Sequence[Candidate], workers: int | None, say: Progress
) -> list[Fitted]:
    """Current practice as a policy, compared by the log loss of what was done in validation rows."""
    notes: list[str] = []
    valid, model = prepared.problem.valid, current_practice(prepared, options[0].settings, notes)
    taken = model.probabilities(valid.X, valid.eligible)[np.arange(len(valid)), valid.A]
    loss = float(np.average(-np.log(taken), weights=prepared.valid.row_weights))
    return [Fitted(model, loss, notes=tuple(notes))]


def current_practice(prepared: Prepared, settings: Settings, notes: list[str]) -> Network:
    """p_hat(a | x) as a linear network: the multinomial logistic regression of Step A on the training rows.

    Its columns for eligibility become intercepts, as where all is eligible; the network masks what is not by itself.
    """
    rows, k = prepared.problem.train, prepared.problem.k
    X = with_eligibility(rows.X.astype(float), prepared.train)
    size = k * X.shape[1]
    chosen = replace(settings, propensity="logistic", calibrate=False)
    if chosen.propensity_penalty is None:
        chosen = replace(chosen, propensity_penalty=likeliest_penalty(X, prepared.train, chosen, size, seed=0))
    fitted = make_classifier(chosen, size)
    notes += stops_told("picture of current practice", [fit_converges(fitted, X, rows.A)])
    weights = linear_weights(fitted, k)
    if settings.min_cell > 1:  # the slopes of an action that hardly anybody got are the features of these few
        weights["W1"][:, np.bincount(rows.A, minlength=k) < settings.min_cell] = 0.0
    return practice_network(weights["W1"], weights["c"], rows.X.shape[1])


def practice_network(W: np.ndarray, c: np.ndarray, D: int) -> Network:
    """A multinomial regression as a linear network: its columns before the D of the design become intercepts."""
    limits = len(W) - D
    weights = {"W1": np.ascontiguousarray(W[limits:]), "c": c + W[:limits].sum(axis=0)}
    return Network(Architecture(len(c), D, ()), {name: one.astype(np.float32) for name, one in weights.items()})


def companions(prepared: Prepared, settings: Settings, fitted: Fitted, notes: list[str]) -> dict[str, Model]:
    """What a policy carries to say what to expect of an action, how similar rows fared, whether the log supports it."""
    rewards = fitted.companions.get("reward") or carried_rewards(prepared, settings, notes)
    practice = current_practice(prepared, settings, notes)
    return {"reward": rewards, "logging": practice, "similar": similar_rows(prepared, rewards, settings)}


def similar_rows(prepared: Prepared, rewards: Model, settings: Settings) -> Model:
    """What happened in training rows like a given one, beside what the reward model promised them."""
    rows = prepared.problem.train
    r = np.asarray(rewards.rewards(rows.X))[np.arange(len(rows)), rows.A]
    return fit_similar(rows.X, rows.A, rows.R, r, prepared.problem.k, settings.min_cell)


def carried_rewards(prepared: Prepared, settings: Settings, notes: list[str]) -> Model:
    """r_hat(a, x) by a logistic regression per action, for policies whose method makes no better one."""
    rows, converged = prepared.problem.train, list[bool]()
    rewards = fit_rewards(
        rows.X, rows.A, rows.R, prepared.train.row_weights, prepared.problem.k, settings.reward_penalty, converged
    )
    notes += stops_told("reward model that is carried along", converged)
    return pooled_where_rare(rewards, rows.A, rows.R, settings.min_cell)


def pooled_where_rare(model: LinearRewards, A: np.ndarray, R: np.ndarray, fewest: int) -> LinearRewards:
    """The model with the mean of all rows for actions that fewer people got: theirs would tell of these few."""
    rare = np.bincount(A, minlength=model.k) < fewest
    if fewest <= 1 or not rare.any():
        return model
    mean = float(np.clip(R.mean(), 1 / (len(R) + 2), 1 - 1 / (len(R) + 2)))
    W, c = model.W.copy(), model.c.copy()
    W[:, rare], c[rare] = 0.0, np.log(mean / (1 - mean))
    return LinearRewards(W, c)


def doubly_robust(prepared: Prepared, options: Sequence[Candidate], workers: int | None, say: Progress) -> list[Fitted]:
    """PONN-DR, which tunes itself, so that there is one option."""
    assert prepared.ground is not None
    made = learn_robust(prepared.ground, workers or cores(), say)
    return [Fitted(made.policy, -made.value, made.details, (), {"reward": made.rewards}, made.settings)]


def linear_weights(fitted: Any, k: int) -> dict[str, np.ndarray]:
    """A fitted scikit-learn logistic regression as a linear network; a class it never saw keeps a score of -30."""
    W, c = np.zeros((k, fitted.coef_.shape[1]), np.float32), np.full(k, -30.0, np.float32)
    if len(fitted.classes_) == 2:  # one row of coefficients: log odds of the second class
        one, two = fitted.classes_
        W[two], c[one], c[two] = fitted.coef_[0], 0.0, fitted.intercept_[0]
    else:
        W[fitted.classes_], c[fitted.classes_] = fitted.coef_, fitted.intercept_
    return {"W1": np.ascontiguousarray(W.T), "c": c}


# Forests -------------------------------------------------------------------------------------------------


def ipw_forests(prepared: Prepared, options: Sequence[Candidate], workers: int | None, say: Progress) -> list[Fitted]:
    """Weighted classification of the rewarded actions; compared by the negative IPS value of the voted action."""
    rows = prepared.problem.train
    return [
        judged_by_ips(ipw_forest(rows.X, rows.A, rows.R, rows.w, prepared.problem.k, one.seed, **shape(one)), prepared)
        for one in options
    ]


def direct_forests(
    prepared: Prepared, options: Sequence[Candidate], workers: int | None, say: Progress
) -> list[Fitted]:
    """A reward forest per action; compared by the squared error on the actions taken in validation rows."""
    rows, valid = prepared.problem.train, prepared.problem.valid
    weight, found = prepared.train.row_weights, []
    for one in options:
        model = direct_forest(rows.X, rows.A, rows.R, weight, prepared.problem.k, one.seed, **shape(one))
        error = np.asarray(model.rewards(valid.X))[np.arange(len(valid)), valid.A] - valid.R
        found.append(Fitted(model, float(np.average(error**2, weights=prepared.valid.row_weights))))
    return found


def offset_trees(prepared: Prepared, options: Sequence[Candidate], workers: int | None, say: Progress) -> list[Fitted]:
    """The offset tree with forests as its classifiers; compared by the negative IPS value."""
    rows, k, found = prepared.problem.train, prepared.problem.k, []
    for one in options:
        folds = one.settings.folds
        model = offset_tree(rows.X, rows.A, rows.R, rows.w, k, one.seed, folds=folds, **shape(one))
        found.append(judged_by_ips(model, prepared))
    return found


def shape(option: Candidate) -> dict[str, Any]:
    """What a forest looks like."""
    s = option.settings
    return {"trees": s.trees, "leaf": s.leaf, "columns": float(s.columns)}


def judged_by_ips(model: Model, prepared: Prepared) -> Fitted:
    """The model with the negative IPS value of its most probable action on validation rows."""
    valid = prepared.problem.valid
    agrees = model.probabilities(valid.X, valid.eligible).argmax(axis=1) == valid.A
    return Fitted(model, -float(np.mean(agrees * valid.R * valid.w)))


LEARNERS: Mapping[str, Learner] = {
    "network": policy_networks,
    "reward-network": reward_networks,
    "linear-rewards": linear_rewards,
    "logging": logging_policy,
    "ipw-forest": ipw_forests,
    "direct-forest": direct_forests,
    "offset-tree": offset_trees,
    "doubly-robust": doubly_robust,
}
