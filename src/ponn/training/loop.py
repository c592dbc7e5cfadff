"""Step C, the loop only: Adam on mini-batches of the rows that contribute, early stopping, nothing else.

symbol   meaning                                                     shape
X        design columns                                              [rows, D]
A        actions taken                                               [rows]
R        rewards in [0, 1]                                           [rows]
w        importance weights 1/p_j (truncated, if the caller wants)   [rows]
n        rows of the log they come from; at least as many
eligible may action a be taken in row j? None: all                   [rows, k] bool
f        masks: does action a see a design column?                   [k, D]

One thread by default: the result then does not depend on the machine's number of cores, and many candidates use all
cores better as single-thread processes than one after the other on all of them (benchmarks/training_speed.py).

Several processes can train one network (team.py): each works on its share of every batch, the slopes are averaged.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ponn.errors import PonnError
from ponn.policy.inference import Architecture
from ponn.settings import Settings
from ponn.training.checkpoint import Checkpoint, State
from ponn.training.objective import (
    Majorant,
    Outcomes,
    Ratio,
    add_weight_penalties,
    contributes,
    majorant,
    mean_loss,
    outcomes,
    ratio,
    read,
    row_losses,
    score_slopes,
    validation_loss,
)
from ponn.training.policy_network import PolicyNetwork
from ponn.training.team import Team

EVALUATED_ROWS = 2_048  # rows in one forward pass without gradients: k * h_1 = 1,000 takes 8 MB per layer
RETRIES = 3  # after a divergence, each with a step ten times smaller
SMALLER = 0.1
DIVERGED = 10.0  # times the untrained network's cross-entropy; the mean log h is then below that of 1/k^10


# What goes in --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a log as the network reads them; n may count more rows than are here (those with reward 0)."""

    X: np.ndarray  # [rows, D]
    A: np.ndarray  # [rows]
    R: np.ndarray  # [rows]
    w: np.ndarray  # [rows]
    n: float
    eligible: np.ndarray | None = None  # [rows, k] bool

    def __len__(self) -> int:
        return len(self.A)

    @property
    def complete(self) -> bool:
        """Are all rows of the log here, those with reward 0 as well?"""
        return len(self) == self.n

    def take(self, rows: np.ndarray, n: float) -> "Rows":
        """Some of the rows, out of n."""
        eligible = None if self.eligible is None else self.eligible[rows]
        return Rows(self.X[rows], self.A[rows], self.R[rows], self.w[rows], n, eligible)


@dataclass(frozen=True, eq=False)
class Problem:
    """What to learn from and what to stop by. `train` should hold all rows, or the monitor cannot be computed.

    Where rows are streamed, `train` is a sample of them whose n stands for as many rows in proportion, and an epoch is
    as many rows of the stream as it gives out at a time. `kept` is where training that was stopped goes on from;
    `trainer` trains it elsewhere than in this process.
    """

    train: Rows
    valid: Rows
    k: int
    stream: "Callable[[Settings, torch.Generator, Team], Epochs] | None" = None
    kept: Checkpoint | None = None
    trainer: "Trainer | None" = None


@dataclass(frozen=True, eq=False)
class Candidate:
    """One network to train on a problem."""

    masks: np.ndarray  # [k, D] bool
    settings: Settings
    seed: int = 0


class Tensors(NamedTuple):
    """Rows in single precision, in memory of torch's own (so that results do not depend on numpy's alignment)."""

    X: Tensor
    outcomes: Outcomes
    n: float

    def __len__(self) -> int:
        return len(self.X)

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """Everything that has an entry per row."""
        return (self.X, *(one for one in self.outcomes if one is not None))

    def part(self, first: int, last: int) -> "Tensors":
        """Rows of the same memory."""
        X, *others = (column[first:last] for column in self.columns)
        return Tensors(X, Outcomes(*others), self.n)


def tensors(rows: Rows, settings: Settings) -> Tensors:
    """Copy rows to torch."""
    X, R, w = (torch.tensor(np.asarray(one, np.float32)) for one in (rows.X, rows.R, rows.w))
    A = torch.tensor(np.asarray(rows.A, np.int64))
    barred = None if rows.eligible is None else torch.tensor(~rows.eligible)
    return Tensors(X, outcomes(settings.criterion, A, R, w, settings.baseline, barred), rows.n)


def contributing(rows: Rows, settings: Settings, part: str) -> Tensors:
    """The rows that can change the criterion; an error where there are none."""
    chosen = np.flatnonzero(contributes(settings.criterion, rows.R))
    if not len(chosen):
        raise PonnError(
            f"None of the {len(rows)} {part} rows has a reward above 0, so there is nothing the criterion "
            f"{settings.criterion!r} could learn from. Check the reward column and its direction, or give more rows."
        )
    return tensors(rows.take(chosen, rows.n), settings)


def sample(rows: Rows, settings: Settings, seed: int) -> Tensors | None:
    """A fixed random sample to watch, with a generator of its own: watching must not change what is learned."""
    size = settings.watched
    if not rows.complete or not size:
        return None
    return tensors(rows.take(np.random.default_rng(seed).permutation(len(rows))[:size], size), settings)


class Epochs(Protocol):
    """Batches without end, an epoch each time they are gone through."""

    @property
    def position(self) -> tuple[int, ...]:
        """Where the next epoch begins, beside what the generator knows."""

    def seek(self, position: tuple[int, ...]) -> None:
        """Go on there."""

    def __iter__(self) -> "Iterator[Tensors]": ...

    def close(self) -> None:
        """Stop reading."""


class Batches:
    """Rows in a new order every epoch, in batches of nearly equal size: views of one copy, made once.

    A team shuffles alike, and each of its processes has its share of every batch.
    """

    position: tuple[int, ...] = ()

    def __init__(self, rows: Tensors, size: int, generator: torch.Generator, team: Team | None = None):
        self.rows, self.generator = rows, generator
        X, *others = (torch.empty_like(column) for column in rows.columns)
        self.shuffled = Tensors(X, Outcomes(*others), rows.n)
        edges = np.linspace(0, len(rows), max(1, round(len(rows) / size)) + 1).astype(int).tolist()
        mine = team or Team()
        self.parts = [self.shuffled.part(*mine.share(first, last)) for first, last in pairwise(edges)]
        if np.diff(edges).min() < mine.size:
            raise PonnError(
                f"{mine.size} processes cannot share {len(rows)} contributing rows in batches of {size}: each needs at "
                "least one row of every batch. Train with fewer processes (--trainers), or in larger batches."
            )

    def seek(self, position: tuple[int, ...]) -> None:
        """The generator knows it all."""

    def close(self) -> None:
        """Nothing is read."""

    def __iter__(self) -> Iterator[Tensors]:
        order = torch.randperm(len(self.rows), generator=self.generator)
        for column, shuffled in zip(self.rows.columns, self.shuffled.columns, strict=True):
            torch.index_select(column, 0, order, out=shuffled)
        return iter(self.parts)


# What comes out ------------------------------------------------------------------------------------------


class Epoch(NamedTuple):
    """One pass over the rows. Losses are without penalties; epoch 0 is the untrained network."""

    train_loss: float  # running, while the weights change
    valid_loss: float
    ratio: Ratio | None  # on the watched rows


@dataclass(frozen=True, eq=False)
class Trained:
    """The weights of the epoch with the lowest validation loss, and how they were found. Never NaN."""

    architecture: Architecture
    weights: dict[str, np.ndarray]
    history: tuple[Epoch, ...]  # history[e] is epoch e of the last attempt
    best_epoch: int  # 0: training never improved on the untrained network
    ratio: Ratio | None  # of the returned weights on all training rows; None where rows were left out
    retries: int  # attempts that diverged
    learning_rate: float  # of the last attempt
    stopped_early: bool  # False: the epochs ran out, more might help
    seconds: float

    @property
    def epochs(self) -> int:
        """Passes over the rows, in the last attempt."""
        return len(self.history) - 1

    @property
    def valid_loss(self) -> float:
        """The lowest validation loss, that of the returned weights."""
        return self.history[self.best_epoch].valid_loss

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about this training."""
        found = []
        if self.retries:
            found.append(
                f"Training diverged and was repeated with step {self.learning_rate:g} (attempt {self.retries + 1})."
            )
        if not self.best_epoch:
            found.append(
                "Training never improved the validation loss: the policy is the untrained network, and what it "
                "recommends is arbitrary. Learn with another method (ponn-dr, mlp-l1) or a smaller step."
            )
        if not self.stopped_early:
            found.append(f"Training had not settled when its {self.epochs} epochs ran out; more may help.")
        return tuple(found)


class DivergenceError(ArithmeticError):
    """A loss or a weight stopped being a usable number."""


# Training ------------------------------------------------------------------------------------------------

Progress = Callable[[int, Epoch], None]


class Trainer(Protocol):
    """Who trains a network: `train`, or processes elsewhere."""

    def __call__(self, problem: Problem, candidate: Candidate, *, progress: Progress | None = None) -> Trained:
        """Train one network."""


def train(problem: Problem, candidate: Candidate, *, threads: int = 1, progress: Progress | None = None) -> Trained:
    """Train one network; after a divergence again with a smaller step, from the same start.

    progress is called with the epoch's number and what was measured. Same seed, data, threads, machine and team: same
    bits, also where it was stopped and went on from what `problem.kept` had kept.
    """
    started = time.perf_counter()
    settings = candidate.settings
    state = problem.kept.read() if problem.kept else None
    with thread_count(threads), tiny_numbers_are_zero():
        for retries in range(state.attempt if state else 0, RETRIES + 1):
            tried = replace(settings, learning_rate=settings.learning_rate * SMALLER**retries)
            try:
                with closing(Run(problem, replace(candidate, settings=tried), retries, state)) as run:
                    return replace(run.until_done(progress), retries=retries, seconds=time.perf_counter() - started)
            except DivergenceError as error:
                reason, state = error, None
    raise PonnError(
        f"Training diverged {RETRIES + 1} times, last with step {tried.learning_rate:g}: {reason}. "
        "Look for extreme weights (ponn check shows the smallest propensities), truncate them with m, or penalise more."
    )


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Run torch with so many threads, then as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tiny_numbers_are_zero() -> Iterator[None]:
    """Numbers below 1e-38 are 0 meanwhile, then as before.

    A penalty lets the weights of idle units shrink to such numbers, for which processors take many times as long.
    """
    before = bool(torch.full((1,), torch.finfo(torch.float32).tiny) / 2 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class Run:
    """One attempt: a network, its optimizer and its rows, from the start or from where an earlier process was."""

    def __init__(self, problem: Problem, candidate: Candidate, attempt: int = 0, state: State | None = None):
        self.problem, self.settings, self.attempt, self.team = problem, candidate.settings, attempt, Team.current()
        settings = candidate.settings
        self.generator = torch.Generator().manual_seed(candidate.seed)
        self.rows = contributing(problem.train, settings, "training")
        self.valid = contributing(problem.valid, settings, "validation")
        self.watched = sample(problem.train, settings, candidate.seed)
        shape = Architecture(problem.k, self.rows.X.shape[1], settings.hidden, settings.activation)
        self.network = PolicyNetwork(shape, candidate.masks, self.generator)
        self.batches: Epochs = Batches(self.rows, settings.batch, self.generator, self.team)
        if problem.stream:
            self.batches = problem.stream(settings, self.generator, self.team)
        self.optimizer = Adam(self.network.weight, self.network.slope, settings.learning_rate)
        self.history: list[Epoch] = []
        self.best, self.best_epoch = self.network.weight.clone(), 0
        if state is not None:
            self.restore(state)

    def restore(self, state: State) -> None:
        """Go on where an earlier process was."""
        for kept, now in zip(state.vectors, self.vectors, strict=True):
            now.copy_(torch.from_numpy(kept))
        self.generator.set_state(torch.from_numpy(state.generator))
        self.history, self.best_epoch = [Epoch(*one) for one in state.history], state.best_epoch
        self.batches.seek(state.positions[self.team.rank])

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """Everything that training has changed."""
        optimizer = self.optimizer
        return self.network.weight, optimizer.mean, optimizer.square, optimizer.steps, self.best

    def keep(self) -> None:
        """Keep what another process needs to go on from here."""
        if self.problem.kept is None:
            return
        positions = self.team.gathered(self.batches.position)
        if self.team.rank == 0:
            vectors = tuple(one.numpy() for one in self.vectors)
            generator = self.generator.get_state().numpy()
            state = State(self.attempt, vectors, generator, tuple(self.history), self.best_epoch, positions)
            self.problem.kept.write(state)

    def close(self) -> None:
        """Stop reading rows."""
        self.batches.close()

    @torch.inference_mode()
    def until_done(self, progress: Progress | None) -> Trained:
        """Epochs until the validation loss has not fallen for `patience` of them, or they run out."""
        if not self.history:
            self.history.append(self.measured(self.loss_of_training_rows()))
        history = self.history
        while len(history) <= self.settings.epochs and len(history) - 1 - self.best_epoch < self.settings.patience:
            history.append(self.measured(self.pass_over_rows()))
            check(history, self.settings.criterion)
            if history[-1].valid_loss < history[self.best_epoch].valid_loss:
                self.best.copy_(self.network.weight)
                self.best_epoch = len(history) - 1
            self.keep()
            if progress:
                progress(len(history) - 1, history[-1])
        self.network.weight.copy_(self.best)
        return Trained(
            architecture=self.network.architecture,
            weights=self.network.weights(),
            history=tuple(history),
            best_epoch=self.best_epoch,
            ratio=self.watch(tensors(self.problem.train, self.settings)) if self.problem.train.complete else None,
            retries=0,
            learning_rate=self.settings.learning_rate,
            stopped_early=len(history) - 1 - self.best_epoch >= self.settings.patience,
            seconds=0.0,
        )

    @torch.inference_mode()
    def pass_over_rows(self) -> float:
        """One epoch; returns the running loss."""
        bound = self.bound()
        u = torch.cat([self.step(batch, bound) for batch in self.batches])
        return self.team.averaged(float(mean_loss(u, self.rows.n * len(u) / len(self.rows))), len(u))

    def step(self, batch: Tensors, bound: Majorant) -> Tensor:
        """One step of the optimizer; returns the batch's u_j."""
        s, network = self.settings, self.network
        share = len(self.rows) / (len(batch) * self.rows.n)  # mean over the batch: unbiased for (1/n) sum
        S = network.forward(batch.X)
        u, dS = score_slopes(s.criterion, S, batch.outcomes, bound.times(share), clip_of(s))
        network.backward(batch.X, dS)
        self.team.average(network.slope, len(batch))
        add_weight_penalties(*network.penalised, s.l1, s.l2)
        self.optimizer.step()
        return u

    def bound(self) -> Majorant:
        """The objective of this epoch as a sum over rows; only the variance penalty needs a look at all of them."""
        if not self.settings.variance:
            return Majorant()
        return majorant(self.losses(self.rows), self.rows.n, self.settings.variance)

    # Measuring

    def scores(self, X: Tensor) -> Tensor:
        """Scores in blocks: [k, rows]."""
        blocks = [self.network.forward(block) for block in torch.split(X, EVALUATED_ROWS)]
        return torch.cat(blocks, dim=1) if len(blocks) > 1 else blocks[0]

    def losses(self, rows: Tensors) -> Tensor:
        """u_j of rows."""
        s = self.settings
        return row_losses(
            s.criterion, read(s.criterion, self.scores(rows.X), rows.outcomes), rows.outcomes, clip_of(s)
        ).u

    def loss_of_training_rows(self) -> float:
        """The training loss of the weights as they are."""
        return float(mean_loss(self.losses(self.rows), self.rows.n))

    def measured(self, train_loss: float) -> Epoch:
        """The epoch's losses and ratio."""
        s, rows = self.settings, self.valid
        v = read(s.criterion, self.scores(rows.X), rows.outcomes)
        loss = validation_loss(s.criterion, v, rows.outcomes, rows.n, clip_of(s))
        return Epoch(train_loss, self.team.agreed(float(loss)), self.watch(self.watched))

    def watch(self, rows: Tensors | None) -> Ratio | None:
        """The monitor of propensity overfitting on rows, rewarded or not; a reward network has no policy to watch."""
        if rows is None or self.settings.criterion == "logistic":
            return None
        return ratio(self.scores(rows.X), rows.outcomes)


def clip_of(settings: Settings) -> float:
    """POEM's M as a number; none, or 0, is no clip."""
    return settings.clip or math.inf


class Adam:
    """Adam (Kingma and Ba 2015) on one vector, by the kernel of torch.optim.Adam(fused=True).

    That class takes about 70 us a step to reach the kernel; all else in a linear policy's step takes about 90.
    """

    def __init__(self, weight: Tensor, slope: Tensor, learning_rate: float):
        self.weight, self.slope = weight, slope
        self.mean, self.square = torch.zeros_like(weight), torch.zeros_like(weight)
        self.learning_rate, self.steps = learning_rate, torch.zeros(())

    def step(self) -> None:
        """Move the weights against their slopes."""
        self.steps.add_(1)
        torch._fused_adam_(
            [self.weight],
            [self.slope],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )


def check(history: Sequence[Epoch], criterion: str) -> None:
    """Raise DivergenceError if the newest losses are not finite, or one that starts above 0 went through the roof."""
    start, now = history[0], history[-1]
    if not (math.isfinite(now.train_loss) and math.isfinite(now.valid_loss)):
        raise DivergenceError(f"the losses of epoch {len(history) - 1} are {now.train_loss} and {now.valid_loss}")
    if criterion in ("cross-entropy", "logistic") and now.train_loss > DIVERGED * start.train_loss:
        raise DivergenceError(
            f"the training loss of epoch {len(history) - 1} is {now.train_loss:.4g}, untrained it was "
            f"{start.train_loss:.4g}"
        )
