"""Arrow IPC (Feather): the sizes that a file says it has, read and checked before the library believes them.

A message is a length, a flatbuffer with numbers and offsets, and a body of buffers. Of the flatbuffers only the few
fields are read that say how much there is (format/Message.fbs and File.fbs of Arrow).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ponn.tables.limits import USUAL, Limits
from ponn.tables.source import Source, reading

MAGIC = b"ARROW1"
CONTINUED = 0xFFFFFFFF  # before the length of a message, since version 0.15
DICTIONARY, BATCH = 2, 3  # kinds of messages with a body
WHAT = "Feather/Arrow"


def read_arrow(path: Path, limits: Limits = USUAL) -> Source:
    """A Feather or Arrow IPC file, in file or stream format."""
    with reading(path, WHAT):
        check_ipc(path, limits)
        return Source(open_arrow(pa.memory_map(str(path))).read_all(), str(path))


def open_arrow(file: pa.NativeFile) -> Any:
    """A reader of Arrow IPC, in file or stream format."""
    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file)


def check_ipc(path: Path, limits: Limits, piecewise: bool = False) -> None:
    """All that a file says of itself must be possible and within limits; piecewise: of each batch for itself.

    Limits that somebody set hold for the whole file all the same.
    """
    cells = size = 0
    with pa.memory_map(str(path)) as file:
        data = memoryview(file.read_buffer()) if file.size() else memoryview(b"")
        for one in messages(data):
            limits.check_columns(path, one.columns)
            batch = one.unpacked(data)
            cells, size = cells + one.rows * one.columns, size + batch
            held_cells = one.rows * one.columns if piecewise and limits.cells is None else cells
            limits.check_cells(path, -(-held_cells // max(one.columns, 1)), one.columns)
            limits.check_bytes(path, batch if piecewise and limits.bytes is None else size, packed=True)


@dataclass(frozen=True)
class Message:
    """What a record batch or a dictionary says of itself."""

    rows: int
    columns: int  # nested ones too
    buffers: tuple[tuple[int, int], ...]  # place in the file, and length
    compressed: bool

    def unpacked(self, data: memoryview) -> int:
        """Bytes that its buffers take in memory."""
        if not self.compressed:
            return sum(length for _, length in self.buffers)
        said = [struct.unpack_from("<q", data, start)[0] if length >= 8 else 0 for start, length in self.buffers]
        for size in said:
            possible(size >= -1, f"a buffer of {size} bytes")
        packed = [length - 8 for _, length in self.buffers]
        return sum(length if size < 0 else size for size, length in zip(said, packed, strict=True) if length > 0)


def possible(is_so: bool, seen: str) -> None:
    """Refuse what no writer writes."""
    if not is_so:
        raise ValueError(f"it says that it has {seen}")


def messages(data: memoryview) -> Iterator[Message]:
    """The messages with rows, in the order of the file."""
    if bytes(data[:6]) == MAGIC and bytes(data[-6:]) == MAGIC:
        yield from messages_of_file(data)
    else:
        yield from messages_of_stream(data)


def messages_of_stream(data: memoryview) -> Iterator[Message]:
    """The messages of the stream format; what follows the last whole one is for the library to judge."""
    place = 0
    while place + 8 <= len(data):
        start, length = metadata_at(data, place)
        if length <= 0 or start + length > len(data):
            return
        yield from message(data[start : start + length], data, start + length)
        place = start + length + body_length(data[start : start + length])


def messages_of_file(data: memoryview) -> Iterator[Message]:
    """The messages that the footer points at."""
    length = struct.unpack_from("<i", data, len(data) - 10)[0]
    possible(0 < length <= len(data) - 16, f"a footer of {length} bytes")
    footer = root(data[len(data) - 10 - length : len(data) - 10])
    for blocks in (2, 3):
        count, start = footer.vector(blocks, 24)
        for place in range(start, start + 24 * count, 24):
            offset, metadata, body = struct.unpack_from("<qi4xq", footer.data, place)
            inside = 8 <= offset and 8 <= metadata and 0 <= body and offset + metadata + body <= len(data)
            possible(inside, f"a batch of {metadata} and {body} bytes at {offset}")
            begin, held = metadata_at(data, offset)
            possible(0 < held and begin + held <= offset + metadata, f"a message of {held} bytes at {offset}")
            possible(body_length(data[begin : begin + held]) <= body, "a batch that is longer than its place")
            yield from message(data[begin : begin + held], data, offset + metadata)


def metadata_at(data: memoryview, place: int) -> tuple[int, int]:
    """Where the flatbuffer of a message begins, and its length."""
    first, second = struct.unpack_from("<Ii", data, place)
    return (place + 8, second) if first == CONTINUED else (place + 4, struct.unpack_from("<i", data, place)[0])


def body_length(metadata: memoryview) -> int:
    """Bytes after the flatbuffer of a message."""
    length = root(metadata).number(3, "q")
    possible(length >= 0, f"a body of {length} bytes")
    return length


def message(metadata: memoryview, data: memoryview, body: int) -> Iterator[Message]:
    """A message's batch, if it has one."""
    table = root(metadata)
    kind, length = table.number(1, "B"), body_length(metadata)
    if kind not in (DICTIONARY, BATCH):
        return
    possible(body + length <= len(data), f"a body of {length} bytes, more than follow")
    batch = table.table(2).table(1) if kind == DICTIONARY else table.table(2)
    rows = batch.number(0, "q")
    possible(rows >= 0, f"a batch of {rows} rows")
    fields, first = batch.vector(1, 16)
    for place in range(first, first + 16 * fields, 16):
        cells, missing = struct.unpack_from("<qq", batch.data, place)
        possible(0 <= missing <= cells, f"a column of {cells} cells with {missing} missing")
    count, start = batch.vector(2, 16)
    buffers = []
    for place in range(start, start + 16 * count, 16):
        offset, size = struct.unpack_from("<qq", batch.data, place)
        possible(0 <= offset and 0 <= size and offset + size <= length, f"a buffer of {size} bytes at {offset}")
        buffers.append((body + offset, size))
    yield Message(rows, fields, tuple(buffers), batch.place_of(3) is not None)


# Flatbuffers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table of a flatbuffer: its fields lie where its vtable says."""

    data: memoryview
    place: int

    def place_of(self, field: int) -> int | None:
        """Where a field lies; None where it is left out."""
        vtable = self.place - self.unpack("<i", self.place)
        size = self.unpack("<H", vtable)
        if 4 + 2 * field + 2 > size:
            return None
        offset = self.unpack("<H", vtable + 4 + 2 * field)
        return self.place + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        """A whole number; 0 where it is left out."""
        place = self.place_of(field)
        return 0 if place is None else self.unpack(f"<{kind}", place)

    def table(self, field: int) -> "Table":
        """A table within."""
        place = self.place_of(field)
        possible(place is not None, "a message without content")
        assert place is not None
        return Table(self.data, place + self.unpack("<I", place))

    def vector(self, field: int, size: int) -> tuple[int, int]:
        """How many elements of a size a vector has, and where they begin."""
        place = self.place_of(field)
        if place is None:
            return 0, 0
        start = place + self.unpack("<I", place)
        count = self.unpack("<I", start)
        possible(start + 4 + count * size <= len(self.data), f"{count} elements of {size} bytes")
        return count, start + 4

    def unpack(self, kind: str, place: int) -> int:
        """A number at a place, which must be there."""
        possible(0 <= place <= len(self.data) - struct.calcsize(kind), "a field beyond its end")
        return int(struct.unpack_from(kind, self.data, place)[0])


def root(data: memoryview) -> Table:
    """The outermost table of a flatbuffer."""
    return Table(data, Table(data, 0).unpack("<I", 0))
