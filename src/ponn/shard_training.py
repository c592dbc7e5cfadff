"""Step C for logs on disk: the rows that contribute, in memory where they fit and otherwise streamed from shards.

A stream visits the shards in a new random order every pass, several of them side by side, and gathers rows in a buffer;
each buffer is shuffled and given out in batches. Memory depends on the buffer alone. Early stopping looks after every
buffer ("epochs" and "patience" count buffers), so that a pass over 10^9 rows is not needed before training may stop.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from ponn.encode import Encoding
from ponn.engine import Arrays, Passes
from ponn.errors import PonnError
from ponn.objective import REWARDED_ONLY
from ponn.settings import Settings
from ponn.shard_steps import ContributingRows, Practice
from ponn.sharded import Batch, ShardedLog
from ponn.shards import FileShard
from ponn.train import Batches, Problem, Rows, Tensors, tensors

MEMORY_CELLS = 16 << 20  # contributing cells that are held in memory: 64 MB, and two copies while training
BUFFER_CELLS = 10 << 20  # of a stream's buffer: 262,144 rows of 40 columns
VALID_CELLS = 8 << 20  # of the validation rows, which are always in memory
SIDE_BY_SIDE = 8  # shards that a buffer is filled from


class RowStream:
    """Contributing rows without end, one buffer after the other; the next one is read while one is used."""

    def __init__(self, shards: Sequence[FileShard], work: ContributingRows, size: int, seed: int) -> None:
        self.rounds = buffers(interleaved(shards, work, np.random.default_rng(seed)), size)
        self.reader = ThreadPoolExecutor(1)
        self.next: Future[Rows] = self.reader.submit(next, self.rounds)

    def take(self) -> Rows:
        """The next buffer."""
        found = self.next.result()
        self.next = self.reader.submit(next, self.rounds)
        return found

    def close(self) -> None:
        """Stop reading."""
        self.reader.shutdown(cancel_futures=True)


def interleaved(shards: Sequence[FileShard], work: ContributingRows, rng: np.random.Generator) -> Iterator[Arrays]:
    """Some rows at a time from several shards by turns, all shards once per pass, pass after pass."""
    while True:
        waiting = [shards[place] for place in rng.permutation(len(shards))]
        open_ = [work.parts(shard) for shard in waiting[:SIDE_BY_SIDE]]
        del waiting[:SIDE_BY_SIDE]
        while open_:
            for place, parts in list(enumerate(open_))[::-1]:
                found = next(parts, None)
                if found is not None:
                    yield found
                elif waiting:
                    open_[place] = work.parts(waiting.pop())
                else:
                    del open_[place]


def buffers(parts: Iterator[Arrays], size: int) -> Iterator[Rows]:
    """Exactly `size` rows at a time."""
    held: list[Arrays] = []
    count = 0
    for part in parts:
        while count + len(part["A"]) >= size:
            split = size - count
            yield joined([*held, {name: one[:split] for name, one in part.items() if name != "n"}], size)
            part, held, count = {name: one[split:] for name, one in part.items() if name != "n"}, [], 0
        held.append(part)
        count += len(part["A"])


def joined(parts: Sequence[Arrays], n: float) -> Rows:
    """Rows of several parts."""
    columns = {name: np.concatenate([one[name] for one in parts]) for name in ("X", "A", "R", "w")}
    return Rows(**columns, n=n)


class StreamedBatches:
    """Batches of one buffer each time they are gone through."""

    def __init__(self, stream: RowStream, settings: Settings, generator: torch.Generator) -> None:
        self.stream, self.settings, self.generator = stream, settings, generator

    def __iter__(self) -> Iterator[Tensors]:
        rows = tensors(self.stream.take(), self.settings)
        return iter(Batches(rows, self.settings.batch, self.generator))


def training_problem(
    train: ShardedLog,
    valid: ShardedLog,
    encoding: Encoding,
    practice: Practice,
    settings: Settings,
    passes: Passes,
    seed: int,
) -> tuple[Problem, Callable[[], None]]:
    """What Step C learns from and stops by, and how to end its reading."""
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
        return Problem(gathered(passes, "rows to learn from", work, train), valid_rows, k), lambda: None
    size = int(max(BUFFER_CELLS // D, 8 * settings.batch))
    sample = rewarded(train.sample) if rewarded_only else train.sample
    reference = joined([work.rows(sample)], len(train.sample.log))
    streams: list[RowStream] = []

    def stream(chosen: Settings, generator: torch.Generator) -> StreamedBatches:
        streams.append(RowStream(train.shards, work, size, seed))
        return StreamedBatches(streams[-1], chosen, generator)

    def close() -> None:
        for one in streams:
            one.close()

    return Problem(reference, valid_rows, k, stream), close


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
