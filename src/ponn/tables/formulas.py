"""Texts that a spreadsheet would execute: written into CSV with an apostrophe before them, and read without it.

A spreadsheet takes a cell for a formula by its first character, whatever a CSV file quotes; with an apostrophe it is
text (OWASP, "CSV injection"). A text that has apostrophes before such a beginning gets one more, so that reading takes
away exactly what writing added: every text comes back as it was.
"""

import re
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MARK = "'"
# What OWASP names: signs, white space that is cut off before them, and the wide forms of the signs.
BEGINS = r"[=+\-@\t\r\n＝＋－＠]"
FORMULA = f"^'*{BEGINS}"
QUOTED_FORMULA = f"^'+{BEGINS}"
HARMLESS = r"^'*[+-](?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)?$"  # a number, or a sign by itself
FIRST = np.isin(np.arange(256), list("=+-@\t\r\n'＝".encode()))  # first bytes of such texts: of the wide forms 0xef


def quote_table(table: pa.Table) -> tuple[pa.Table, int]:
    """A table whose texts no spreadsheet executes, and how many cells were changed."""
    changed, columns = 0, []
    for column in table.columns:
        quoted, count = quote(column)
        columns.append(quoted)
        changed += count
    return (pa.table(columns, table.schema) if changed else table), changed


def quote(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """A column with an apostrophe before texts that are formulas, and before how many."""
    found = formulas(column, FORMULA)
    if found is None:
        return column, 0
    mark = pa.scalar(MARK, column.type)
    quoted = pc.if_else(found, pc.binary_join_element_wise(mark, column, pa.scalar("", column.type)), column)
    return quoted, pc.sum(found).as_py()


def unquote(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """A column without the apostrophes that `quote` wrote, and how many there were."""
    found = formulas(column, QUOTED_FORMULA)
    if found is None:
        return column, 0
    return pc.if_else(found, pc.utf8_slice_codeunits(column, 1), column), pc.sum(found).as_py()


def formulas(column: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray | None:
    """Which cells are formulas by a pattern and no numbers; None where there are none."""
    if not any(may_begin_formula(chunk) for chunk in column.chunks):
        return None
    found = pc.match_substring_regex(column, pattern)
    found = pc.fill_null(pc.and_not(found, pc.match_substring_regex(column, HARMLESS)), False)
    return found if pc.any(found).as_py() else None


def may_begin_formula(chunk: pa.Array) -> bool:
    """Is there a text that begins with a byte that formulas begin with? A look at first bytes only."""
    width = next((width for is_one, width in WIDTHS if is_one(chunk.type)), None)
    if width is None or not len(chunk) or not (chunk.buffers()[2] and chunk.buffers()[2].size):
        return False
    _, offsets, content = chunk.buffers()
    starts: np.ndarray = np.frombuffer(offsets, width, len(chunk) + 1 + chunk.offset)[chunk.offset :]
    first = starts[:-1][starts[1:] > starts[:-1]]
    return bool(FIRST[np.frombuffer(content, np.uint8)[first]].any())


WIDTHS = (
    (pa.types.is_string, np.int32),
    (pa.types.is_binary, np.int32),
    (pa.types.is_large_string, np.int64),
    (pa.types.is_large_binary, np.int64),
)


def is_formula(text: str, pattern: str = FORMULA) -> bool:
    """The same for one text."""
    return bool(re.match(pattern, text)) and not re.match(HARMLESS.replace("$", r"\Z"), text)


def quoted_names(names: Iterable[str]) -> list[str]:
    """Column names with an apostrophe before those that are formulas."""
    return [MARK + name if is_formula(name) else name for name in names]


def unquoted_names(names: Iterable[str]) -> list[str]:
    """Column names without the apostrophes that `quoted_names` wrote."""
    return [name[1:] if is_formula(name, QUOTED_FORMULA) else name for name in names]
