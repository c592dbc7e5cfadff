"""Any source becomes one Arrow table: files by their ending, frames through the Arrow C stream.

Everything that can go wrong while reading is told here. Rows are counted from 1, the first row of data.
"""

import codecs
import csv
import difflib
import io
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import PonnError

# Spellings that mean "no value" in text files. Not "none": in a column of medications it is an answer.
MISSING_SPELLINGS = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null", ".", "?")
# Delimited text is parsed in blocks of this size, JSON lines up to this size as one block. A row must fit in a block.
ONE_BLOCK = 64 << 20
JSON_BLOCK = 1 << 30
UTF8_BLOCK = 16 << 20
HEADER_BYTES = 1 << 20  # where the header line of a text file is looked for
SHOWN = 5  # how many rows or values an error lists
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
# First bytes of files that are often given a wrong ending.
MAGIC = {
    b"\x1f\x8b": "a gzip file (.gz)",
    b"PK\x03\x04": "a zip archive or Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"PAR1": "a Parquet file (.parquet)",
    b"ARROW1": "an Arrow or Feather file (.feather)",
    b"SQLite": "a SQLite database",
}


@dataclass(frozen=True)
class Source:
    """A table, where it came from, and what reading it changed."""

    table: pa.Table
    name: str
    notes: tuple[str, ...] = ()


def read_table(source: Any) -> Source:
    """The table behind a path or an Arrow-capable frame, sound and in plain types."""
    found = read_path(Path(source)) if isinstance(source, str | os.PathLike) else read_frame(source)
    check_sound(found)
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


def check_names(source: str, names: Iterable[Any]) -> None:
    """Column names must differ."""
    twice = sorted(str(name) for name, count in Counter(names).items() if count > 1)
    if twice:
        raise PonnError(
            f"{source} has several columns named {listing(twice)}. "
            "Every column needs a name of its own: rename or remove the copies."
        )


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


# Files ---------------------------------------------------------------------------------------------------


def read_path(path: Path) -> Source:
    """Read a file by its ending, or a directory of Parquet files."""
    if path == Path():
        raise PonnError("The path of the log is empty: give the name of a file, or of a directory of Parquet files.")
    if not exists(path):
        near = difflib.get_close_matches(path.name, siblings(path), n=3)
        hint = f" Did you mean {listing(near)}?" if near else ""
        raise PonnError(f"There is no file {path}.{hint}")
    if path.is_dir():
        with reading(path, "a directory of Parquet files"):
            return Source(read_parquet_directory(path), str(path))
    name = Path(path.name.lower())
    reader = READERS.get(name.with_suffix("").suffix if name.suffix in COMPRESSIONS else name.suffix)
    if reader is None:
        raise PonnError(
            f"{path} has an ending that is not known. Expected one of {', '.join(READERS)} "
            "(text files also with .gz), or a directory of Parquet files."
        )
    if not path.is_file():
        raise PonnError(f"{path} is neither a file nor a directory: copy its content into a file.")
    return reader(path)


def exists(path: Path) -> bool:
    """Is there something at this path? Raises PonnError when that cannot be known."""
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise PonnError(f"{str(path)[:200]!r} cannot be opened: {one_line(error)}.") from error


def siblings(path: Path) -> list[str]:
    """Names of the files beside a path, empty when its folder cannot be listed."""
    try:
        return os.listdir(path.parent)
    except OSError:
        return []


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a reader raises into one clear error."""
    try:
        yield
    except PonnError:
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError, KeyError, TypeError, OverflowError) as error:
        raise PonnError(
            f"{path} could not be read as {what}: {one_line(error)}. "
            "Is the file complete, and does its ending match its content?"
        ) from error


def read_parquet(path: Path) -> Source:
    """One Parquet file."""
    import pyarrow.parquet as pq

    with reading(path, "Parquet"):
        return Source(pq.ParquetFile(path, memory_map=True).read(), str(path))


def read_parquet_directory(path: Path) -> pa.Table:
    """All Parquet files below a directory in order of their names; `key=value` folders become columns."""
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    found = (file for file in path.rglob("*.parquet") if file.is_file())
    files = sorted(file for file in found if not hidden(file.relative_to(path)))
    if not files:
        raise PonnError(f"{path} is a directory without *.parquet files.")
    first = read_schema(files[0])
    for file in files[1:]:
        compare_schemas(files[0], first, file, read_schema(file))
    hive = ds.partitioning(flavor="hive")
    names = [str(file) for file in files]
    dataset = ds.dataset(names, format="parquet", partitioning=hive, partition_base_dir=str(path), schema=None)
    partition_columns = [name for name in dataset.schema.names if name not in first.names]
    if not partition_columns:
        return pa.concat_tables(pq.ParquetFile(file, memory_map=True).read() for file in files)
    return dataset.to_table()


def hidden(path: Path) -> bool:
    """Files and folders that writers use for themselves, such as _temporary or .crc."""
    return any(part.startswith((".", "_")) for part in path.parts)


def read_schema(path: Path) -> pa.Schema:
    """The schema of one Parquet file."""
    import pyarrow.parquet as pq

    with reading(path, "Parquet"):
        return pq.read_schema(path)


def compare_schemas(first: Path, expected: pa.Schema, path: Path, seen: pa.Schema) -> None:
    """All files of a directory must have the same columns and types."""
    if seen.equals(expected):
        return
    check_names(str(first), expected.names)
    check_names(str(path), seen.names)
    for column in expected:
        position = seen.get_field_index(column.name)
        if position < 0:
            raise PonnError(f"{path} has no column {column.name!r}, which {first} has.")
        if seen.field(position).type != column.type:
            raise PonnError(
                f"Column {column.name!r} is {seen.field(position).type} in {path} but {column.type} in {first}. "
                "All files of a directory need the same types: rewrite the one that differs."
            )
    extra = [name for name in seen.names if name not in expected.names]
    if extra:
        raise PonnError(f"{path} has the extra columns {listing(extra)}, which {first} does not have.")
    if seen.names != expected.names:
        raise PonnError(f"{path} has the columns of {first} in another order: write them in one order.")


def read_arrow(path: Path) -> Source:
    """A Feather or Arrow IPC file, in file or stream format."""
    with reading(path, "Feather/Arrow"):
        memory = pa.memory_map(str(path))
        try:
            return Source(pa.ipc.open_file(memory).read_all(), str(path))
        except pa.ArrowInvalid:
            memory.seek(0)
            return Source(pa.ipc.open_stream(memory).read_all(), str(path))


def read_json_lines(path: Path) -> Source:
    """One JSON object per line."""
    import pyarrow.json as paj

    with reading(path, "JSON lines (one object per line)"):
        data = text_buffer(path)
        options = paj.ReadOptions(block_size=min(data.size + 1, JSON_BLOCK))
        try:
            return Source(paj.read_json(pa.BufferReader(data), read_options=options), str(path))
        except pa.ArrowInvalid as error:
            raise PonnError(wrong_json(path, one_line(error))) from error


JSON_TYPES = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+) in row (\d+)")
JSON_ROW = re.compile(r" in row (\d+)$")


def wrong_json(path: Path, reason: str) -> str:
    """What is wrong with a JSON lines file; Arrow counts rows from 0."""
    if types := JSON_TYPES.search(reason):
        column, before, after, row = types[1], types[2], types[3], int(types[4]) + 1
        if not column:
            return f"{path}: row {row} is a JSON {after}; expected JSON lines, one object {{...}} per line."
        return f"{path}: column {column!r} holds a {before} and, in row {row}, a {after}. Give it one type everywhere."
    where = JSON_ROW.search(reason)
    told = JSON_ROW.sub("", reason).removesuffix(".") + (f" in row {int(where[1]) + 1}" if where else "")
    return f"{path} could not be read as JSON lines: {told}. Expected one complete JSON object per line."


def text_buffer(path: Path) -> pa.Buffer:
    """The bytes of a text file, decompressed when its ending says so; checked to be UTF-8 text."""
    with pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix.lower())) as stream:
        data = stream.read_buffer()
    if data.size < HEADER_BYTES and not bytes(data).strip():
        raise PonnError(f"{path} is empty. Expected a line of column names and rows below it.")
    check_utf8(path, memoryview(data).cast("B"))
    return data


def check_utf8(path: Path, data: memoryview) -> None:
    """Text must be UTF-8; say where it is not."""
    start = bytes(data[:8])
    for magic, what in MAGIC.items():
        if start.startswith(magic):
            raise PonnError(f"{path} is {what}, not text. Give it the ending of its format, or save it as text.")
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in start[:4]:
        raise PonnError(f"{path} is UTF-16 text; expected UTF-8. Save it again as UTF-8.")
    decoder = codecs.getincrementaldecoder("utf-8")()
    for block in range(0, len(data), UTF8_BLOCK):
        carried = len(decoder.getstate()[0])
        try:
            decoder.decode(data[block : block + UTF8_BLOCK], final=block + UTF8_BLOCK >= len(data))
        except UnicodeDecodeError as error:
            place = block - carried + error.start
            around = " ".join(bytes(data[max(0, place - 15) : place + 15]).decode("latin-1").split())
            raise PonnError(
                f"{path} is not UTF-8 text: line {line_of(data, place)} holds the byte 0x{data[place]:02x} "
                f"(around {around!r}). It may be Latin-1 or Windows-1252: save it again as UTF-8."
            ) from error


def line_of(data: memoryview, place: int) -> int:
    """The line of the file, counted from 1, that holds a byte."""
    return bytes(data[:place]).count(b"\n") + 1


# Delimited text ------------------------------------------------------------------------------------------


def read_csv(path: Path) -> Source:
    """Comma separated text."""
    return read_delimited(path, ",")


def read_tsv(path: Path) -> Source:
    """Tab separated text."""
    return read_delimited(path, "\t")


def read_delimited(path: Path, delimiter: str) -> Source:
    """A text table with a header line. Types are inferred from all rows: a cell that breaks one widens the column."""
    with reading(path, "delimited text"):
        data = text_buffer(path)
        if data.size < HEADER_BYTES and not re.search(rb"[\r\n]", memoryview(data)):
            data = pa.py_buffer(bytes(data) + b"\n")  # a header and not even a line end, which Arrow refuses
        notes: list[str] = []
        used = guess_delimiter(data, delimiter)
        if used != delimiter:
            notes.append(f"The cells of {path.name} are separated by {used!r}, not {delimiter!r}: read that way.")
        table = parse_delimited(path, data, used)
        check_quotes(path, data, used, table)
        table = keep_leading_zeros(path, data, used, table, notes)
        return Source(*blank_missing(table, str(path), notes))


def guess_delimiter(data: pa.Buffer, expected: str) -> str:
    """The expected delimiter, unless the header line has none of it, outside quotes, and some of another usual one."""
    start = re.sub(rb'"[^"]*"', b"", bytes(memoryview(data)[:HEADER_BYTES])).lstrip(b"\r\n")
    header = re.split(rb"[\r\n]", start, maxsplit=1)[0].decode(errors="ignore")
    others = [one for one in (",", ";", "\t", "|") if one in header]
    return expected if expected in header or not others else max(others, key=header.count)


def parse_delimited(
    path: Path, data: pa.Buffer, delimiter: str, types: Mapping[str, pa.DataType] | None = None
) -> pa.Table:
    """Parse with inferred types but for the given ones; rows with a wrong number of cells are an error."""
    import pyarrow.csv as pacsv

    ragged: list[Any] = []

    def keep(row: Any) -> str:
        ragged.append(row)
        return "skip"

    table = pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(block_size=min(data.size + 1, ONE_BLOCK)),
        parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=keep),
        convert_options=pacsv.ConvertOptions(
            column_types=types, null_values=list(MISSING_SPELLINGS), strings_can_be_null=False
        ),
    )
    if ragged:
        complain_ragged(path, data, delimiter, ragged)
    return table


def complain_ragged(path: Path, data: pa.Buffer, delimiter: str, ragged: list[Any]) -> None:
    """Rows with too few or too many cells are an error, told with the first of them."""
    expected = ragged[0].expected_columns
    line, cells, text = first_ragged(data, delimiter, expected) or (0, ragged[0].actual_columns, ragged[0].text)
    where = f" in line {line}" if line else ""
    raise PonnError(
        f"{path}: {len(ragged)} row{'s have' if len(ragged) > 1 else ' has'} a wrong number of cells. "
        f"The first one{where} has {cells}, expected {expected} as in the header: "
        f"{text[:80]!r}. Is a separator or a quotation mark missing or unquoted there?"
    )


def first_ragged(data: pa.Buffer, delimiter: str, expected: int) -> tuple[int, int, str] | None:
    """Line, number of cells and text of the first row with a wrong number of cells.

    Arrow parses in parallel and does not know lines. None where Python's parser, which does, finds no such row.
    """
    rows = csv.reader(io.TextIOWrapper(pa.BufferReader(data), "utf-8", newline=""), delimiter=delimiter)
    line = 1
    try:
        for cells in rows:
            if cells and len(cells) != expected:
                return line, len(cells), delimiter.join(cells)
            line = rows.line_num + 1
    except csv.Error:  # a cell longer than Python's parser allows
        pass
    return None


def check_quotes(path: Path, data: pa.Buffer, delimiter: str, table: pa.Table) -> None:
    """A quotation mark that is never closed swallows the rows after it: refuse it.

    Looked for only when some cell spans lines, because otherwise no row was swallowed.
    """
    texts = (column for column in table.columns if pa.types.is_string(column.type))
    if not any(pc.any(pc.match_substring_regex(column, "[\r\n]")).as_py() for column in texts):
        return
    place = stray_quote(np.frombuffer(data, np.uint8), delimiter)
    if place is not None:
        raise PonnError(
            f"{path}: a quotation mark in line {line_of(memoryview(data), place)} neither opens nor closes a cell, or "
            "is never closed, and there are cells that span several lines: rows may have been swallowed. Close the "
            'quotation, or write a mark that belongs to a text as "" inside a quoted cell.'
        )


def stray_quote(data: np.ndarray, delimiter: str) -> int | None:
    """The place of the first quotation mark that is not where one can open or close a cell."""
    quotes = np.flatnonzero(data == ord('"'))
    edges = np.frombuffer(f"{delimiter}\r\n".encode(), np.uint8)
    start = len(codecs.BOM_UTF8) if bytes(data[:3]) == codecs.BOM_UTF8 else 0
    beside = np.diff(quotes) == 1  # two marks in a row are one that belongs to the text
    opening, closing = quotes[::2], quotes[1::2]
    opens = (opening == start) | np.isin(data[np.maximum(opening, 1) - 1], edges)
    opens[1:] |= beside[1::2]
    closes = (closing == len(data) - 1) | np.isin(data[np.minimum(closing + 1, len(data) - 1)], edges)
    closes[: len(beside[1::2])] |= beside[1::2]
    wrong = [*opening[~opens][:1], *closing[~closes][:1], *(quotes[-1:] if len(quotes) % 2 else ())]
    return int(min(wrong)) if wrong else None


def keep_leading_zeros(path: Path, data: pa.Buffer, delimiter: str, table: pa.Table, notes: list[str]) -> pa.Table:
    """Whole numbers written with leading zeros (007, a postal code) are codes: their columns stay text."""
    check_names(str(path), table.column_names)
    whole = [field.name for field in table.schema if pa.types.is_int64(field.type)]
    if not whole or not starts_with_zero(np.frombuffer(data, np.uint8), delimiter):
        return table
    as_text = parse_delimited(path, data, delimiter, dict.fromkeys(whole, pa.string()))
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name in whole:
        cells = as_text.column(name)
        zeros = pc.match_substring_regex(cells, "^0[0-9]")
        if pc.any(zeros).as_py():
            first = cells.filter(zeros)[0].as_py()
            notes.append(
                f"Column {name!r}: whole numbers written with leading zeros ({pc.sum(zeros)} cells, e.g. {first!r}) "
                "were read as text, like codes."
            )
            columns[name] = cells
    return pa.table(columns)


def starts_with_zero(data: np.ndarray, delimiter: str) -> bool:
    """Does some cell start with a zero and another digit? A quick look; the cell may be a time as well."""
    starts = np.zeros(256, bool)
    starts[list(f'{delimiter}\r\n"'.encode())] = True
    for block in range(0, len(data), UTF8_BLOCK):
        part = data[block : block + UTF8_BLOCK + 2]
        before = np.flatnonzero(part[1:-1] == ord("0"))
        if (starts[part[before]] & (part[before + 2] - ord("0") < 10)).any():  # unsigned: what is below "0" wraps
            return True
    return False


def blank_missing(table: pa.Table, name: str, notes: list[str]) -> tuple[pa.Table, str, tuple[str, ...]]:
    """Turn text cells that are spelled like a missing value into missing ones, and count those with letters."""
    spellings = pa.array(MISSING_SPELLINGS)
    columns = table.columns
    for position, (column, cells) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if not pa.types.is_string(cells.type):
            continue
        blank = pc.is_in(cells, value_set=spellings)
        if not pc.any(blank).as_py():
            continue
        spelled = pc.value_counts(cells.filter(blank)).to_pylist()
        words = {one["values"]: one["counts"] for one in spelled if one["values"]}
        if words:
            told = ", ".join(f"{word!r} ({count})" for word, count in sorted(words.items()))
            notes.append(f"Column {column!r}: cells spelled {told} were read as missing.")
        columns[position] = pc.if_else(blank, pa.scalar(None, pa.string()), cells)
    return pa.table(columns, table.column_names), name, tuple(notes)


READERS: dict[str, Callable[[Path], Source]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".feather": read_arrow,
    ".arrow": read_arrow,
    ".jsonl": read_json_lines,
}


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


# Writing -------------------------------------------------------------------------------------------------


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table in the format of the path's ending, under a temporary name that is renamed at the end."""
    name = path.name.lower()
    writer = WRITERS.get(Path(name.removesuffix(".gz")).suffix)
    if writer is None:
        raise PonnError(f"{path} has an ending that is not known; expected one of {', '.join(WRITERS)}.")
    if not path.parent.is_dir():
        raise PonnError(f"There is no folder {path.parent} to write {path.name} into.")
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with pa.output_stream(str(temporary), compression="gzip" if name.endswith(".gz") else None) as sink:
            writer(table, sink)
        temporary.replace(path)
    except OSError as error:
        raise PonnError(f"{path} could not be written: {error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_csv(table: pa.Table, sink: Any, delimiter: str = ",") -> None:
    """Delimited text with a header."""
    import pyarrow.csv as pacsv

    pacsv.write_csv(table, sink, pacsv.WriteOptions(delimiter=delimiter))


def write_tsv(table: pa.Table, sink: Any) -> None:
    """Tab separated text."""
    write_csv(table, sink, "\t")


def write_parquet(table: pa.Table, sink: Any) -> None:
    """Parquet."""
    import pyarrow.parquet as pq

    pq.write_table(table, sink, compression="zstd")


def write_arrow(table: pa.Table, sink: Any) -> None:
    """Arrow IPC file, which is also what Feather is."""
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def write_json_lines(table: pa.Table, sink: Any) -> None:
    """One JSON object per row."""
    for batch in table.to_batches():
        for row in batch.to_pylist():
            sink.write(json.dumps(row, default=str).encode() + b"\n")


WRITERS: dict[str, Callable[[pa.Table, Any], None]] = {
    ".csv": write_csv,
    ".tsv": write_tsv,
    ".parquet": write_parquet,
    ".feather": write_arrow,
    ".arrow": write_arrow,
    ".jsonl": write_json_lines,
}


# Words ---------------------------------------------------------------------------------------------------


def one_line(error: Exception) -> str:
    """The start of an exception's message, on one line, without a full stop."""
    return " ".join(str(error).split())[:300].removesuffix(".")


def listing(names: Iterable[object], most: int = 8) -> str:
    """Names in quotes, the first few of them."""
    names = list(names)
    told = ", ".join(repr(name) for name in names[:most])
    return told + (f" and {len(names) - most} more" if len(names) > most else "")
