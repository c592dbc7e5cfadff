"""Parquet files: what they say of their size is asked before they are read."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ponn.tables.limits import USUAL, Limits
from ponn.tables.remote import Place, openable, opened
from ponn.tables.source import Source, check_names, reading

Fields = dict[int, Any]  # of a Thrift structure: numbers, structures and lists of structures by their number
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
        with reading(file, "Parquet"), open_parquet(file) as parquet:
            found = parquet.metadata
        if limits.bytes is not None:
            with reading(file, "Parquet"):
                check_pages(file, limits)
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


# Pages ---------------------------------------------------------------------------------------------------
#
# The metadata say how much a column unpacks to, and so does the header of each page, which is what the library believes
# when it unpacks one. Both are Thrift structures in the compact protocol. They are read here because the library's own
# reader of the metadata of a column ends the process on some of them. Fields that are looked at (parquet.thrift):
# file: 4 row groups. Row group: 1 columns. Column: 3 its metadata, of which 7 bytes, 9 and 11 the places of its data
# pages and of its dictionary. Page: 2 bytes unpacked, 3 bytes.

HEADER_BYTES = 1 << 16  # read at a time to find a page's header, which has statistics
DEEPEST = 10  # structures within each other; types of columns have six
TRUE, FALSE, BYTE, NUMBERS, DOUBLE, BINARY, LISTS, STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12


def check_pages(path: Place, limits: Limits) -> None:
    """All pages together unpack to no more than is allowed, by their own headers."""
    size = 0
    with opened(path) as content:
        for group in read_footer(content).get(4, ()):
            for column in group.get(1, ()):
                for unpacked in page_sizes(content, column.get(3, {})):
                    size += unpacked
                    limits.check_bytes(path, size, packed=True)


def read_footer(content: Any) -> Fields:
    """The metadata of a Parquet file."""
    end = content.size() - 8
    length = int.from_bytes(content.read_at(4, max(end, 0)), "little")
    if not 0 < length <= end:
        raise ValueError(f"it says that it has metadata of {length} bytes")
    return read_struct(content.read_at(length, end - length), 0)[0]


def page_sizes(content: Any, column: Fields) -> Iterator[int]:
    """What each page of a column in a row group unpacks to, by the metadata of that column."""
    place, dictionary = column.get(9, 0), column.get(11, 0)
    place = dictionary if 0 < dictionary < place else place
    end = min(place + column.get(7, 0), content.size())
    while 0 <= place < end:
        header, length = read_struct(content.read_at(min(HEADER_BYTES, end - place), place), 0)
        unpacked, packed = header.get(2, -1), header.get(3, -1)
        if unpacked < 0 or packed < 0:
            raise ValueError(f"a page at {place} says that it has {packed} bytes, unpacked {unpacked}")
        yield unpacked
        place += length + packed


def read_struct(data: bytes, place: int, depth: int = 0) -> tuple[Fields, int]:
    """The whole numbers, structures and lists of structures of a structure by their field, and where it ends."""
    if depth > DEEPEST:
        raise ValueError("its metadata are nested too deeply")
    found: Fields = {}
    field = 0
    while (head := byte_at(data, place)) != 0:
        kind, delta, place = head & 15, head >> 4, place + 1
        if delta:
            field += delta
        else:
            field, place = signed(data, place)
        value, place = read_value(data, place, kind, depth)
        if value is not None:
            found[field] = value
    return found, place + 1


def read_value(data: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    """A value, None where it is of no interest here, and where it ends."""
    if kind in (TRUE, FALSE):  # in the field's head
        return None, place
    if kind == BYTE:
        return None, place + 1
    if kind in NUMBERS:
        return signed(data, place)
    if kind == DOUBLE:
        return None, place + 8
    if kind == BINARY:
        length, place = varint(data, place)
        return None, place + length
    if kind in LISTS:
        return read_list(data, place, depth)
    if kind == STRUCT:
        return read_struct(data, place, depth + 1)
    raise ValueError(f"its metadata have a field of kind {kind}")


def read_list(data: bytes, place: int, depth: int) -> tuple[list[Fields] | None, int]:
    """A list of structures, None if it is one of other values, and where it ends."""
    head, place = byte_at(data, place), place + 1
    kind, count = head & 15, head >> 4
    if count == 15:
        count, place = varint(data, place)
    found = []
    for _ in range(count):
        if kind in (TRUE, FALSE):
            byte_at(data, place)
            place += 1
            continue
        value, place = read_value(data, place, kind, depth + 1)
        byte_at(data, place - 1)  # else a list could be endless
        if kind == STRUCT:
            found.append(value)
    return (found if kind == STRUCT else None), place


def byte_at(data: bytes, place: int) -> int:
    """One byte, which must be there."""
    if place >= len(data):
        raise ValueError("its metadata have no end")
    return data[place]


def signed(data: bytes, place: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    number, place = varint(data, place)
    return number >> 1 ^ -(number & 1), place


def varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of 7 bits per byte, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        byte = byte_at(data, place)
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError("its metadata have a number without end")
