"""Shards: groups of rows of Parquet files, and parts of their rows by a hash.

Rows are dealt out to parts and folds by a hash of their number in the directory, or of their group: the same rows in
the same order fall into the same parts however they are cut into shards.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError
from ponn.tables.files import Part, parquet_parts
from ponn.tables.parquet import open_piecewise
from ponn.tables.remote import Place, openable, opened, place_of, stamp_of
from ponn.tables.source import Source, reading
from ponn.tables.table import check_sound, plain

SHARD_ROWS = 1_000_000  # rows of a shard: some seconds of work
MOST_SHARDS = 1_000  # about; of longer logs shards are longer, as every shard sends its partial results to one place
PIECE_ROWS = 65_536  # rows in memory at a time

# Shards --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Neighbouring row groups of one Parquet file, as it was when the log was opened."""

    file: str
    folders: tuple[tuple[str, Any, str], ...]  # columns that its folders stand for: name, value, type
    groups: tuple[int, ...]
    rows: int
    first: int  # rows of the log before it
    before: int  # rows of its file before it
    stamp: tuple[int, int]  # the file's size and time

    def tables(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Tables of at most PIECE_ROWS rows in plain types, each with the number of its first row in the piece."""
        self.check_unchanged()
        part = Part(place_of(self.file), {name: pa.scalar(value, TYPES[type]) for name, value, type in self.folders})
        wanted = [name for name in columns if name not in part.folders]
        row = 0
        with reading(part.file, "Parquet"):
            for batch in open_piecewise(part.file).iter_batches(PIECE_ROWS, self.groups, wanted, use_threads=False):
                found = Source(part.complete(pa.table(batch)).select(columns), self.file)
                check_sound(found)
                yield row, plain(found).table
                row += batch.num_rows

    def check_unchanged(self) -> None:
        """A file that was written again in the meantime has other rows than the ones looked at."""
        with reading(self.file, "Parquet"):
            if stamp_of(place_of(self.file)) != self.stamp:
                raise PonnError(f"{self.file} changed while it was used. Start again, when nothing writes to it.")


TYPES = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "null": pa.null()}  # of folders' names


@dataclass(frozen=True)
class FileShard:
    """Some pieces of Parquet files, one after the other."""

    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(one.rows for one in self.pieces)

    @property
    def name(self) -> str:
        """Its files, and which row groups of the first."""
        first = self.pieces[0]
        more = f" and {len(self.pieces) - 1} more pieces" if len(self.pieces) > 1 else ""
        return f"{first.file} (row groups {first.groups[0]} to {first.groups[-1]}){more}"


def find_pieces(path: Place) -> list[Piece]:
    """The row groups of all Parquet files below a directory, in order."""
    import pyarrow.parquet as pq

    found, first = [], 0
    with reading(path, "a directory of Parquet files"):
        for part in parquet_parts(path):
            folders = tuple((name, value.as_py(), str(value.type)) for name, value in part.folders.items())
            file, before = str(part.file), 0
            stamp = stamp_of(part.file)
            with reading(part.file, "Parquet"):
                metadata = pq.read_metadata(openable(part.file))
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                found.append(Piece(file, folders, (group,), rows, first, before, stamp))
                first, before = first + rows, before + rows
    if not first:
        raise PonnError(f"{path} has no rows. Expected one row per decision.")
    return [one for one in found if one.rows]


def shards_of(pieces: Iterable[Piece], rows: int, across_files: bool = True) -> tuple[FileShard, ...]:
    """Neighbouring row groups put together to at least so many rows; a shard never has a part of a row group."""
    shards: list[list[Piece]] = []
    held = rows
    for piece in pieces:
        other = shards and not across_files and shards[-1][-1].file != piece.file
        if held >= rows or other:
            shards.append([])
            held = 0
        shards[-1].append(piece)
        held += piece.rows
    return tuple(FileShard(tuple(joined(one))) for one in shards)


def usual_rows(pieces: Iterable[Piece]) -> int:
    """Rows of a shard where nobody says otherwise."""
    return max(SHARD_ROWS, sum(one.rows for one in pieces) // MOST_SHARDS)


def joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Row groups of the same file as one piece."""
    for _, same in groupby(pieces, lambda one: one.file):
        first, *rest = same
        groups = tuple(group for one in (first, *rest) for group in one.groups)
        yield replace(first, groups=groups, rows=first.rows + sum(one.rows for one in rest))


def unpacked_bytes(pieces: Iterable[Piece]) -> int:
    """Roughly what the rows of these pieces take in memory."""
    import pyarrow.parquet as pq

    groups: dict[str, list[int]] = {}
    for one in pieces:
        groups.setdefault(one.file, []).extend(one.groups)
    total = 0
    for file, some in groups.items():
        with reading(file, "Parquet"):
            metadata = pq.read_metadata(openable(place_of(file)))
        total += sum(metadata.row_group(group).total_byte_size for group in some)
    return total


def directory_digest(path: Place) -> str:
    """A fingerprint of a directory of Parquet files, the same whether its rows are in memory or on disk.

    It is made of the files' footers, which hold the place, size and range of every column.
    """
    found = hashlib.blake2b(digest_size=16)
    for name in dict.fromkeys(one.file for one in find_pieces(path)):
        with reading(name, "Parquet"), opened(place_of(name)) as file:
            size = file.size()
            length = int.from_bytes(file.read_at(4, size - 8), "little")
            first = max(size - 8 - length, 0)
            found.update(file.read_at(size - first, first))
    return found.hexdigest()


# Parts and folds by hash ---------------------------------------------------------------------------------


def scramble(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers that spreads every bit (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def uniform(units: np.ndarray, *salt: int) -> np.ndarray:
    """A number in [0, 1) per unit that depends on nothing but the unit and the salt."""
    mixed = units
    for one in salt:
        with np.errstate(over="ignore"):
            mixed = scramble(mixed + np.uint64(0x9E3779B97F4A7C15) * np.uint64(one + 1))
    return (mixed >> np.uint64(11)) * 2.0**-53


def unit_codes(column: pa.ChunkedArray) -> np.ndarray:
    """A 64-bit number per cell of a group column: equal cells, equal numbers, in every file and process."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = (str(one).encode() for one in encoded.dictionary.to_pylist())
    codes = [int.from_bytes(hashlib.blake2b(one, digest_size=8).digest(), "little") for one in texts]
    return np.array(codes, np.uint64)[encoded.indices.to_numpy(zero_copy_only=False)]


@dataclass(frozen=True)
class Cut:
    """A part of the rows: those whose number, by hash or by time, lies in [low, high)."""

    low: float
    high: float
    salt: tuple[int, ...]
    by_time: bool = False

    def holds(self, units: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        """Which rows belong to it."""
        x = times if self.by_time and times is not None else uniform(units, *self.salt)
        return np.asarray((x >= self.low) & (x < self.high))


CUT_SALT, SAMPLE_SALT, FOLD_SALT, ROWS_SALT = 1, 2, 3, 4  # so that parts, samples and folds are independent
