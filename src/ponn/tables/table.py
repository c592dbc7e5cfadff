"""Any source becomes one Arrow table, sound and in plain types: files, and frames through the Arrow C stream."""

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import PonnError, listing, one_line
from ponn.tables.files import read_path
from ponn.tables.limits import USUAL, Limits
from ponn.tables.parquet import written_out
from ponn.tables.source import Source, check_names


def read_table(source: Any, limits: Limits = USUAL) -> Source:
    """The table behind a path or an Arrow-capable frame, sound and in plain types."""
    found = read_path(Path(source), limits) if isinstance(source, str | os.PathLike) else read_frame(source)
    check_sound(found)
    limits.check_bytes(found.name, written_out_in_all(found.table), packed=True)
    check_names(found.name, found.table.column_names)
    names = listing(found.table.column_names)
    if not names:
        raise PonnError(f"{found.name} has no columns. Expected a table with one row per decision.")
    if found.table.num_rows == 0:
        raise PonnError(f"{found.name} has no rows: only the columns {names}. Expected one row per decision.")
    return plain(without_pandas_index(found))


def check_sound(source: Source) -> None:
    """Text is UTF-8 and offsets stay within bounds: damaged files and careless casts can break either."""
    try:
        source.table.validate(full=True)
        source.table.column_names  # noqa: B018 - decodes the names
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise PonnError(f"{source.name} is damaged: {one_line(error)}. Write it again from its origin.") from error


def written_out_in_all(table: pa.Table) -> int:
    """Bytes that the texts of all dictionaries take when they are written out, as some steps do with each."""
    return sum(written_out(chunk) for column in table.columns for chunk in column.chunks)


PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def without_pandas_index(source: Source) -> Source:
    """Leave out the unnamed index that pandas keeps as a column, in its frames and in the files it writes."""
    index = [column for column in source.table.column_names if PANDAS_INDEX.fullmatch(column)]
    if not index:
        return source
    notes = (*source.notes, "The frame's unnamed pandas index was not read as a column.")
    return replace(source, table=source.table.drop_columns(index), notes=notes)


# Types ---------------------------------------------------------------------------------------------------


def plain(source: Source) -> Source:
    """Turn Arrow's rarer layouts into the common ones, so that nothing after this has to know them."""
    columns = [plain_column(column) for column in source.table.columns]
    return replace(source, table=pa.table(columns, source.table.column_names))


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values in a layout that every Arrow function takes; the column itself where it has one already."""
    types, type = pa.types, column.type
    if types.is_run_end_encoded(type):
        return plain_column(pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], type.value_type))
    if types.is_dictionary(type):
        return plain_dictionary(column)
    if types.is_string_view(type):
        return column.cast(pa.string())
    if types.is_float16(type):
        return column.cast(pa.float32())
    if types.is_date64(type):
        return column.cast(pa.timestamp("ms"))
    if types.is_decimal32(type) or types.is_decimal64(type):
        return column.cast(pa.decimal128(type.precision, type.scale))
    return column


def plain_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A dictionary column with signed indices and plain, present, different values: made anew where it is not one."""
    if pa.types.is_nested(column.type.value_type) or isinstance(column.type.value_type, pa.BaseExtensionType):
        return column  # of no use as a feature in any layout
    given = [chunk.dictionary for chunk in column.chunks]
    values = [plain_column(pa.chunked_array([one])).combine_chunks() for one in given]
    is_plain = all(one.type == column.type.value_type for one in values)
    if is_plain and pa.types.is_signed_integer(column.type.index_type) and all(map(is_sound_dictionary, values)):
        return column
    return pa.chunked_array(
        [one.take(chunk.indices) for one, chunk in zip(values, column.chunks, strict=True)]
    ).dictionary_encode()


def is_sound_dictionary(values: pa.Array) -> bool:
    """Nothing missing among the values, and no value twice."""
    return not pc.is_null(values, nan_is_null=True).true_count and len(values.unique()) == len(values)


# Frames --------------------------------------------------------------------------------------------------


def read_frame(frame: Any) -> Source:
    """A pandas, polars, pyarrow or duckdb table, or a dict of columns, without copying where Arrow allows it."""
    name = f"The {type(frame).__module__.split('.')[0]} {type(frame).__name__}"
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return Source(frame, name)
    if not (hasattr(frame, "__arrow_c_stream__") or isinstance(frame, Mapping)):
        raise PonnError(
            f"A log cannot be read from a {type(frame).__name__}. Expected a path, or a table of pandas, "
            "polars (call .collect() on a lazy one), pyarrow or duckdb, or a dict of columns."
        )
    check_names(name, getattr(frame, "columns", ()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas: names that are not text become text, which is meant
            return Source(pa.table(frame), name)
    except Exception as error:  # the code of any library may run here, with exceptions of its own
        raise PonnError(
            f"{name} could not be turned into an Arrow table: {one_line(error)}. "
            "Expected columns of equal length with a name each, and in each column values of one type."
        ) from error
