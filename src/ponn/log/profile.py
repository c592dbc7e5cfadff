"""What a column holds: its kind, what is missing, whether it can be a feature. Exact, and cheap on long columns."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NUMBER, BOOLEAN, CATEGORY, DATE = "number", "boolean", "category", "date"
# Whole numbers that never repeat are taken for identifiers only in logs of at least this many rows: in shorter
# ones an ordinary measurement (an age, a dose) may well never repeat.
IDENTIFIER_ROWS = 20
PREFIXES = (1_000, 32_000)  # rows looked at before a whole column is searched for repeated values
SECONDS_PER_DAY = 86_400
PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


NUMPY = {"float": np.float32, "double": np.float64} | {
    f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
}  # Arrow type → numpy type


@dataclass(frozen=True)
class Profile:
    """One column as it was found."""

    name: str
    type: str  # the Arrow type
    kind: str  # number, boolean, category, date; empty when the type cannot be a feature
    missing: int  # null, NaN or infinite
    infinite: int
    constant: bool  # at most one value and nothing missing, or nothing but missing values
    identifier: bool  # whole numbers or text that never repeat


def profile(name: str, column: pa.ChunkedArray) -> Profile:
    """Look at one column."""
    kind = kind_of(column.type)
    infinite = count_infinite(column)
    missing = count_missing(column) + infinite
    values = len(column) - missing
    few = bool(kind) and values > 0 and has_one_value(column)
    return Profile(
        name=name,
        type=str(column.type),
        kind=kind,
        missing=missing,
        infinite=infinite,
        constant=values == 0 or (few and missing == 0),
        identifier=bool(kind) and not few and is_identifier(column, values),
    )


def kind_of(type: pa.DataType) -> str:
    """The kind of feature an Arrow type makes, or an empty string."""
    types = pa.types
    if types.is_dictionary(type):
        return CATEGORY if kind_of(type.value_type) else ""
    if types.is_boolean(type):
        return BOOLEAN
    if types.is_string(type) or types.is_large_string(type) or types.is_string_view(type):
        return CATEGORY
    if types.is_date(type) or types.is_timestamp(type):
        return DATE
    return NUMBER if is_plain_number(type) or types.is_time(type) or types.is_duration(type) else ""


def is_plain_number(type: pa.DataType) -> bool:
    """A number without a unit, or nothing but missing values: what a reward, propensity or weight can be."""
    types = pa.types
    numeric = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    return any(is_one(type) for is_one in numeric)


def count_missing(column: pa.ChunkedArray) -> int:
    """Null and NaN cells."""
    nan = sum(int(np.isnan(chunk).sum()) for chunk in float_chunks(column))
    return int(column.null_count) + nan


def count_infinite(column: pa.ChunkedArray) -> int:
    """Infinite cells."""
    return sum(int(np.isinf(chunk).sum()) for chunk in float_chunks(column))


def float_chunks(column: pa.ChunkedArray) -> list[np.ndarray]:
    """The non-null values of a floating column, chunk by chunk, without copying where nothing is null."""
    if not pa.types.is_floating(column.type):
        return []
    return [(chunk.drop_null() if chunk.null_count else chunk).to_numpy() for chunk in column.chunks]


def has_one_value(column: pa.ChunkedArray) -> bool:
    """Do all values that are not missing agree?"""
    return all(count_distinct(column.slice(0, rows)) <= 1 for rows in (*PREFIXES, len(column)))


def is_identifier(column: pa.ChunkedArray, values: int) -> bool:
    """Text or whole numbers that never repeat tell which row it is, and nothing else."""
    is_text = kind_of(column.type) == CATEGORY
    is_whole = pa.types.is_integer(column.type)
    if not (is_text and values > 1) and not (is_whole and values >= IDENTIFIER_ROWS):
        return False
    for rows in (*PREFIXES, len(column)):
        part = column.slice(0, rows)
        if count_distinct(part) < len(part) - part.null_count:
            return False
    return True


def count_distinct(column: pa.ChunkedArray) -> int:
    """Distinct values; missing ones do not count."""
    if pa.types.is_null(column.type):
        return 0
    column = pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
    if not pa.types.is_floating(column.type):
        return int(pc.count_distinct(column, mode="only_valid").as_py())
    found = [np.unique(chunk[np.isfinite(chunk)]) for chunk in float_chunks(column)]
    return len(np.unique(np.concatenate(found))) if found else 0


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """A column as floats: missing and infinite cells are NaN, dates are days since 1970, times are seconds."""
    return without_infinite(raw_numbers(column))


def raw_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The same with infinite cells as they are."""
    return whole_array(column if is_float(column.type) else in_double(column))


def is_float(type: pa.DataType) -> bool:
    """Single or double precision?"""
    return pa.types.is_float32(type) or pa.types.is_float64(type)


def without_infinite(x: np.ndarray) -> np.ndarray:
    """NaN for infinite numbers; the array itself where there are none."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(x.sum()):  # the quick way to know that nothing is infinite
            return x
    infinite = np.isinf(x)
    return np.where(infinite, np.nan, x) if infinite.any() else x


def in_double(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers, dates and times in double precision."""
    type = column.type
    if pa.types.is_dictionary(type):
        return in_double(pc.cast(column, type.value_type))
    if pa.types.is_temporal(type):
        whole = pc.cast(column, pa.int32() if type.bit_width == 32 else pa.int64())
        return pc.divide(pc.cast(whole, pa.float64(), safe=False), units(type))
    return pc.cast(column, pa.float64(), safe=False)


def whole_array(column: pa.ChunkedArray) -> np.ndarray:
    """A numeric column as one array; copied only when it has several chunks or nulls.

    A single chunk is read from its buffer: Arrow's own way imports pandas where that is installed (0.3 s a process).
    """
    if column.num_chunks != 1 or column.null_count or pa.types.is_decimal(column.type):
        return column.to_numpy()
    (chunk,) = column.chunks
    values: np.ndarray = np.frombuffer(chunk.buffers()[1], NUMPY[str(column.type)], len(chunk) + chunk.offset)
    return values[chunk.offset :]


def units(type: pa.DataType) -> float:
    """How many of the type's ticks are a day (dates, timestamps) or a second (times of day, durations)."""
    if pa.types.is_date(type):
        return 1.0 if pa.types.is_date32(type) else 1e3 * SECONDS_PER_DAY
    return PER_SECOND[type.unit] * (SECONDS_PER_DAY if pa.types.is_timestamp(type) else 1)


def texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as text."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    return column if pa.types.is_string(column.type) else pc.cast(column, pa.string())
