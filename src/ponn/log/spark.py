"""A Spark DataFrame as a log: the same work on its partitions, by mapInArrow, wherever Spark keeps them.

A shard is a partition. One look at all of them counts their rows and takes a checksum, so that rows have the numbers
they would have in a directory and results are never kept for other rows. Only partial results reach the driver; where
Step C streams rows, Spark writes them to Parquet files first.
"""

import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ponn.engine.clusters import answered_from_bytes, spark_answers
from ponn.engine.passes import Passes, Results, Shard, Work, content_of, digest
from ponn.errors import PonnError
from ponn.log.sharded import ShardedLog, checked_names, surveyed
from ponn.log.shards import PIECE_ROWS, FileShard, find_pieces, shards_of, usual_rows
from ponn.tables.source import Source
from ponn.tables.table import check_sound, plain

ANSWER, PAIR = "place long, answer binary", ["place", "answer"]


def is_frame(source: Any) -> bool:
    """Is it a DataFrame of Spark, classic or Connect?"""
    return type(source).__module__.startswith("pyspark.sql") and hasattr(source, "mapInArrow")


@dataclass(frozen=True)
class Partition:
    """A partition of a DataFrame, as it was when the log was opened."""

    place: int
    rows: int
    first: int  # rows of the log before it
    checksum: str

    @property
    def name(self) -> str:
        """What an error calls it."""
        return f"partition {self.place} of the DataFrame"


@dataclass(frozen=True, eq=False)
class PartitionPiece:
    """The rows of a partition while Spark hands them over; read like a piece of a file, once."""

    partition: Partition
    batches: Iterator[pa.RecordBatch]
    before: int = 0

    @property
    def file(self) -> str:
        """What an error calls it."""
        return self.partition.name

    @property
    def first(self) -> int:
        """Rows of the log before it."""
        return self.partition.first

    def tables(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Tables of about PIECE_ROWS rows in plain types, each with the number of its first row."""
        row = 0
        for table in gathered(self.batches):
            found = Source(table.select(columns), self.file)
            check_sound(found)
            yield row, plain(found).table
            row += len(table)
        if row != self.partition.rows:
            raise PonnError(
                f"{self.file} has {row:,} rows, and had {self.partition.rows:,} when the log was opened: it is not the "
                "same each time Spark computes it. Write it to a table or to Parquet files, and read those."
            )


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Spark's small batches put together."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= PIECE_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


@dataclass(frozen=True, eq=False)
class PartitionRows:
    """What work on a shard asks of it."""

    pieces: tuple[PartitionPiece]


class FrameWork:
    """Work on the partition that Spark hands over."""

    def __init__(self, packed: bytes, partitions: Mapping[int, tuple[int, Partition]]) -> None:
        self.packed, self.partitions = packed, partitions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One answer, where one is asked for."""
        place, partition = self.partitions.get(partition_number(), (-1, None))
        if partition is not None:
            answer = answered_from_bytes(self.packed, PartitionRows((PartitionPiece(partition, batches),)))
            yield pa.record_batch([pa.array([place]), pa.array([pickle.dumps(answer)], pa.binary())], PAIR)


def partition_number() -> int:
    """Of the partition that this task works on."""
    from pyspark import TaskContext

    task: Any = TaskContext.get()
    return int(task.partitionId())


@dataclass
class OnFrame:
    """The partitions of a DataFrame, where Spark keeps them; a task that fails is done again as Spark is set up to."""

    frame: Any

    def run(self, work: Work, shards: Mapping[int, Shard]) -> Results:
        """The results, partition by partition."""
        wanted = {one.place: (place, one) for place, one in shards.items() if isinstance(one, Partition)}
        if wanted:
            for place, answer in spark_answers(self.frame.mapInArrow(FrameWork(pickle.dumps(work), wanted), ANSWER)):
                yield place, content_of(answer)

    def close(self) -> None:
        """The session belongs to whoever made the DataFrame."""

    def as_files(self, folder: Path, log: ShardedLog) -> tuple[FileShard, ...]:
        """The rows in Parquet files that Spark writes, in the same order."""
        if not (folder / "_SUCCESS").exists():
            self.frame.write.mode("overwrite").parquet(folder.absolute().as_uri())
        pieces = find_pieces(folder)
        if sum(one.rows for one in pieces) != sum(one.rows for one in log.shards):
            raise PonnError(
                f"Spark wrote {sum(one.rows for one in pieces):,} rows to {folder} that this process can see, of "
                f"{log.survey.rows:,}. Name a folder that all machines share in the variable PONN_RUNS."
            )
        return shards_of(pieces, usual_rows(pieces))


# Opening -------------------------------------------------------------------------------------------------


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows, checksum and column types of the partition that Spark hands over."""
    rows, checksum, schema = 0, hashlib.blake2b(digest_size=16), b""
    for batch in batches:
        rows += batch.num_rows
        checksum.update(batch.serialize())
        schema = batch.schema.serialize().to_pybytes()
    seen = pickle.dumps((rows, checksum.hexdigest(), schema))
    yield pa.record_batch([pa.array([partition_number()], pa.int64()), pa.array([seen], pa.binary())], PAIR)


def read_frame(frame: Any, passes: Passes, **given: Any) -> ShardedLog:
    """A Spark DataFrame as a log, by two looks at its partitions; keywords as in `read_log`."""
    passes.say("rows of the DataFrame")
    seen = sorted(spark_answers(frame.mapInArrow(look, ANSWER)))
    partitions, first = [], 0
    for place, (rows, checksum, _) in seen:
        partitions.append(Partition(place, rows, first, checksum))
        first += rows
    if not first:
        raise PonnError("The DataFrame has no rows. Expected one row per decision.")
    schema = next(pa.ipc.read_schema(pa.py_buffer(one[2])) for _, one in seen if one[0])
    shards = tuple(one for one in partitions if one.rows)
    names = checked_names("The DataFrame", schema, given)
    found = OnFrame(frame.select(*names.read))
    passes.engine = found
    log = surveyed("The DataFrame", shards, names, passes, given, digest(shards))
    return replace(log, holder=found)
