"""Recommendations for a directory of Parquet files: one file of answers per file of rows, by several workers.

A file that is complete says which policy and which rows it was made from; a run that was stopped goes on with the
files that are missing.
"""

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ponn.engine.passes import Arrays, Passes, digest
from ponn.errors import PonnError, listing
from ponn.log.shards import TYPES, FileShard, Piece, find_pieces, shards_of
from ponn.policy.batches import Asked, Scored, by_column, write_scored
from ponn.policy.policy import Policy
from ponn.tables.files import Part, hidden
from ponn.tables.remote import is_uri, place_of
from ponn.tables.streams import Stream, stream_parquet_parts

MARK = "ponn"  # the key under which a written file says what it was made from
SURPRISES = ("unseen", "missing", "outside")
NOT_KNOWN = -1  # recommendations without support, where they were not looked at


@dataclass(frozen=True, eq=False)
class Scoring:
    """Recommendations for one file, written beside those for the others."""

    policy: Policy
    asked: Asked
    rows: str  # the directory of rows
    out: str

    def __call__(self, shard: FileShard) -> Arrays:
        """Rows written, cells unlike anything in training [features, kinds], how often support mattered [3]."""
        target = self.target(shard)
        target.parent.mkdir(parents=True, exist_ok=True)
        asked = replace(self.asked, first=shard.pieces[0].first)
        mark = {MARK: self.mark(shard)}
        done = write_scored(self.policy, opened(shard.pieces[0]), target, asked, threads=1, mark=mark)
        counts = [
            [done.surprises.get(one.name, {}).get(what, 0) for what in SURPRISES]
            for one in self.policy.encoding.features
        ]
        support = [NOT_KNOWN if done.unsupported is None else done.unsupported, done.restricted, done.fell_back]
        return {"rows": np.array(done.rows), "surprises": np.array(counts, np.int64), "support": np.array(support)}

    def target(self, shard: FileShard) -> Path:
        """Where the recommendations for a file go: the same place below `out`."""
        file = shard.pieces[0].file
        return Path(self.out) / (
            file.removeprefix(self.rows).lstrip("/") if is_uri(file) else relative(file, self.rows)
        )

    def mark(self, shard: FileShard) -> str:
        """What a complete file carries."""
        return digest((self.policy.digest, self.asked, shard))

    def is_done(self, shard: FileShard) -> bool:
        """Is the file there, made by this policy from these rows?"""
        import pyarrow.parquet as pq

        try:
            found = pq.read_schema(self.target(shard)).metadata or {}
        except (OSError, pa.ArrowException):
            return False
        return found.get(MARK.encode()) == self.mark(shard).encode()


def relative(file: str, folder: str) -> Path:
    """A file's path below a folder."""
    return Path(file).relative_to(Path(place_of(folder)))


def opened(piece: Piece) -> Stream:
    """The rows of one file, with the columns of its folders."""
    piece.check_unchanged()
    folders = {name: pa.scalar(value, TYPES[type]) for name, value, type in piece.folders}
    place = place_of(piece.file)
    return stream_parquet_parts(place, [Part(place, folders)])


def recommend_directory(
    policy: Policy,
    rows: str | os.PathLike[str],
    out: str | os.PathLike[str],
    passes: Passes,
    asked: Asked | None = None,
) -> Scored:
    """Recommend an action for every row of a directory; `out` gets a file for each of its files."""
    started = time.perf_counter()
    light = replace(policy, relevance=(), evaluation=None)
    work = Scoring(light, asked or Asked(), str(rows), str(out))
    shards = shards_of(find_pieces(place_of(rows)), rows=1 << 62, across_files=False)
    check_empty(Path(out), [work.target(one) for one in shards])
    left = [one for one in shards if not work.is_done(one)]
    surprises, support = Counter[tuple[str, str]](), np.zeros((0, 3), int)
    for part in passes.over("recommend", work, left):
        support = np.vstack([support, part["support"]])
        for feature, counts in zip(policy.encoding.features, part["surprises"].tolist(), strict=True):
            surprises.update({(feature.name, what): count for what, count in zip(SURPRISES, counts, strict=True)})
    total = sum(one.rows for one in shards)
    unsupported, restricted, fell_back = support.sum(axis=0).tolist()
    known = len(support) > 0 and support.min() > NOT_KNOWN
    counted = (unsupported if known else None, restricted, fell_back)
    return Scored(total, time.perf_counter() - started, by_column(+surprises), *counted)


def check_empty(out: Path, expected: list[Path]) -> None:
    """Nothing else may be among the answers."""
    if out.exists() and not out.is_dir():
        raise PonnError(f"{out} is a file; expected a directory, which gets a file of answers for each file of rows.")
    found = [one for one in out.rglob("*.parquet") if not hidden(one.relative_to(out))] if out.exists() else []
    others = sorted({str(one.relative_to(out)) for one in found} - {str(one.relative_to(out)) for one in expected})
    if others:
        raise PonnError(
            f"{out} holds other Parquet files, {listing(others, 3)}, which would be taken for recommendations. "
            "Name a directory of its own."
        )
