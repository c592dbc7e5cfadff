"""Files read piece by piece, in memory that does not grow with their length.

A piece of text is parsed as if it were a file of its own, below the header; a piece of Parquet is some rows; a piece of
Arrow is a record batch, so that a file written as one large batch takes the memory of that batch.
"""

import csv
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError
from ponn.tables.delimited import (
    ONE_BLOCK,
    check_quotes,
    count_columns,
    guess_delimiter,
    header_of,
    parse_delimited,
    plain_texts,
    stray_quote,
)
from ponn.tables.files import Part, check_exists, format_of, parquet_parts, read_schema
from ponn.tables.formulas import quoted_names
from ponn.tables.ipc import WHAT, check_ipc, open_arrow
from ponn.tables.jsonlines import JSON_LINES, check_json, parse_json_lines
from ponn.tables.limits import USUAL, Limits
from ponn.tables.parquet import check_parquet, open_piecewise, unrolled
from ponn.tables.remote import Place
from ponn.tables.source import check_names, check_utf8, reading, unpacked

PIECE_BYTES = 4 << 20  # text read at a time: some thousand rows
PIECE_ROWS = 16_384  # rows of Parquet read at a time


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
                yield self.joined([*waiting, table.slice(0, rows - count)])
                table, waiting, count = table.slice(rows - count), [], 0
            if len(table):
                waiting.append(table)
                count += len(table)
        if waiting:
            yield self.joined(waiting)

    def joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """One table of several pieces."""
        with reading(self.name, "one table of its pieces"):
            return joined(tables)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of several, whose columns may differ in type where they come from text."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].column_names
    types = [common_type({table.schema.field(i).type for table in tables}) for i in range(len(names))]
    whole = pa.concat_tables(pa.table(list(map(in_type, table.columns, types)), names) for table in tables)
    try:
        return whole.combine_chunks()
    except pa.ArrowInvalid:  # dictionaries with missing values among theirs, which only `plain` puts together
        return whole


def in_type(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    """A column in a type. (Arrow's cast to the same type fails on slices of lists in structures.)"""
    return column if column.type == type else column.cast(type, safe=False)


def common_type(types: set[pa.DataType]) -> pa.DataType:
    """The one type; numbers for kinds of numbers; otherwise text, which is parsed cell by cell."""
    known = {one for one in types if not pa.types.is_null(one)} or types
    if len(known) == 1:
        return next(iter(known))
    return pa.float64() if {family(one) for one in known} == {"numbers"} else pa.string()


def open_stream(path: Path, texts: Collection[str] = (), limits: Limits = USUAL) -> Stream:
    """The rows of a file, or of a directory of Parquet files, as a stream.

    Text files tell no types. Columns of `texts` are read as they are written; the others by what each piece holds,
    which may be whole numbers here and fractions there, but not numbers here and times or truth values there.
    limits: of cells and bytes, for the whole stream; nobody's limits, for a piece of it.
    """
    check_exists(path)
    if path.is_dir():
        with reading(path, "a directory of Parquet files"):
            return stream_parquet_parts(path, parquet_parts(path), limits)
    return STREAMS[format_of(path)](path, texts, limits)


def stream_parquet(path: Path, _texts: Collection[str], limits: Limits) -> Stream:
    """One Parquet file."""
    return stream_parquet_parts(path, [Part(path, {})], limits)


def stream_parquet_parts(path: Place, parts: Sequence[Part], limits: Limits = USUAL) -> Stream:
    """Parquet files one after the other."""
    with reading(path, "Parquet"):
        rows = check_parquet(path, [part.file for part in parts], limits, piecewise=True)
        folders = [pa.field(name, value.type) for name, value in parts[0].folders.items()]
        schema = pa.schema([*read_schema(parts[0].file), *folders])
    check_names(str(path), schema.names)
    return Stream(str(path), schema, rows, lambda columns: parquet_pieces(parts, columns, limits))


def parquet_pieces(parts: Sequence[Part], columns: Sequence[str], limits: Limits = USUAL) -> Iterator[pa.Table]:
    """The rows of Parquet files, some at a time."""
    for part in parts:
        with reading(part.file, "Parquet"):
            wanted = [name for name in columns if name not in part.folders]
            for table in parquet_tables(part.file, wanted, limits):
                if table.num_rows:
                    yield part.complete(table).select(columns)


def parquet_tables(path: Place, columns: list[str], limits: Limits) -> Iterator[pa.Table]:
    """The rows of one Parquet file, some at a time."""
    if limits.bytes is not None:
        yield from unrolled(path, limits, PIECE_ROWS, columns)
        return
    for batch in open_piecewise(path).iter_batches(PIECE_ROWS, columns=columns):
        yield pa.table(batch)


def stream_arrow(path: Path, _texts: Collection[str], limits: Limits) -> Stream:
    """A Feather or Arrow IPC file."""
    with reading(path, WHAT):
        check_ipc(path, limits, piecewise=True)
        with pa.OSFile(str(path)) as file:
            reader = open_arrow(file)
            rows = reader.count_rows() if hasattr(reader, "count_rows") else None
            check_names(str(path), reader.schema.names)
            return Stream(str(path), reader.schema, rows, lambda columns: arrow_pieces(path, columns))


def arrow_pieces(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The record batches of an Arrow IPC file; read, not mapped, so that memory is given back."""
    with reading(path, WHAT), pa.OSFile(str(path)) as file:
        reader = open_arrow(file)
        stored = getattr(reader, "num_record_batches", None)  # only the file format knows
        batches = reader if stored is None else map(reader.get_batch, range(stored))
        for batch in batches:
            batch.validate(full=True)  # before anything is taken from it
            if batch.num_rows:
                yield pa.table(batch).select(columns)


# Text ----------------------------------------------------------------------------------------------------


def stream_csv(path: Path, texts: Collection[str], limits: Limits) -> Stream:
    """Comma separated text."""
    return stream_delimited(path, texts, ",", limits)


def stream_tsv(path: Path, texts: Collection[str], limits: Limits) -> Stream:
    """Tab separated text."""
    return stream_delimited(path, texts, "\t", limits)


def stream_delimited(path: Path, texts: Collection[str], expected: str, limits: Limits) -> Stream:
    """A text table with a header line."""
    with reading(path, "delimited text"):
        header, used = read_header(path, expected, limits)
        limits.check_columns(path, count_columns(header_of(header, used)[0], used))
        first = next(delimited_tables(path, header, used, texts, limits))
    check_names(str(path), first.column_names)
    rows = None if len(first) else 0

    def pieces(columns: Sequence[str]) -> Iterator[pa.Table]:
        with reading(path, "delimited text"):
            found = delimited_tables(path, header, used, texts, limits)
            tables = (one.select(columns) for one in counted(path, found, limits) if len(one))
            yield from same_families(path, tables, free="text")  # of numbers, which is parsed cell by cell

    return Stream(str(path), first.schema, rows, pieces)


def counted(path: Path, tables: Iterator[pa.Table], limits: Limits) -> Iterator[pa.Table]:
    """The tables as they come, as long as their cells are within limits that somebody set."""
    rows = 0
    for table in tables:
        rows += len(table)
        if limits.cells is not None:
            limits.check_cells(path, rows, table.num_columns)
        yield table


def read_header(path: Path, expected: str, limits: Limits) -> tuple[bytes, str]:
    """The header line with its end and what comes before it, and the delimiter in it."""
    start = next(text_pieces(path, last_line_end, limits), b"")
    if not start.strip():
        raise PonnError(f"{path} is empty. Expected a line of column names and rows below it.")
    used = guess_delimiter(pa.py_buffer(start), expected)
    return start[: header_of(start, used)[1]], used


def delimited_tables(
    path: Path, header: bytes, delimiter: str, texts: Collection[str], limits: Limits
) -> Iterator[pa.Table]:
    """The rows of a text table, some at a time; the first table may be empty, to show the columns."""
    names, line = header.strip(b"\r\n"), header.count(b"\n")
    for number, piece in enumerate(text_pieces(path, lambda text: last_row_end(text, delimiter), limits)):
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
    table = parse_delimited(path, data, delimiter, dict.fromkeys([*texts, *quoted_names(texts)], pa.string()))
    check_quotes(path, data, delimiter, table)
    return plain_texts(table, str(path), [])[0]


def text_pieces(path: Path, row_end: Callable[[bytes], int], limits: Limits) -> Iterator[bytes]:
    """The bytes of a text file, decompressed when its ending says so, cut where a row ends."""
    waiting: list[bytes] = []  # no row ends in the first `searched` bytes of these
    count = held = searched = 0
    for block in unpacked(path, PIECE_BYTES):
        count, held = count + len(block), held + len(block)
        if limits.bytes is not None:
            limits.check_bytes(path, count, packed=True)
        waiting.append(block)
        if held < 2 * searched:  # else a long row would be searched for its end again with every block
            continue
        text = b"".join(waiting)
        end = row_end(text)
        if end:
            yield text[:end]
        waiting, held = [text[end:]], len(text) - end
        searched = 0 if end else held
        if held > ONE_BLOCK:
            raise PonnError(
                f"{path} has a row of more than {ONE_BLOCK >> 20} MB, which begins with {text[end : end + 40]!r}. "
                "Is a quotation mark missing there, or is the file not what its ending says?"
            )
    if held:
        yield b"".join(waiting)


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


def stream_json_lines(path: Path, _texts: Collection[str], limits: Limits) -> Stream:
    """One JSON object per line."""
    with reading(path, JSON_LINES):
        first = next(json_tables(path, limits), None)
    schema = pa.schema([]) if first is None else first.schema

    def pieces(columns: Sequence[str]) -> Iterator[pa.Table]:
        with reading(path, JSON_LINES):
            found = counted(path, json_tables(path, limits), limits)
            yield from same_families(path, (with_columns(one, columns, schema) for one in found))

    return Stream(str(path), schema, 0 if first is None else None, pieces)


def json_tables(path: Path, limits: Limits) -> Iterator[pa.Table]:
    """The rows of a JSON lines file, some at a time."""
    before = 0
    for piece in text_pieces(path, last_line_end, limits):
        if not piece.strip():
            continue
        data = pa.py_buffer(piece)
        check_utf8(path, memoryview(data).cast("B"))
        check_json(path, data, limits, before)
        table = parse_json_lines(path, data, before)
        yield table
        before += len(table)


def with_columns(table: pa.Table, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    """These columns; one that no object of a piece has is missing in all of its rows."""
    there, known = set(table.column_names), set(schema.names)
    absent = [name for name in columns if name in known and name not in there]
    if absent:
        nothing = pa.nulls(len(table))
        table = pa.table([*table.columns, *[nothing] * len(absent)], [*table.column_names, *absent])
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


STREAMS: dict[str, Callable[[Path, Collection[str], Limits], Stream]] = {
    ".csv": stream_csv,
    ".tsv": stream_tsv,
    ".parquet": stream_parquet,
    ".feather": stream_arrow,
    ".arrow": stream_arrow,
    ".jsonl": stream_json_lines,
}
