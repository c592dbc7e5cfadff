"""Algorithm 1 for logs on disk: the same steps, settings and policy, from sums over shards and a stream of rows."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.engine.passes import Passes, digest
from ponn.errors import PonnError
from ponn.learning.algorithm import VALID_SHARE, assemble, candidates, prepare_whole, rows_of
from ponn.learning.holdout import fixed_value
from ponn.learning.learners import LEARNERS, Fitted, Prepared, current_practice, practice_network, similar_rows
from ponn.log.acquaintance import acquaintance, new_id
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.log.sharded import Batch, ShardedLog
from ponn.methods import METHODS, method_named, search_of, settings_of
from ponn.policy import disclosure
from ponn.policy.models import LinearRewards, Model
from ponn.policy.policy import Policy
from ponn.settings import Settings, check_seed
from ponn.steps.logistic import with_ones
from ponn.steps.propensity import Propensities
from ponn.steps.relevance import Relevance
from ponn.steps.shard_steps import Practice, fit_practice, fit_reward_models, shard_relevance
from ponn.training.launch import Folder, Trainers
from ponn.training.loop import Candidate, Problem, Rows
from ponn.training.shard_training import training_problem

NETWORK = "network"  # the learner that sees all rows; the others are fitted on the sample


def learn_sharded(
    log: ShardedLog,
    passes: Passes,
    method: str | None = None,
    tune: bool = False,
    seed: int = 0,
    *,
    trainers: int | None = None,
    **settings: Any,
) -> Policy:
    """Learn a policy from a log on disk, as `learn` does in memory.

    Networks are trained on all rows; their grid (tune=True) is tried on the log's sample. Learners that need all their
    rows at once (forests, LR-L1, MLP-L1, PONN-DR, the default) are fitted on the sample, which the policy says.
    trainers: processes that train a network together; default this one.
    """
    started = time.perf_counter()
    check_seed(seed)
    name, row = method_named(method)
    if trainers is not None and row.learner != NETWORK:
        raise PonnError(
            f"--trainers: {name} is learned from a sample of the rows by one process. Methods whose network several "
            f"processes can train on all rows: {', '.join(one for one in METHODS if METHODS[one].learner == NETWORK)}."
        )
    chosen = settings_of(name, **settings)
    grid = search_of(row, chosen, settings) if tune else {}
    log = with_disclosed_range(log, chosen.min_cell)
    train, valid = log.split(1 - VALID_SHARE, seed)
    encoding = train.fit_encoding(passes, chosen, chosen.min_cell)
    practice = fit_practice(log, encoding, passes, chosen)
    step_b, summary = None, unseen(log, practice)
    if chosen.relevance and not row.cross_fitted:
        step_b, summary = shard_relevance(train, encoding, practice, passes, chosen)
    prepared = prepared_sample(train, valid, encoding, practice, summary, step_b, chosen)
    notes: list[str] = []
    beside = shard_companions(train, prepared, practice, passes, chosen, notes)
    if row.cross_fitted:
        prepared = prepare_whole(joined(prepared.train, prepared.valid), chosen, seed, encoding)
    options = candidates(prepared, chosen, grid, seed)
    option, fitted = fit(row.learner, prepared, options, (train, valid, practice), passes, seed, trainers)
    made = assemble(prepared, name, option, fitted, len(options), time.perf_counter() - started, beside)
    rows = {"train": encoding.rows, "valid": len(valid)} if row.learner == NETWORK else made.provenance["rows"]
    told = provenance(made, log, rows, passes, notes)
    sample = log.sample.log
    known = acquaintance(sample, told["source"]["id"], min(len(sample) / len(log), 1.0))
    return replace(made, provenance=told, acquaintance=known)


def with_disclosed_range(log: ShardedLog, fewest: int) -> ShardedLog:
    """The log with the range of outcomes that a policy may tell."""
    sample = disclosure.with_disclosed_range(log.sample.log, fewest)
    if sample is log.sample.log:
        return log
    reader = replace(log.reader, reward_range=sample.reward_range)
    return replace(log, reader=reader, sample=log.sample._replace(log=sample))


def unseen(log: ShardedLog, practice: Practice) -> Propensities:
    """Step A's result in the form of a log in memory, where no row was looked at after it."""
    known = np.array([log.known_propensities])
    return Propensities(np.ones(1), None, known, practice.m, practice.model, 1, practice.notes)


def prepared_sample(
    train: ShardedLog,
    valid: ShardedLog,
    encoding: Encoding,
    practice: Practice,
    step_a: Propensities,
    step_b: Relevance | None,
    settings: Settings,
) -> Prepared:
    """What all candidates share, with the sampled rows to learn from."""
    first, rest = (sampled_rows(one.sample, encoding, practice, step_a, settings) for one in (train, valid))
    problem = Problem(first, rest, len(train.actions))
    told = replace(train.sample.log, notes=train.notes)
    return Prepared(told, valid.sample.log, encoding, step_a, step_b, problem)


def joined(one: Log, other: Log) -> Log:
    """The rows of two parts of a log together, with the notes of the first."""
    arrays = {name: (getattr(one, name), getattr(other, name)) for name in ("A", "R", "p0", "weight", "eligible")}
    found: dict[str, Any] = {name: None if part[0] is None else np.concatenate(part) for name, part in arrays.items()}
    return replace(one, **found, table=pa.concat_tables([one.table, other.table]))


def sampled_rows(
    batch: Batch, encoding: Encoding, practice: Practice, step_a: Propensities, settings: Settings
) -> Rows:
    """Sampled rows as the network reads them."""
    X = with_ones(encoding.design(batch.log)) if practice.theta is not None else np.empty((0, 0))
    return rows_of(batch.log, encoding, replace(step_a, p=practice.p(batch, X)), settings.m is not None)


def shard_companions(
    train: ShardedLog,
    prepared: Prepared,
    practice: Practice,
    passes: Passes,
    settings: Settings,
    notes: list[str],
) -> dict[str, Model]:
    """A reward model by sums; current practice as Step A estimated it, or by the sample where it was known."""
    theta = fit_reward_models(train, prepared.encoding, passes, settings)[0]
    rewards = LinearRewards(np.ascontiguousarray(theta[:-1]), theta[-1])
    if practice.theta is None:
        usual = current_practice(prepared, settings, notes)
    else:
        W, c = practice.theta[0][:-1], practice.theta[0][-1]
        usual = practice_network(W, c, len(prepared.encoding.owner))
    return {"reward": rewards, "logging": usual, "similar": similar_rows(prepared, rewards, settings)}


def fit(
    learner: str,
    prepared: Prepared,
    options: list[Candidate],
    parts: tuple[ShardedLog, ShardedLog, Practice],
    passes: Passes,
    seed: int,
    trainers: int | None,
) -> tuple[Candidate, Fitted]:
    """The best option and its model: networks on all rows, everything else on the sample."""
    train, valid, practice = parts
    option, fitted = options[0], None
    if learner != NETWORK or len(options) > 1:
        found = LEARNERS[learner](prepared, options, None, passes.say)
        best = int(np.argmin([one.valid_loss for one in found]))
        option, fitted = options[best], found[best]
    if learner == NETWORK:
        passes.say("Step C: training")
        started = time.perf_counter()
        problem = training_problem(train, valid, prepared.encoding, practice, option.settings, passes, seed)
        problem = kept_problem(problem, option, passes, trainers)
        (fitted,) = LEARNERS[learner](replace(prepared, problem=problem), [option], None, passes.say)
        streamed = " of streamed rows" if problem.stream else ""
        passes.note(f"Step C{streamed}", len(train), time.perf_counter() - started)
        return option, fitted
    assert fitted is not None
    note = (
        f"The model was fitted on a random sample of {len(prepared.train) + len(prepared.valid):,} of about "
        f"{len(train) + len(valid):,} rows."
    )
    return option, replace(fitted, notes=(*fitted.notes, note))


def kept_problem(problem: Problem, option: Candidate, passes: Passes, trainers: int | None) -> Problem:
    """The problem with a place where its training is kept, and with those who train it."""
    if passes.folder is None:
        return problem
    rows = (problem.train, problem.valid, problem.stream)
    folder = Folder(passes.folder / f"Step-C-{digest((option, rows, trainers))}")
    by = None if trainers is None else Trainers(trainers, passes.engine, folder)
    return replace(problem, kept=folder.state, trainer=by)


def provenance(
    made: Policy, log: ShardedLog, rows: Mapping[str, int], passes: Passes, notes: list[str]
) -> Mapping[str, Any]:
    """Where a policy comes from, when its rows were never in memory; rows: what its model was fitted on."""
    digest = log.digest if not log.reader.cuts else ""
    source = {"digest": digest, "rows": len(log), "split": "hash", "id": new_id()}
    told = {"notes": [*made.provenance["notes"], *disclosure.disclosed_notes(notes, 2)], "passes": passes.summary()}
    return {**made.provenance, "rows": rows, "source": source, **told}


def best_fixed_action(log: ShardedLog, policy: Policy) -> Any:
    """Of the actions taken in the sampled rows, the one with the highest self-normalised IPS value."""
    sample = log.sample.log
    p = sample_propensities(sample, policy)
    worth = {}
    for a in np.unique(sample.A):
        worth[sample.actions[a]] = fixed_value(sample.actions[a], sample, p)
    return max(worth, key=lambda action: worth[action])


def sample_propensities(sample: Log, policy: Policy) -> np.ndarray:
    """Propensities of sampled rows: known, or by the policy's picture of current practice."""
    estimated = policy.companions["logging"].probabilities(policy.encoding.design(sample), sample.eligible)
    p = estimated[np.arange(len(sample)), sample.A].astype(float)
    return p if sample.p0 is None else np.where(np.isnan(sample.p0), p, sample.p0)
