"""JSON lines: looked through before Arrow's parser sees them, which ends the process on some of them.

It falls on a first `null` and on deep nesting, and makes a column of every key, whether one row has it or all.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError, one_line
from ponn.tables.limits import USUAL, Limits
from ponn.tables.source import Source, reading, text_buffer

JSON_LINES = "JSON lines (one object per line)"
JSON_BLOCK = 1 << 30  # JSON lines up to this size are parsed as one block, so that types come from every row
DEEPEST = 32  # objects and lists within each other; Arrow's parser and types are recursive, and a cell is no document
LOOKED_AT = 4 << 20  # bytes looked through at a time
LONGEST_LINE = 16 << 20  # bytes
HASHED = 256  # bytes; longer keys are compared as they are
KINDS = {b"n": "null", b"t": "boolean", b"f": "boolean", b'"': "string", b"[": "array"}  # else it is a number


def read_json_lines(path: Path, limits: Limits = USUAL) -> Source:
    """One JSON object per line."""
    with reading(path, JSON_LINES):
        data = text_buffer(path, limits)
        check_json(path, data, limits)
        return Source(parse_json_lines(path, data), str(path))


def parse_json_lines(path: Path, data: pa.Buffer, before: int = 0) -> pa.Table:
    """Rows of a JSON lines file, `before` of which came earlier; types come from all these rows."""
    import pyarrow.json as paj

    try:
        options = paj.ReadOptions(block_size=min(data.size + 1, JSON_BLOCK))
        return paj.read_json(pa.BufferReader(data), read_options=options)
    except pa.ArrowInvalid as error:
        raise PonnError(wrong_json(path, one_line(error), before)) from error


JSON_TYPES = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+) in row (\d+)")
JSON_ROW = re.compile(r" in row (\d+)$")


def wrong_json(path: Path, reason: str, before: int) -> str:
    """What is wrong with a JSON lines file; Arrow counts rows from 0, after those that were read before."""
    if types := JSON_TYPES.search(reason):
        column, first, then, row = types[1], types[2], types[3], before + int(types[4]) + 1
        if not column:
            return no_object(path, row, then)
        return f"{path}: column {column!r} holds a {first} and, in row {row}, a {then}. Give it one type everywhere."
    where = JSON_ROW.search(reason)
    told = JSON_ROW.sub("", reason).removesuffix(".") + (f" in row {before + int(where[1]) + 1}" if where else "")
    return f"{path} could not be read as JSON lines: {told}. Expected one complete JSON object per line."


def no_object(path: Path, row: int, kind: str) -> str:
    """What to say of a row that is another JSON value."""
    return f"{path}: row {row} is a JSON {kind}; expected JSON lines, one object {{...}} per line."


# Looking through -----------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What was seen of a JSON text so far."""

    rows: int = 0
    depth: int = 0
    quoted: bool = False  # within quotation marks?
    keys: set[Any] = field(default_factory=set)  # of objects at any depth: their hashes, or themselves
    keys_below: int = 0  # keys in objects that are in others, counted as often as they come


def check_json(path: Path, data: pa.Buffer, limits: Limits, before: int = 0) -> None:
    """Nothing but objects one after the other, none too deep, with neither too many keys nor too many cells."""
    seen = Seen()
    text = np.frombuffer(data, np.uint8)
    rng = np.random.default_rng()  # unknown to whoever makes keys that shall look alike
    weights = rng.integers(0, 2**64, HASHED, dtype=np.uint64) | np.uint64(1)
    for block in blocks_of(text):
        if len(block) > LONGEST_LINE:
            raise PonnError(
                f"{path}: a line has {len(block) >> 20} MB, beginning with {block[:40].tobytes()!r}; expected one "
                f"object per line, of at most {LONGEST_LINE >> 20} MB."
            )
        look_through(path, block, seen, before, weights)
        limits.check_columns(path, len(seen.keys))
    columns = len(seen.keys)
    if seen.keys_below and seen.rows * (columns + seen.keys_below) > limits.most_cells:
        columns = count_paths(path, bytes(text), limits)
    limits.check_cells(path, seen.rows, columns)


def blocks_of(text: np.ndarray) -> Iterator[np.ndarray]:
    """A text in blocks that end where a line does, if one does."""
    start = 3 if text[:3].tobytes() == b"\xef\xbb\xbf" else 0
    while start < len(text):
        part = text[start : start + LOOKED_AT]
        if start + len(part) < len(text):
            part = text[start : line_end(text, start)]
        yield part
        start += len(part)


def line_end(text: np.ndarray, start: int) -> int:
    """Where the last line ends that begins in a block, or the first one that ends after it."""
    stop = start + LOOKED_AT
    found = text[start:stop].tobytes().rfind(b"\n")
    while found < 0 and stop < len(text):
        found = text[stop : stop + LOOKED_AT].tobytes().find(b"\n")
        start, stop = stop, stop + LOOKED_AT
    return start + found + 1 if found >= 0 else len(text)


def look_through(path: Path, text: np.ndarray, seen: Seen, before: int, weights: np.ndarray) -> None:
    """Count rows, depth and keys of a block."""
    quotes = quotation_marks(text)
    brackets = outside(np.flatnonzero(is_bracket(text)), quotes, seen.quoted)
    opens = (text[brackets] & 0x02) != 0  # of [{ and ]}, by their codes
    depth = seen.depth + np.cumsum(np.where(opens, 1, -1))
    check_top(path, text, brackets, depth, seen, before)
    if len(depth) and depth.max() > DEEPEST:
        row = before + seen.rows + int(np.count_nonzero(depth[: depth.argmax()] == 0)) + 1
        raise PonnError(
            f"{path}: row {row} nests objects or lists more than {DEEPEST} deep. Expected one plain object per line."
        )
    below = opens & (text[brackets] == ord("{")) & (depth > 1)
    found = count_keys(text, quotes, seen, weights)
    seen.keys_below += found if below.any() else 0
    seen.rows += int(np.count_nonzero(depth == 0))
    seen.depth = int(depth[-1]) if len(depth) else seen.depth
    seen.quoted ^= bool(len(quotes) % 2)


def is_bracket(text: np.ndarray) -> np.ndarray:
    """Which bytes are brackets or braces."""
    code = text & 0xDF  # braces are 32 above brackets
    return (code == ord("[")) | (code == ord("]"))


def quotation_marks(text: np.ndarray) -> np.ndarray:
    """The places of marks that open or close a text: those before which there is no odd number of backslashes."""
    quotes = np.flatnonzero(text == ord('"'))
    before = np.where(quotes > 0, text[np.maximum(quotes - 1, 0)] == ord("\\"), False)
    if not before.any():
        return quotes
    slashes = text == ord("\\")
    starts = np.flatnonzero(np.diff(slashes, prepend=False) & slashes)  # of runs of backslashes
    after = quotes[before]
    odd = (after - starts[np.searchsorted(starts, after) - 1]) % 2 == 1
    before[before] = odd
    return quotes[~before]


def outside(places: np.ndarray, quotes: np.ndarray, quoted: bool) -> np.ndarray:
    """Those places that are not within quotation marks."""
    return places[np.searchsorted(quotes, places) % 2 == int(quoted)]


def check_top(path: Path, text: np.ndarray, brackets: np.ndarray, depth: np.ndarray, seen: Seen, before: int) -> None:
    """Between objects there is nothing but space, and there are only objects."""
    top = depth == 0
    wrong = np.flatnonzero((depth == 1) & (text[brackets] == ord("[")))
    stops = np.append(brackets, len(text))
    starts = np.flatnonzero(np.append(seen.depth == 0 and not seen.quoted, top))  # gaps, by the bracket that ends them
    begins = np.append(0, brackets + 1)[starts]
    ends = stops[starts]
    simple = (ends - begins == 1) & (text[np.minimum(begins, len(text) - 1)] <= ord(" "))
    for gap in np.flatnonzero((ends > begins) & ~simple):
        held = text[begins[gap] : ends[gap]].tobytes().strip()
        if held:
            row = before + seen.rows + int(np.count_nonzero(top[: starts[gap]])) + 1
            if held[:1] in b"}],":
                raise PonnError(wrong_json(path, f"There is {held[:20].decode(errors='replace')!r} between objects", 0))
            raise PonnError(no_object(path, row, KINDS.get(held[:1], "number")))
    lists = [one for one in wrong if (one == 0 and seen.depth == 0) or (one > 0 and depth[one - 1] == 0)]
    if lists:
        raise PonnError(no_object(path, before + seen.rows + int(np.count_nonzero(top[: lists[0]])) + 1, "array"))
    if len(depth) and depth.min() < 0:
        raise PonnError(wrong_json(path, "An object is closed that was not opened", before))


def count_keys(text: np.ndarray, quotes: np.ndarray, seen: Seen, weights: np.ndarray) -> int:
    """Add the keys of a block to those seen, and count them."""
    marks = quotes[1:] if seen.quoted else quotes
    opening, closing = marks[: len(marks) // 2 * 2 : 2], marks[1::2]
    after = next_visible(text, closing + 1)
    is_key = text[np.minimum(after, len(text) - 1)] == ord(":")
    opening, closing = opening[is_key] + 1, closing[is_key]
    lengths = closing - opening
    capped = np.minimum(lengths, HASHED + 1).astype(np.uint16)  # sorted by counting, not by comparing
    order = np.argsort(capped, kind="stable")
    starts, ends, capped = opening[order], closing[order], capped[order]
    short = int(np.searchsorted(capped, HASHED, side="right"))
    for length in np.unique(capped[:short]).tolist():
        few = starts[slice(*np.searchsorted(capped, (length, length + 1)))]
        hashes = np.full(len(few), length, np.uint64)
        for place in range(length):
            hashes += text[few + place] * weights[place]
        seen.keys |= set(np.unique(hashes).tolist())
    for start, end in zip(starts[short:].tolist(), ends[short:].tolist(), strict=True):
        seen.keys.add(text[start:end].tobytes())
    return len(opening)


def next_visible(text: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The next places, from some on, that are no space."""
    places = places.copy()
    for _ in range(8):  # usually none; what comes after more of them than this is found one by one
        spaces = text[np.minimum(places, len(text) - 1)] <= ord(" ")
        if not spaces.any():
            return places
        places[spaces] += 1
    visible = np.flatnonzero(text > ord(" "))
    return np.append(visible, len(text))[np.searchsorted(visible, places)]


def count_paths(path: Path, data: bytes, limits: Limits) -> int:
    """How many keys there are, where one in another object is another one."""
    paths: set[tuple[str, ...]] = set()
    decoder = json.JSONDecoder()
    text, place, row = data.decode("utf-8-sig").strip(), 0, 0
    while place < len(text):
        row += 1
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise PonnError(wrong_json(path, f"{one_line(error)} in row {row - 1}", 0)) from error
        add_paths(value, (), paths)
        limits.check_columns(path, len(paths))
        while place < len(text) and text[place] <= " ":
            place += 1
    return len(paths)


def add_paths(value: Any, above: tuple[str, ...], paths: set[tuple[str, ...]]) -> None:
    """Add the paths of a value to others."""
    if isinstance(value, list):
        for one in value:
            add_paths(one, above, paths)
    elif isinstance(value, dict):
        for key, one in value.items():
            paths.add((*above, key))
            add_paths(one, (*above, key), paths)
