"""Small problems for Step C."""

from dataclasses import replace

import numpy as np

from ponn.log.encoding import Encoding
from ponn.settings import Settings
from ponn.steps.shard_steps import ContributingRows, Practice
from ponn.training.loop import (
    Candidate,
    Problem,
    Rows,
)
from ponn.training.shard_training import ShardStream, joined

QUICK = Settings(hidden=(8,), learning_rate=0.02, epochs=30, watched=50)


def separable(n=300, k=3, D=4, seed=0):
    """A world in which the best action is the largest of the first k columns; uniform logging, rewards 0 or 1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    A = rng.integers(0, k, n)
    R = (X[:, :k].argmax(axis=1) == A).astype(float)
    return Rows(X, A, R, np.full(n, float(k)), n)


def problem(n=300, seed=0):
    return Problem(separable(n, seed=seed), separable(n, seed=seed + 1), 3)


def candidate(settings=QUICK, seed=0, masks=None):
    return Candidate(np.ones((3, 4), bool) if masks is None else masks, settings, seed)


TWELVE_EPOCHS = replace(QUICK, epochs=12, patience=12)


def streamed(disk, settings, around=lambda work: work) -> tuple[Problem, Candidate]:
    """Step C from a stream."""
    encoding = Encoding.fit(disk.sample.log)
    work = ContributingRows(disk.reader, encoding, Practice(None, np.inf, 0), True, False, 1.0)
    rows = joined([work(shard) for shard in disk.shards[:3]], 1_200)
    stream = ShardStream(disk.shards, around(work), 400, 5)
    D, k = rows.X.shape[1], len(disk.actions)
    return Problem(rows, rows, k, stream), Candidate(np.ones((k, D), bool), replace(settings, batch=64))


def same_bits(one, other) -> bool:
    """The same bits, and the same way to them."""
    equal = [np.array_equal(one.weights[name], other.weights[name]) for name in one.weights]
    return all(equal) and one.history == other.history and one.best_epoch == other.best_epoch
