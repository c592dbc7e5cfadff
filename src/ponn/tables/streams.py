"""Files read piece by piece, in memory that does not grow with their length.

A piece of text is parsed as if it were a file of its own, below the header; a piece of Parquet is some rows; a piece of
Arrow is a record batch, so that a file written as one large batch takes the memory of that batch.
"""

import csv
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError
from ponn.tables.delimited import ONE_BLOCK, blank_missing, check_quotes, guess_delimiter, parse_delimited, stray_quote
from ponn.tables.files import (
    JSON_LINES,
    Part,
    check_exists,
    format_of,
    open_arrow,
    parquet_parts,
    parse_json_lines,
    read_schema,
)
from ponn.tables.remote import Place, openable
from ponn.tables.source import COMPRESSIONS, check_names, check_utf8, reading

PIECE_BYTES = 4 << 20  # text read at a time: some thousand rows
PIECE_ROWS = 16_384  # rows of Parquet read at a time
COLUMN_BYTES = 1 << 16  # read at a time of one Parquet column; without it a whole row group would be in memory


@dataclass(frozen=True)
class Stream:
    """A file that is read piece by piece, in order, in memory that does not grow with its length."""

    name: str
    schema: pa.Schema  # of text files: as its first piece has it
    rows: int | None  # None where only reading to the end tells
    pieces: Callable[[Sequence[str]], Iterator[pa.Table]]  # tables of these columns, none of them empty

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """The rows in tables of so many rows, however they come in pieces; the last one has what is left."""
        waiting: list[pa.Table] = []
        count = 0
        for table in self.pieces(columns):
            while count + len(table) >= rows:
                yield joined([*waiting, table.slice(0, rows - count)])
                table, waiting, count = table.slice(rows - count), [], 0
            if len(table):
                waiting.append(table)
                count += len(table)
        if waiting:
            yield joined(waiting)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of several, whose columns may differ in type where they come from text."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].column_names
    types = [common_type({table.schema.field(i).type for table in tables}) for i in range(len(names))]
    target = pa.schema(zip(names, types, strict=True))
    return pa.concat_tables([table.cast(target, safe=False) for table in tables]).combine_chunks()


def common_type(types: set[pa.DataType]) -> pa.DataType:
    """The one type; numbers for kinds of numbers; otherwise text, which is parsed cell by cell."""
    known = {one for one in types if not pa.types.is_null(one)} or types
    if len(known) == 1:
        return next(iter(known))
    return pa.float64() if {family(one) for one in known} == {"numbers"} else pa.string()


def open_stream(path: Path, texts: Collection[str] = ()) -> Stream:
    """The rows of a file, or of a directory of Parquet files, as a stream.

    Text files tell no types. Columns of `texts` are read as they are written; the others by what each piece holds,
    which may be whole numbers here and fractions there, but not numbers here and times or truth values there.
    """
    check_exists(path)
    if path.is_dir():
        with reading(path, "a directory of Parquet files"):
            return stream_parquet_parts(path, parquet_parts(path))
    return STREAMS[format_of(path)](path, texts)


def stream_parquet(path: Path, _texts: Collection[str]) -> Stream:
    """One Parquet file."""
    return stream_parquet_parts(path, [Part(path, {})])


def stream_parquet_parts(path: Place, parts: Sequence[Part]) -> Stream:
    """Parquet files one after the other."""
    import pyarrow.parquet as pq

    with reading(path, "Parquet"):
        rows = sum(pq.read_metadata(openable(part.file)).num_rows for part in parts)
        schema = parts[0].complete(read_schema(parts[0].file).empty_table()).schema
    check_names(str(path), schema.names)
    return Stream(str(path), schema, rows, lambda columns: parquet_pieces(parts, columns))


def open_parquet(path: Place) -> Any:
    """A Parquet file whose columns are read a little at a time, not a row group at once."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(openable(path), buffer_size=COLUMN_BYTES, pre_buffer=False)


def parquet_pieces(parts: Sequence[Part], columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of Parquet files, some at a time."""
    for part in parts:
        with reading(part.file, "Parquet"):
            wanted = [name for name in columns if name not in part.folders]
            for batch in open_parquet(part.file).iter_batches(PIECE_ROWS, columns=wanted):
                if batch.num_rows:
                    yield part.complete(pa.table(batch)).select(columns)


def stream_arrow(path: Path, _texts: Collection[str]) -> Stream:
    """A Feather or Arrow IPC file."""
    with reading(path, "Feather/Arrow"), pa.OSFile(str(path)) as file:
        reader = open_arrow(file)
        rows = reader.count_rows() if hasattr(reader, "count_rows") else None
        check_names(str(path), reader.schema.names)
        return Stream(str(path), reader.schema, rows, lambda columns: arrow_pieces(path, columns))


def arrow_pieces(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The record batches of an Arrow IPC file; read, not mapped, so that memory is given back."""
    with reading(path, "Feather/Arrow"), pa.OSFile(str(path)) as file:
        reader = open_arrow(file)
        stored = getattr(reader, "num_record_batches", None)  # only the file format knows
        batches = reader if stored is None else map(reader.get_batch, range(stored))
        for batch in batches:
            if batch.num_rows:
                yield pa.table(batch).select(columns)


# Text ----------------------------------------------------------------------------------------------------


def stream_csv(path: Path, texts: Collection[str]) -> Stream:
    """Comma separated text."""
    return stream_delimited(path, texts, ",")


def stream_tsv(path: Path, texts: Collection[str]) -> Stream:
    """Tab separated text."""
    return stream_delimited(path, texts, "\t")


def stream_delimited(path: Path, texts: Collection[str], expected: str) -> Stream:
    """A text table with a header line."""
    with reading(path, "delimited text"):
        header, used = read_header(path, expected)
        first = next(delimited_tables(path, header, used, texts))
    check_names(str(path), first.column_names)
    rows = None if len(first) else 0

    def pieces(columns: Sequence[str]) -> Iterator[pa.Table]:
        with reading(path, "delimited text"):
            tables = (one.select(columns) for one in delimited_tables(path, header, used, texts) if len(one))
            yield from same_families(path, tables, free="text")  # of numbers, which is parsed cell by cell

    return Stream(str(path), first.schema, rows, pieces)


def read_header(path: Path, expected: str) -> tuple[bytes, str]:
    """The header line, and the delimiter in it."""
    start = next(text_pieces(path, last_line_end), b"")
    if not start.strip():
        raise PonnError(f"{path} is empty. Expected a line of column names and rows below it.")
    used = guess_delimiter(pa.py_buffer(start), expected)
    ends = (place.end() for place in re.finditer(rb"\r\n|\r|\n", start))
    whole = (end for end in ends if start[:end].strip() and start[:end].count(b'"') % 2 == 0)
    return start[: next(whole, len(start))], used


def delimited_tables(path: Path, header: bytes, delimiter: str, texts: Collection[str]) -> Iterator[pa.Table]:
    """The rows of a text table, some at a time; the first table may be empty, to show the columns."""
    names, line = header.strip(b"\r\n"), header.count(b"\n")
    for number, piece in enumerate(text_pieces(path, lambda text: last_row_end(text, delimiter))):
        rows = piece.removeprefix(header) if number == 0 else piece
        try:
            yield parse_rows(path, names + b"\n" + rows, delimiter, texts)
        except PonnError:  # which counts lines: show it as many as there were before
            yield parse_rows(path, names + b"\n" * max(line - names.count(b"\n"), 1) + rows, delimiter, texts)
        line += rows.count(b"\n")


def parse_rows(path: Path, text: bytes, delimiter: str, texts: Collection[str]) -> pa.Table:
    """A text table in memory; columns of `texts` as they are written, the others by what they hold."""
    data = pa.py_buffer(text)
    check_utf8(path, memoryview(data).cast("B"))
    table = parse_delimited(path, data, delimiter, dict.fromkeys(texts, pa.string()))
    check_quotes(path, data, delimiter, table)
    return blank_missing(table, str(path), [])[0]


def text_pieces(path: Path, row_end: Callable[[bytes], int]) -> Iterator[bytes]:
    """The bytes of a text file, decompressed when its ending says so, cut where a row ends."""
    rest = b""
    with pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix.lower())) as stream:
        while data := stream.read(PIECE_BYTES):
            text = rest + data
            end = row_end(text)
            if end:
                yield text[:end]
            rest = text[end:]
            if len(rest) > ONE_BLOCK:
                raise PonnError(
                    f"{path} has a row of more than {ONE_BLOCK >> 20} MB, which begins with {rest[:40]!r}. "
                    "Is a quotation mark missing there, or is the file not what its ending says?"
                )
    if rest:
        yield rest


def last_line_end(text: bytes) -> int:
    """Where the last complete line ends; 0 where none does."""
    return (text.rfind(b"\n") if b"\n" in text else text.rfind(b"\r")) + 1


def last_row_end(text: bytes, delimiter: str) -> int:
    """Where the last complete row of delimited text ends: a line end outside quotation marks; 0 where none does."""
    if b'"' not in text:
        return last_line_end(text)
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == ord("\n" if b"\n" in text else "\r"))
    outside = ends[np.searchsorted(np.flatnonzero(data == ord('"')), ends) % 2 == 0]
    end = int(outside[-1]) + 1 if len(outside) else 0
    if end and stray_quote(data[:end], delimiter) is None:
        return end
    return last_odd_row_end(text, delimiter)


def last_odd_row_end(text: bytes, delimiter: str) -> int:
    """The same, slowly, for text with marks that do not quote (5" pipe), by Python's rule, which is Arrow's.

    A last row that is open at the end of the text is returned like any other: the last row is never taken.
    """
    lines = text[: last_line_end(text)].splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)])
    rows = csv.reader((line.decode(errors="replace") for line in lines), delimiter=delimiter)
    seen = [0, 0]  # lines before the last row, and with it
    try:
        for _ in rows:
            seen = [seen[1], rows.line_num]
    except csv.Error:  # a cell longer than Python's parser allows: the rows before it are complete
        return int(starts[seen[1]])
    return int(starts[seen[0]])


def stream_json_lines(path: Path, _texts: Collection[str]) -> Stream:
    """One JSON object per line."""
    with reading(path, JSON_LINES):
        first = next(json_tables(path), None)
    schema = pa.schema([]) if first is None else first.schema

    def pieces(columns: Sequence[str]) -> Iterator[pa.Table]:
        with reading(path, JSON_LINES):
            tables = (with_columns(one, columns, schema) for one in json_tables(path))
            yield from same_families(path, tables)

    return Stream(str(path), schema, 0 if first is None else None, pieces)


def json_tables(path: Path) -> Iterator[pa.Table]:
    """The rows of a JSON lines file, some at a time."""
    before = 0
    for piece in text_pieces(path, last_line_end):
        if not piece.strip():
            continue
        data = pa.py_buffer(piece)
        check_utf8(path, memoryview(data).cast("B"))
        table = parse_json_lines(path, data, before)
        yield table
        before += len(table)


def with_columns(table: pa.Table, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    """These columns; one that no object of a piece has is missing in all of its rows."""
    nothing = {
        name: pa.nulls(len(table)) for name in columns if name not in table.column_names and name in schema.names
    }
    for name, cells in nothing.items():
        table = table.append_column(name, cells)
    return table.select(columns)


def same_families(path: Path, tables: Iterator[pa.Table], free: str = "") -> Iterator[pa.Table]:
    """The tables as they come; what a column holds may not change between them, but to or from what is `free`."""
    known: dict[str, str] = {}
    before = 0
    for table in tables:
        for field in table.schema:
            found = family(field.type)
            if found not in ("", free) and known.setdefault(field.name, found) != found:
                raise PonnError(
                    f"{path}: column {field.name!r} holds {known[field.name]} and, in rows {before + 1:,} to "
                    f"{before + len(table):,}, {found}. Write it in one way everywhere."
                )
        before += len(table)
        yield table


def family(type: pa.DataType) -> str:
    """What a column inferred from text holds; empty where that can be anything or nothing."""
    kinds = {
        "true or false": pa.types.is_boolean,
        "dates": lambda one: pa.types.is_date(one) or pa.types.is_timestamp(one),
        "times": pa.types.is_time,
        "text": pa.types.is_string,
        "numbers": lambda one: pa.types.is_integer(one) or pa.types.is_floating(one),
    }
    return next((name for name, is_one in kinds.items() if is_one(type)), "")


STREAMS: dict[str, Callable[[Path, Collection[str]], Stream]] = {
    ".csv": stream_csv,
    ".tsv": stream_tsv,
    ".parquet": stream_parquet,
    ".feather": stream_arrow,
    ".arrow": stream_arrow,
    ".jsonl": stream_json_lines,
}
