"""Comma and tab separated text: types inferred from every row, every odd cell told or counted."""

import codecs
import csv
import io
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import SHOWN, Note, PonnError
from ponn.tables.formulas import unquote, unquoted_names
from ponn.tables.limits import USUAL, Limits
from ponn.tables.source import HEADER_BYTES, UTF8_BLOCK, Source, check_names, line_of, reading, text_buffer

# Spellings that mean "no value" in text files. Not "none": in a column of medications it is an answer.
MISSING_SPELLINGS = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null", ".", "?")
COUNTED = 10_000  # rows with a wrong number of cells, each of which calls back from Arrow into Python
ONE_BLOCK = 64 << 20  # text is parsed in blocks of this size; a row must fit in one


def read_csv(path: Path, limits: Limits = USUAL) -> Source:
    """Comma separated text."""
    return read_delimited(path, ",", limits)


def read_tsv(path: Path, limits: Limits = USUAL) -> Source:
    """Tab separated text."""
    return read_delimited(path, "\t", limits)


def read_delimited(path: Path, delimiter: str, limits: Limits) -> Source:
    """A text table with a header line. Types are inferred from all rows: a cell that breaks one widens the column."""
    with reading(path, "delimited text"):
        data = text_buffer(path, limits)
        if data.size < HEADER_BYTES and not re.search(rb"[\r\n]", memoryview(data)):
            data = pa.py_buffer(bytes(data) + b"\n")  # a header and not even a line end, which Arrow refuses
        notes: list[str] = []
        used = guess_delimiter(data, delimiter)
        if used != delimiter:
            notes.append(f"The cells of {path.name} are separated by {used!r}, not {delimiter!r}: read that way.")
        check_size(path, data, used, limits)
        table = parse_delimited(path, data, used)
        check_quotes(path, data, used, table)
        table = keep_leading_zeros(path, data, used, table, notes)
        return Source(*plain_texts(table, str(path), notes))


def guess_delimiter(data: pa.Buffer, expected: str) -> str:
    """The expected delimiter, unless the header line has none of it, outside quotes, and some of another usual one."""
    start = re.sub(rb'"[^"]*"', b"", bytes(memoryview(data)[:HEADER_BYTES])).lstrip(b"\r\n")
    header = re.split(rb"[\r\n]", start, maxsplit=1)[0].decode(errors="ignore")
    others = [one for one in (",", ";", "\t", "|") if one in header]
    return expected if expected in header or not others else max(others, key=header.count)


@cache
def header_pattern(delimiter: str) -> re.Pattern[bytes]:
    """Empty lines, the header, a line end. As Arrow reads it: a mark quotes only where a cell begins.

    Whatever was matched is never tried in another way, so that this takes time in proportion to the header.
    """
    mark = re.escape(delimiter).encode()
    cell = rb'(?:"[^"]*+"?)*+[^\r\n%b]*+' % mark
    return re.compile(rb"(?:\xef\xbb\xbf)?+[\r\n]*+(%b(?:%b%b)*+)(?:\r\n|\r|\n)?" % (cell, mark, cell))


def header_of(data: Any, delimiter: str) -> tuple[bytes, int]:
    """The header line of a text without its end, and where the next line begins."""
    found = header_pattern(delimiter).match(data)
    assert found is not None  # it matches nothing too
    return bytes(found[1]), found.end()


def count_columns(header: bytes, delimiter: str) -> int:
    """How many columns a header line has."""
    mark = delimiter.encode()
    quoted = rb'(\A|%b)(?:"[^"]*+"?)++' % re.escape(mark)
    return re.sub(quoted, rb"\1", header).count(mark) + 1


def check_size(path: Path, data: pa.Buffer, delimiter: str, limits: Limits) -> None:
    """Neither too many columns nor too many cells, before the parser makes anything of them."""
    columns = count_columns(header_of(memoryview(data), delimiter)[0], delimiter)
    limits.check_columns(path, columns)
    if data.size <= limits.most_cells:  # a cell takes a byte at least
        return
    text = np.frombuffer(data, np.uint8)
    ends = max(count_bytes(text, b"\n"), count_bytes(text, b"\r")) + 1
    cells = min(ends * columns, ends + count_bytes(text, delimiter.encode()))
    limits.check_cells(path, -(-cells // columns), columns)


def count_bytes(text: np.ndarray, one: bytes) -> int:
    """How often a byte is in a text."""
    blocks = (text[start : start + UTF8_BLOCK] for start in range(0, len(text), UTF8_BLOCK))
    return sum(int(np.count_nonzero(block == ord(one))) for block in blocks)


def parse_delimited(
    path: Path, data: pa.Buffer, delimiter: str, types: Mapping[str, pa.DataType] | None = None
) -> pa.Table:
    """Parse with inferred types but for the given ones; rows with a wrong number of cells are an error."""
    import pyarrow.csv as pacsv

    ragged: list[Any] = []  # the first row, and how many there are: each has a copy of its text

    def keep(row: Any) -> str:
        ragged[:] = (ragged[0], ragged[1] + 1) if ragged else (row, 1)
        return "skip" if ragged[1] < COUNTED else "error"

    try:
        table = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=pacsv.ReadOptions(block_size=min(data.size + 1, ONE_BLOCK)),
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=keep),
            convert_options=pacsv.ConvertOptions(
                column_types=types, null_values=list(MISSING_SPELLINGS), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:
        if not ragged:
            raise
    if ragged:
        complain_ragged(path, data, delimiter, *ragged)
    return table


def complain_ragged(path: Path, data: pa.Buffer, delimiter: str, row: Any, count: int) -> None:
    """Rows with too few or too many cells are an error, told with the first of them."""
    expected = row.expected_columns
    line, cells, text = first_ragged(data, delimiter, expected) or (0, row.actual_columns, row.text)
    where = f" in line {line}" if line else ""
    told = f"{count:,} or more" if count == COUNTED else count
    raise PonnError(
        f"{path}: {told} row{'s have' if count > 1 else ' has'} a wrong number of cells. "
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
            told, how = f"Column {name!r}: whole numbers written with leading zeros", "were read as text, like codes."
            notes.append(Note(f"{told} ({pc.sum(zeros)} cells, e.g. {first!r}) {how}", f"{told} {how}"))
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


def plain_texts(table: pa.Table, name: str, notes: list[str]) -> tuple[pa.Table, str, tuple[str, ...]]:
    """Missing values for what is spelled like one, and formulas without the apostrophe that CSV was given for them."""
    names = unquoted_names(table.column_names)
    columns, quoted = [], []
    for column, cells in zip(names, table.columns, strict=True):
        plain, count = unquote(cells)
        columns.append(plain)
        quoted += [f"{column!r} ({count})"] if count else []
    if quoted:
        told = ", ".join(quoted[:SHOWN]) + (", ..." if len(quoted) > SHOWN else "")
        notes.append(f"Texts with an apostrophe before what a spreadsheet would execute were read without it: {told}.")
    return blank_missing(pa.table(columns, names), name, notes)


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
