"""Comma and tab separated text: types inferred from every row, every odd cell told or counted."""

import codecs
import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import PonnError
from ponn.tables.source import HEADER_BYTES, UTF8_BLOCK, Source, check_names, line_of, reading, text_buffer

# Spellings that mean "no value" in text files. Not "none": in a column of medications it is an answer.
MISSING_SPELLINGS = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null", ".", "?")
ONE_BLOCK = 64 << 20  # text is parsed in blocks of this size; a row must fit in one


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
