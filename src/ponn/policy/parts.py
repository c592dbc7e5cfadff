"""A zip of named parts from somebody who may mean harm, unpacked within limits: JSON and arrays, nothing else.

What a file says of its own sizes is never trusted: a part is unpacked no further than somebody asks, and nobody asks
for more than `most_unpacked`. The standard library's `zipfile` reads a directory of any length, knows methods of
compression that have no bounds, and fails in a dozen ways; of the format, a policy file needs what is read here.
"""

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

import numpy as np

from ponn.errors import PonnError, listing

LARGEST = 1 << 30  # bytes that a part may have unpacked: no policy is that large
FREE = 1 << 25  # bytes that any part may have unpacked, however small it is packed
MOST_RATIO = 20  # beyond FREE, the times that a part may be larger unpacked: JSON of policies comes to 3 to 12
CHUNK = 1 << 16  # bytes read from disk at a time
DEEPEST = 64  # lists and objects within each other; a policy has 9
MOST_VALUES = 1 << 22  # in JSON; a value takes up to 80 bytes in memory
MOST_CONTAINERS = 1 << 20  # lists and objects in JSON, which take up to 250 bytes: 1,000 actions x 1,000 features
MOST_LISTED = 16  # parts whose names are told
LONGEST_HEADER = 1 << 20  # bytes of the list of arrays
MOST_DIMENSIONS = 8  # of an array; those of models have 1 or 2


class DamagedError(PonnError):
    """A file that is not what its kind must be; the reason as a part of a sentence."""


def refuse(why: str) -> NoReturn:
    """Raise the error of a damaged file."""
    raise DamagedError(why)


# The zip -------------------------------------------------------------------------------------------------

END, ENTRY, LOCAL = struct.Struct("<4s4H2LH"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
STORED, DEFLATED = 0, 8
ENCRYPTED = 1  # a flag of an entry
LONGEST_COMMENT = 0xFFFF


class Entry(NamedTuple):
    """Where a part is and how it is packed."""

    name: bytes
    method: int
    flags: int
    checksum: int
    packed: int
    start: int  # of its header


class Part:
    """One part of a file, unpacked as far as it is asked for."""

    def __init__(self, file: BinaryIO, entry: Entry, size: int) -> None:
        if entry.flags & ENCRYPTED or entry.method not in (STORED, DEFLATED):
            refuse(f"{told(entry.name)} is encrypted, or packed by another method than deflate")
        self.name, self.file, self.entry = told(entry.name), file, entry
        self.place, self.end = data_place(file, entry, size)
        self.most = most_unpacked(entry.packed)
        self.inflate = zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == DEFLATED else None
        self.unpacked, self.checksum = 0, 0

    def read(self, size: int) -> bytes:
        """Exactly so many bytes more."""
        if self.unpacked + size > self.most:
            self.refuse_size()
        found = self.some(size)
        if len(found) < size:
            refuse(f"{self.name} ends after {self.unpacked:,} bytes, too early")
        return found

    def whole(self) -> bytes:
        """All that it holds, if its checksum is right."""
        found = self.some(self.most)
        self.finish()
        return found

    def refuse_size(self) -> NoReturn:
        """Raise the error of a part that is too large."""
        refuse(
            f"{self.name}, {self.entry.packed:,} bytes, would unpack to more than {self.most:,}: no policy needs that"
        )

    def finish(self) -> None:
        """Raise DamagedError unless the part is over and its checksum is right."""
        if self.some(1):
            self.refuse_size() if self.unpacked > self.most else refuse(f"{self.name} does not end where it should")
        if self.checksum != self.entry.checksum:
            refuse(f"the checksum of {self.name} is wrong")

    def some(self, size: int) -> bytes:
        """Up to so many bytes; fewer where the part ends."""
        found, left = [], size
        while left > 0 and (piece := self.piece(left)):
            found.append(piece)
            left -= len(piece)
        whole = b"".join(found)
        self.unpacked += len(whole)
        self.checksum = zlib.crc32(whole, self.checksum)
        return whole

    def piece(self, most: int) -> bytes:
        """The next bytes, at most so many; none at the end."""
        if self.inflate is None:
            return self.packed(min(most, CHUNK))
        while not self.inflate.eof:
            given = self.inflate.unconsumed_tail or self.packed(CHUNK)
            try:
                found = self.inflate.decompress(given, min(most, CHUNK))
            except zlib.error as error:
                raise DamagedError(f"{self.name} cannot be unpacked ({error})") from error
            if found or not given:
                return found
        return b""

    def packed(self, most: int) -> bytes:
        """The next bytes as they stand in the file."""
        self.file.seek(self.place)
        found = self.file.read(min(most, self.end - self.place))
        self.place += len(found)
        return found


def most_unpacked(packed: int) -> int:
    """How many bytes a part may have unpacked: what any policy may need, or what its own size speaks for."""
    return min(LARGEST, max(FREE, MOST_RATIO * packed))


def told(name: bytes) -> str:
    """A name in a zip for people."""
    return name.decode("utf-8", "backslashreplace")[:100]


def open_parts(file: BinaryIO, names: Sequence[str]) -> dict[str, Part]:
    """The parts of a file, which must be these and no others, each once."""
    size = file.seek(0, os.SEEK_END)
    entries = read_entries(file, size)
    if sorted(told(one.name) for one in entries) != sorted(names):
        refuse(f"it holds {listing(sorted(told(one.name) for one in entries), MOST_LISTED)}")
    return {told(one.name): Part(file, one, size) for one in entries}


def read_entries(file: BinaryIO, size: int) -> list[Entry]:
    """The directory at the end of a zip."""
    tail = read_at(file, max(0, size - END.size - LONGEST_COMMENT), END.size + LONGEST_COMMENT)
    place = tail.rfind(b"PK\5\6")
    if place < 0 or len(tail) < place + END.size:
        refuse("it is no zip, or its end is missing")
    _, disk, first_disk, here, count, length, start, _ = END.unpack_from(tail, place)
    if disk or first_disk or here != count or start + length != size - len(tail) + place:
        refuse("its directory is not where it should be")
    if count > MOST_LISTED or length > CHUNK:
        refuse(f"it holds {count:,} parts")
    return list(listed_entries(read_at(file, start, length), count))


def listed_entries(directory: bytes, count: int) -> "list[Entry]":
    """The entries of a directory."""
    found, place = [], 0
    for _ in range(count):
        if len(directory) < place + ENTRY.size or directory[place : place + 4] != b"PK\1\2":
            refuse("its directory cannot be read")
        fields = ENTRY.unpack_from(directory, place)
        _, _, _, flags, method, _, _, checksum, packed, _, *lengths, _, _, _, _, start = fields
        place += ENTRY.size
        found.append(Entry(directory[place : place + lengths[0]], method, flags, checksum, packed, start))
        place += sum(lengths)
    return found


def data_place(file: BinaryIO, entry: Entry, size: int) -> tuple[int, int]:
    """Where the bytes of a part begin and end."""
    header = read_at(file, entry.start, LOCAL.size)
    if len(header) < LOCAL.size or header[:4] != b"PK\3\4":
        refuse(f"{told(entry.name)} is not where the directory says")
    *_, name, extra = LOCAL.unpack(header)
    start = entry.start + LOCAL.size + name + extra
    if start + entry.packed > size:
        refuse(f"{told(entry.name)} is not whole")
    return start, start + entry.packed


def read_at(file: BinaryIO, place: int, most: int) -> bytes:
    """Up to so many bytes from a place on."""
    file.seek(place)
    return file.read(most)


# JSON ----------------------------------------------------------------------------------------------------


def read_json(content: bytes) -> Any:
    """The value of a JSON text: not too deep, not too much, every number finite, every name in an object once."""
    check_structure(content)
    try:
        return json.loads(
            content.decode(), parse_float=finite, parse_constant=not_finite, object_pairs_hook=each_name_once
        )
    except ValueError as error:
        raise DamagedError(f"its JSON cannot be read ({error})") from error


def check_structure(content: bytes) -> None:
    """Raise DamagedError where the text holds more, or deeper, than can be read safely; before it is read."""
    if b"\\" in content:
        content = content.replace(b"\\\\", b"__").replace(b'\\"', b"__")  # the quotes left are those of texts
    symbols = np.frombuffer(content, np.uint8)
    within = np.cumsum(symbols == ord('"'), dtype=np.uint8) & 1  # sums wrap around, but stay odd or even
    symbols = symbols[within == 0]
    opens, closes = ((symbols == one[0]) | (symbols == one[1]) for one in (b"[{", b"]}"))
    containers, values = int(opens.sum()), int(opens.sum() + (symbols == ord(",")).sum()) + 1
    if containers > MOST_CONTAINERS or values > MOST_VALUES:
        refuse(f"its JSON holds {values:,} values in {containers:,} lists and objects")
    depth = np.cumsum(opens.astype(np.int32) - closes).max(initial=0)
    if depth > DEEPEST:
        refuse(f"its JSON is {depth:,} lists and objects deep; expected at most {DEEPEST}")


def finite(text: str) -> float:
    """A number of JSON."""
    found = float(text)
    return found if math.isfinite(found) else not_finite(text)


def not_finite(text: str) -> NoReturn:
    """Raise the error of a number that is none."""
    refuse(f"its JSON holds {text[:40]}, which is not a finite number")


def each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON."""
    found = dict(pairs)
    if len(found) < len(pairs):
        refuse("its JSON holds an object that names a field twice")
    return found


# Arrays --------------------------------------------------------------------------------------------------

DTYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32}  # of safetensors that models are made of


class ArrayHead(NamedTuple):
    """What is said of an array before it is read."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How many it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_heads(part: Part) -> tuple[dict[str, ArrayHead], dict[str, int]]:
    """The names, types and shapes of the arrays in a part, and where each begins; nothing else is unpacked."""
    (length,) = struct.unpack("<Q", part.read(8))
    if length > LONGEST_HEADER:
        refuse(f"the list of its arrays takes {length:,} bytes; expected at most {LONGEST_HEADER:,}")
    found = read_json(part.read(length))
    if not isinstance(found, dict):
        refuse("the list of its arrays is something else")
    found.pop("__metadata__", None)
    heads, starts = {}, {}
    for name, one in found.items():
        heads[name], starts[name] = array_head(name, one)
    check_places(heads, starts)
    return heads, starts


def array_head(name: str, found: Any) -> tuple[ArrayHead, int]:
    """What is said of one array, and where it begins."""
    given = [found.get(one) if isinstance(found, dict) else None for one in HEAD_FIELDS]
    dtype, shape, places = cast(tuple[Any, Any, Any], given)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        refuse(f"its array {name[:60]!r} is of type {str(dtype)[:20]}; expected one of {', '.join(DTYPES)}")
    if not are_sizes(shape, MOST_DIMENSIONS) or not are_sizes(places, 2) or len(places) != 2:
        refuse(f"its array {name[:60]!r} has no shape and place that can be")
    head = ArrayHead(np.dtype(DTYPES[dtype]), tuple(shape))
    if head.bytes != places[1] - places[0]:
        refuse(f"its array {name[:60]!r} has {places[1] - places[0]:,} bytes; its shape needs {head.bytes:,}")
    return head, places[0]


HEAD_FIELDS = ("dtype", "shape", "data_offsets")


def are_sizes(found: Any, most: int) -> bool:
    """Is it a list of few numbers, none below 0 or beyond all files?"""
    fits = isinstance(found, list) and len(found) <= most
    return fits and all(type(one) is int and 0 <= one <= LARGEST for one in found)


def check_places(heads: Mapping[str, ArrayHead], starts: Mapping[str, int]) -> None:
    """Raise DamagedError unless the arrays stand one behind the other, none in another."""
    place = 0
    for name in sorted(heads, key=lambda name: (starts[name], heads[name].bytes)):
        if starts[name] != place:
            refuse(f"its array {name[:60]!r} does not begin where the one before ends")
        place += heads[name].bytes


def read_arrays(part: Part, heads: Mapping[str, ArrayHead], starts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The arrays whose heads were read, and found to be what is wanted."""
    found = {}
    for name in sorted(heads, key=lambda name: (starts[name], heads[name].bytes)):
        head = heads[name]
        found[name] = np.frombuffer(part.read(head.bytes), head.dtype).reshape(head.shape)
    part.finish()
    return found
