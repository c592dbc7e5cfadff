"""Recommendations for files of any size: read piece by piece, scored by several threads, written in order.

Memory does not grow with the number of rows. Rows are scored in batches cut at fixed places of the file, so that the
result is the same to the last bit however the file comes in pieces and however many threads there are.

    symbol   meaning                                      shape
    X        design columns of a batch                    [n, D]
    u        uniform numbers that decide the draws        [n]
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.engine.passes import cores
from ponn.errors import PonnError, listing, one_line
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature
from ponn.policy.inference import BLOCK_ROWS
from ponn.policy.policy import RECOMMENDED, Decision, Policy, check_columns
from ponn.settings import check_seed
from ponn.tables.files import Writer, csv_writer, writing
from ponn.tables.limits import USUAL, Limits
from ponn.tables.source import Source
from ponn.tables.streams import Stream, open_stream
from ponn.tables.table import check_sound, plain

BATCH_ROWS = 64 * BLOCK_ROWS  # 16,384 rows: with 80 columns of 8 bytes 10 MB; blocks are cut where they always are
WAITING = 1  # batches that wait, per thread: enough that a thread never does


@dataclass(frozen=True)
class Asked:
    """What is written for each row, beside the action."""

    keep: tuple[str, ...] = ()  # columns of the rows
    columns: tuple[str, ...] = RECOMMENDED
    probabilities: bool = False
    sample: bool = False
    seed: int = 0
    supported_only: bool = False
    eligible: tuple[Any, ...] | None = None  # labels that are available in every row
    reasons: bool = False
    first: int = 0  # rows of the whole before these, whose random numbers are used up
    formulas: bool = False  # may texts in CSV be what a spreadsheet executes?


@dataclass(frozen=True)
class Scored:
    """What was done, how often support mattered, and which cells were unlike anything in training."""

    rows: int
    seconds: float
    surprises: Mapping[str, Mapping[str, int]]  # column → what → cells
    unsupported: int | None = None  # recommendations that the log does not support; None: the column was not asked for
    restricted: int = 0  # recommendations that are another action, a supported one, because of supported_only
    fell_back: int = 0  # those where no action is the best supported one: what current practice does most
    quoted: int = 0  # cells and names in CSV that got an apostrophe, because a spreadsheet would execute them


@dataclass(frozen=True)
class Batch:
    """Some rows on their way."""

    first: int  # rows before it
    table: pa.Table
    u: np.ndarray | None


Progress = Callable[[int, int | None], None]  # rows written, and in all where that is known


def write_recommendations(
    policy: Policy,
    rows: str | os.PathLike[str],
    out: str | os.PathLike[str] | Any,
    *,
    keep: Sequence[str] = (),
    columns: Sequence[str] = RECOMMENDED,
    probabilities: bool = False,
    sample: bool = False,
    seed: int = 0,
    supported_only: bool = False,
    eligible: Sequence[Any] | None = None,
    reasons: bool = False,
    formulas: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    limits: Limits = USUAL,
) -> Scored:
    """Read the rows of a file, recommend an action for each, write one row for each in the same order.

    out: a path, whose ending says the format, or a binary file, which gets CSV. keep: columns of `rows` to copy.
    columns: only these of the recommendation. threads: default one per core. eligible: the actions that are available
    in every row. formulas: write texts into CSV as they are, also where a spreadsheet would execute them; otherwise
    they get an apostrophe, and are counted. limits: what is read at most. The rest is as in `Policy.recommend`.
    """
    check_seed(seed)
    labels = None if eligible is None else tuple(eligible)
    asked = Asked(
        tuple(keep), tuple(columns), probabilities, sample, seed, supported_only, labels, reasons, formulas=formulas
    )
    stream = open_stream(Path(rows), texts={*asked.keep, *text_columns(policy)}, limits=limits)
    return write_scored(policy, stream, out, asked, threads=threads, progress=progress)


def write_scored(
    policy: Policy,
    stream: Stream,
    out: Any,
    asked: Asked,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    mark: Mapping[str, str] | None = None,
) -> Scored:
    """Recommendations for the rows of a stream; mark: what the written schema carries beside its columns."""
    check_columns(asked.columns)
    check_stream(stream, policy, asked)
    schema = schema_of(stream, policy, asked).with_metadata(mark)
    started, written = time.perf_counter(), 0
    surprises, support = Counter[tuple[str, str]](), Counter[str]()
    with one_blas_thread(), opened(out, schema, asked.formulas) as write:
        for table, found, counted in scored(policy, stream, asked, schema, threads or cores()):
            write(table)
            written += len(table)
            surprises.update(found)
            support.update(counted)
            if progress:
                progress(written, stream.rows)
    known = "supported" in asked.columns and "logging" in policy.companions
    unsupported = support["unsupported"] if known else None
    seconds = time.perf_counter() - started
    return Scored(
        written, seconds, by_column(surprises), unsupported, support["restricted"], support["fell_back"], write.quoted
    )


def text_columns(policy: Policy) -> set[str]:
    """Columns that are texts, whatever a text file looks like."""
    found = {one.name for one in policy.encoding.features if isinstance(one, CategoryFeature)}
    return found if policy.eligibility is None else found | policy.eligibility.text_columns


def check_stream(stream: Stream, policy: Policy, asked: Asked) -> None:
    """The columns that are needed must be there, and what is kept must not collide with what is made."""
    there = set(stream.schema.names)
    if stream.rows == 0 and not there:
        return  # a file of JSON lines without lines tells no columns
    missing = [one.name for one in policy.encoding.features if one.name not in there]
    if missing:
        raise PonnError(f"{stream.name} lacks the columns {listing(missing)}, which the policy learned from.")
    policy.check_eligibility_columns(stream.schema.names, asked.eligible)
    absent = [name for name in asked.keep if name not in there]
    if absent:
        raise PonnError(f"{stream.name} has no column {absent[0]!r} to keep.")
    count = Counter([*asked.keep, *made_columns(policy, asked).names])
    twice = [name for name in asked.keep if count[name] > 1]
    if twice:
        raise PonnError(
            f"There would be two columns {twice[0]!r}: keep each column once, and rename it in {stream.name} where a "
            "recommendation has a column of that name."
        )


def schema_of(stream: Stream, policy: Policy, asked: Asked) -> pa.Schema:
    """The columns that are written."""
    names = set(stream.schema.names)
    there = [name for name in asked.keep if name in names]
    fields = [stream.schema.field(name) for name in there]
    kept = kept_columns(pa.table([no_cells(stream.name, field) for field in fields], there)).schema
    made = made_columns(policy, asked)
    types = {field.name: pa.string() if pa.types.is_null(field.type) else field.type for field in kept}
    return pa.schema([*((name, types.get(name, pa.string())) for name in asked.keep), *made])


def no_cells(name: str, field: pa.Field) -> pa.Array:
    """An empty column of a type, if Arrow can make one."""
    try:
        return pa.array([], field.type)
    except pa.ArrowException as error:
        raise PonnError(
            f"Column {field.name!r} of {name} is of type {field.type}, which cannot be written: do not keep it."
        ) from error


def opened(out: Any, schema: pa.Schema, formulas: bool) -> AbstractContextManager[Writer]:
    """Where the recommendations go."""
    if isinstance(out, str | os.PathLike):
        return writing(Path(out), schema, formulas=formulas)
    return csv_writer(out, schema, formulas)


def one_blas_thread() -> AbstractContextManager[Any]:
    """Each of our threads multiplies by itself: BLAS with threads of its own waits for them more than it gains."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, user_api="blas")


# Batches -------------------------------------------------------------------------------------------------

Result = tuple[pa.Table, Counter[tuple[str, str]], Counter[str]]  # what is written, surprises, and support in it


def scored(policy: Policy, stream: Stream, asked: Asked, schema: pa.Schema, threads: int) -> Iterator[Result]:
    """Recommendations for every batch of a stream, in order, a few batches ahead of the one asked for."""
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for batch in batches(stream, policy, asked):
            pending.append(pool.submit(score, policy, stream.name, batch, asked, schema))
            if len(pending) > threads * (1 + WAITING):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def batches(stream: Stream, policy: Policy, asked: Asked) -> Iterator[Batch]:
    """The rows of a stream in batches of BATCH_ROWS, with their share of one sequence of random numbers."""
    rng = np.random.Generator(np.random.PCG64(asked.seed).advance(asked.first))  # as default_rng, from a later place
    features = [one.name for one in policy.encoding.features]
    columns = list(dict.fromkeys([*features, *asked.keep, *eligibility_columns(policy, stream)]))
    first = 0
    for table in stream.batches(columns, BATCH_ROWS):
        yield Batch(first, table, rng.random(len(table)) if asked.sample else None)
        first += len(table)


def eligibility_columns(policy: Policy, stream: Stream) -> list[str]:
    """The columns of a stream that say which actions are eligible."""
    if policy.eligibility is None:
        return []
    wanted = {*policy.eligibility.rule_columns, policy.eligibility.column}
    return [name for name in stream.schema.names if name in wanted]


def score(policy: Policy, name: str, batch: Batch, asked: Asked, schema: pa.Schema) -> Result:
    """Recommendations for one batch, and the cells in it that are unlike anything in training."""
    table = sound(name, batch.table)
    features = policy.encoding.select(table)
    try:
        X = policy.encoding.design(features)
    except PonnError as error:
        raise PonnError(f"{name}{place_of_error(policy.encoding, features, batch.first)}: {error}") from error
    surprises = policy.encoding.surprises(features)
    try:
        eligible = policy.eligible_in(table, asked.eligible, batch.first)
    except PonnError as error:
        raise PonnError(f"{name}: {error}") from error
    decision = policy.decide(X, batch.u, asked.supported_only, eligible)
    made = policy.table_of(X, decision, asked.columns, asked.probabilities, features if asked.reasons else None)
    kept = fitted(name, kept_columns(table.select(asked.keep)), schema, batch.first)
    counts = Counter({(column, what): count for column, found in surprises.items() for what, count in found.items()})
    return pa.table([*kept.columns, *made.columns], schema), counts, support_counts(made, decision)


def support_counts(made: pa.Table, decision: Decision) -> Counter[str]:
    """How many recommendations are unsupported, another action by supported_only, or what current practice does."""
    counts = Counter(restricted=int(decision.restricted.sum()), fell_back=int(decision.fell_back.sum()))
    if "supported" in made.column_names:
        counts["unsupported"] = made.column("supported").to_pylist().count(False)
    return counts


def made_columns(policy: Policy, asked: Asked) -> pa.Schema:
    """The columns that are made for each row."""
    nothing = pa.table({one.name: pa.nulls(0) for one in policy.encoding.features})
    X = np.zeros((0, len(policy.encoding.owner)), np.float32)
    told = nothing if asked.reasons else None
    return policy.recommendations(X, None, asked.columns, asked.probabilities, asked.supported_only, told).schema


def sound(name: str, table: pa.Table) -> pa.Table:
    """The table in plain types, if nothing in it is damaged."""
    source = Source(table, name)
    check_sound(source)
    return plain(source).table


def place_of_error(encoding: Encoding, features: pa.Table, first: int) -> str:
    """The first row that cannot be encoded, in words; nothing where no single row is to blame."""
    good, bad = 0, len(features)  # so many rows are known to pass, and to fail
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if can_encode(encoding, features.slice(0, middle)) else (good, middle)
    row = features.slice(bad - 1, 1)
    blameless = pa.table([pa.nulls(1, column.type) for column in row.columns], row.column_names)
    return f", row {first + bad:,}" if can_encode(encoding, blameless) else ""


def can_encode(encoding: Encoding, features: pa.Table) -> bool:
    """Does the encoding take these rows?"""
    try:
        encoding.design(features)
    except PonnError:
        return False
    return True


def kept_columns(table: pa.Table) -> pa.Table:
    """Columns to copy; dictionaries as their values, because every batch may bring another one."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in plain(Source(table, "")).table.columns
    ]
    return pa.table(columns, table.column_names)


def fitted(name: str, kept: pa.Table, schema: pa.Schema, first: int) -> pa.Table:
    """Columns to copy in the types that are written."""
    columns = []
    for field, column, wanted in zip(kept.schema, kept.columns, schema.types, strict=False):
        try:
            columns.append(column.cast(wanted))
        except pa.ArrowException as error:
            raise PonnError(
                f"{name}: column {field.name!r} is of type {wanted} in its first rows and {field.type} in rows "
                f"{first + 1:,} to {first + len(kept):,} ({one_line(error)}). Give it one type, or do not keep it."
            ) from error
    return pa.table(columns, kept.column_names)


def by_column(surprises: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Column → what → cells."""
    found: dict[str, dict[str, int]] = {}
    for (column, what), count in surprises.items():
        found.setdefault(column, {})[what] = count
    return found
