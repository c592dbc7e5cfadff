"""Step C for logs on disk: the rows that contribute, in memory where they fit and otherwise streamed from shards.

A stream visits the shards in a new random order every pass, several of them side by side, and gathers rows in a buffer;
each buffer is shuffled and given out in batches. Memory depends on the buffer alone, and a place in the stream is found
again by reading the few shards around it. Early stopping looks after every buffer ("epochs" and "patience" count
buffers), so that a pass over 10^9 rows is not needed before training may stop.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np
import torch

from ponn.engine.passes import Arrays, Passes
from ponn.errors import PonnError
from ponn.log.encoding import Encoding
from ponn.log.sharded import Batch, ShardedLog
from ponn.log.shards import FileShard
from ponn.settings import Settings
from ponn.steps.shard_steps import ContributingRows, Practice
from ponn.training.loop import Batches, Problem, Rows, Tensors, tensors
from ponn.training.objective import REWARDED_ONLY
from ponn.training.team import Team

MEMORY_CELLS = 16 << 20  # contributing cells that are held in memory: 64 MB, and two copies while training
BUFFER_CELLS = 10 << 20  # of a stream's buffer: 262,144 rows of 40 columns
VALID_CELLS = 8 << 20  # of the validation rows, which are always in memory
SIDE_BY_SIDE = 8  # shards that a buffer is filled from


class Position(NamedTuple):
    """A place in an endless stream of rows."""

    turn: int = 0  # passes before it
    group: int = 0  # of shards side by side, in the pass
    part: int = 0  # parts of the group before it
    row: int = 0  # rows of the part before it


class RowStream:
    """Contributing rows without end, one buffer after the other; the next one is read while one is used."""

    def __init__(self, parts: Callable[[Position], "Parts"], size: int) -> None:
        self.parts, self.size = parts, size
        self.reader = ThreadPoolExecutor(1)
        self.seek(Position())

    def seek(self, position: Position) -> None:
        """Go on at a place."""
        self.position, self.rounds = position, buffers(self.parts(position), self.size)
        self.next: Future[tuple[Position, Rows]] | None = None

    def take(self) -> Rows:
        """The next buffer."""
        self.position, found = (self.next or self.reader.submit(next, self.rounds)).result()
        self.next = self.reader.submit(next, self.rounds)
        return found

    def close(self) -> None:
        """Stop reading."""
        self.reader.shutdown(cancel_futures=True)


Parts = Iterator[tuple[Position, Arrays]]


def interleaved(shards: Sequence[FileShard], work: ContributingRows, seed: int, team: Team, at: Position) -> Parts:
    """Some rows at a time from several shards by turns, all shards once per pass, pass after pass, from a place on.

    The processes of a team have different shards in every pass.
    """
    for turn in count(at.turn):
        order = np.random.default_rng((seed, turn)).permutation(len(shards))
        mine = order[(team.rank + turn) % team.size :: team.size].tolist()
        groups = [mine[first : first + SIDE_BY_SIDE] for first in range(0, len(mine), SIDE_BY_SIDE)]
        for group, chosen in enumerate(groups):
            if (turn, group) < at[:2]:
                continue
            for part, found in enumerate(by_turns([work.parts(shards[place]) for place in chosen])):
                here = Position(turn, group, part)
                if here[:3] >= at[:3]:
                    first = at.row if here[:3] == at[:3] else 0
                    yield here._replace(row=first), rows_between(found, first, None)


def by_turns(sources: list[Iterator[Arrays]]) -> Iterator[Arrays]:
    """One from each by turns, until all are exhausted."""
    while sources:
        for source in list(sources):
            found = next(source, None)
            if found is None:
                sources.remove(source)
            else:
                yield found


def rows_between(part: Arrays, first: int, last: int | None) -> Arrays:
    """Some rows of a part."""
    return {name: one[first:last] for name, one in part.items() if name != "n"}


def buffers(parts: Parts, size: int) -> Iterator[tuple[Position, Rows]]:
    """Exactly `size` rows at a time, and the place after them."""
    held: list[Arrays] = []
    missing = size
    for at, part in parts:
        done, rows = 0, len(part["A"])
        while rows - done >= missing:
            split = done + missing
            yield at._replace(row=at.row + split), joined([*held, rows_between(part, done, split)], size)
            done, held, missing = split, [], size
        held.append(rows_between(part, done, None))
        missing -= rows - done


def joined(parts: Sequence[Arrays], n: float) -> Rows:
    """Rows of several parts."""
    names = [name for name in parts[0] if name != "n"]
    columns = {name: np.concatenate([one[name] for one in parts]) for name in names}
    return Rows(**columns, n=n)


class StreamedBatches:
    """Batches of one buffer each time they are gone through."""

    def __init__(self, stream: RowStream, size: int, settings: Settings, generator: torch.Generator) -> None:
        self.stream, self.size, self.settings, self.generator = stream, size, settings, generator

    @property
    def position(self) -> tuple[int, ...]:
        """The place of the next buffer."""
        return tuple(self.stream.position)

    def seek(self, position: tuple[int, ...]) -> None:
        """Go on there."""
        self.stream.seek(Position(*position))

    def __iter__(self) -> Iterator[Tensors]:
        rows = tensors(self.stream.take(), self.settings)
        return iter(Batches(rows, self.size, self.generator))

    def close(self) -> None:
        """Stop reading."""
        self.stream.close()


@dataclass(frozen=True, eq=False)
class ShardStream:
    """How batches are streamed from shards; a team shares buffer and batch."""

    shards: tuple[FileShard, ...]
    work: ContributingRows
    size: int  # rows of the buffer
    seed: int

    def __call__(self, settings: Settings, generator: torch.Generator, team: Team) -> StreamedBatches:
        """Start to read."""
        parts = partial(interleaved, self.shards, self.work, self.seed, team)
        stream = RowStream(parts, self.size // team.size)
        return StreamedBatches(stream, max(settings.batch // team.size, 1), settings, generator)


def training_problem(
    train: ShardedLog,
    valid: ShardedLog,
    encoding: Encoding,
    practice: Practice,
    settings: Settings,
    passes: Passes,
    seed: int,
) -> Problem:
    """What Step C learns from and stops by."""
    D, k = len(encoding.owner), len(train.actions)
    rewarded_only = settings.criterion in REWARDED_ONLY
    weights = train.sample.log.weight
    mean_weight = 1.0 if weights is None else float(weights.mean())
    truncate = settings.m is not None
    work = ContributingRows(train.reader, encoding, practice, rewarded_only, truncate, mean_weight)
    in_valid = replace(work, reader=valid.reader, share=min(1.0, VALID_CELLS / D / contributing_rows(valid, work)))
    valid_rows = gathered(passes, "rows to stop by", in_valid, valid)
    expected = contributing_rows(train, work)
    if expected * D <= MEMORY_CELLS:
        return Problem(gathered(passes, "rows to learn from", work, train), valid_rows, k)
    size = int(max(BUFFER_CELLS // D, 8 * settings.batch))
    sample = rewarded(train.sample) if rewarded_only else train.sample
    reference = joined([work.rows(sample)], len(train.sample.log))
    shards = train.files(passes.folder and passes.folder / "rows")
    return Problem(reference, valid_rows, k, ShardStream(shards, work, size, seed))


def rewarded(sample: Batch) -> Batch:
    """The rows that have a reward."""
    kept = np.flatnonzero(sample.log.R > 0)
    return Batch(sample.log.take(kept), sample.units[kept])


def contributing_rows(log: ShardedLog, work: ContributingRows) -> float:
    """About how many rows of a log contribute, by its sample."""
    share = float(np.mean(log.sample.log.R > 0)) if work.rewarded_only else 1.0
    return max(len(log) * share, 1.0)


def gathered(passes: Passes, step: str, work: ContributingRows, log: ShardedLog) -> Rows:
    """Contributing rows of all shards, in memory."""
    parts = list(passes.over(step, work, log.shards))
    n, some = sum(float(one["n"]) for one in parts), [one for one in parts if "X" in one]
    if not some:
        raise PonnError(f"None of the rows of {log.path} falls into one of its parts: it is too short to learn from.")
    return joined(some, n)
