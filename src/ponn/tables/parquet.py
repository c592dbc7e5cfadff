"""Parquet files: what they say of their size is asked before they are read."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ponn.tables.limits import USUAL, Limits
from ponn.tables.remote import Place, openable
from ponn.tables.source import Source, check_names, reading

COLUMN_BYTES = 1 << 16  # read at a time of one Parquet column; without it a whole row group would be in memory


def read_parquet(path: Path, limits: Limits = USUAL) -> Source:
    """One Parquet file."""
    with reading(path, "Parquet"):
        check_parquet(path, [path], limits)
        return Source(whole_table(path, limits), str(path))


def whole_table(path: Place, limits: Limits) -> pa.Table:
    """All rows of a Parquet file whose metadata were looked at."""
    if limits.bytes is None:
        with open_parquet(path, memory_map=True) as file:
            return file.read()
    with open_parquet(path) as file:
        schema = file.schema_arrow
    tables = list(unrolled(path, limits, 1 << 14, schema.names))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def open_parquet(path: Place, **options: Any) -> Any:
    """A Parquet file. (The library refuses metadata with texts of 100 MB or lists of a million elements by itself.)"""
    import pyarrow.parquet as pq

    return pq.ParquetFile(openable(path), **options)


def open_piecewise(path: Place, **options: Any) -> Any:
    """A Parquet file whose columns are read a little at a time, not a row group at once."""
    return open_parquet(path, buffer_size=COLUMN_BYTES, pre_buffer=False, **options)


def check_parquet(name: Place, files: Iterable[Place], limits: Limits, piecewise: bool = False) -> int:
    """How many rows some files have. Rows, columns and bytes of all together must be within limits.

    piecewise: within those that somebody set, as the files are not in memory at once.
    """
    rows = size = columns = 0
    for file in files:
        with reading(file, "Parquet"), open_parquet(file) as opened:
            found = opened.metadata
        rows, columns = rows + found.num_rows, max(columns, found.num_columns)
        size += sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
        if found.num_rows < 0 or size < 0:
            raise ValueError(f"it says that it has {found.num_rows} rows of {size} bytes")
    limits.check_columns(name, columns)
    if not piecewise or limits.cells is not None:
        limits.check_cells(name, rows, columns)
    if not piecewise or limits.bytes is not None:
        limits.check_bytes(name, size, packed=True)
    return rows


def unrolled(path: Place, limits: Limits, rows: int, columns: list[str]) -> Iterator[pa.Table]:
    """Tables of so many rows of a file whose texts may be much longer than what they take in it.

    Texts are read as dictionaries, where each is there once, and written out only when that is known to fit.
    """
    with open_parquet(path) as file:
        schema = file.schema_arrow
    check_names(str(path), schema.names)
    texts = [one.name for one in schema if pa.types.is_string(one.type) or pa.types.is_binary(one.type)]
    size = 0
    options = {"read_dictionary": texts} if texts else {}
    with open_piecewise(path, **options) as file:
        for batch in file.iter_batches(rows, columns=columns):
            size += batch.nbytes + sum(written_out(column) for column in batch.columns)
            limits.check_bytes(path, size, packed=True)
            wanted = [schema.field(name).type for name in batch.schema.names]
            cells = [
                one if one.type == type else one.cast(type) for one, type in zip(batch.columns, wanted, strict=True)
            ]
            yield pa.table(cells, batch.schema.names)


def written_out(column: pa.Array) -> int:
    """Bytes that the texts of a dictionary take when they are written out."""
    if not pa.types.is_dictionary(column.type) or not is_text(column.type.value_type):
        return 0
    lengths = pc.binary_length(column.dictionary)
    longest = pc.max(lengths).as_py() or 0
    if longest * len(column) < 1 << 20:  # usually, and not worth a look
        return longest * len(column)
    return pc.sum(pc.cast(lengths.take(column.indices), pa.int64())).as_py() or 0


def is_text(type: pa.DataType) -> bool:
    """Does a type take as many bytes as its values have?"""
    types = pa.types
    kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_one(type) for is_one in kinds)
