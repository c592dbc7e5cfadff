"""Where a table comes from, and text files as checked bytes."""

import codecs
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ponn.errors import PonnError, listing, one_line
from ponn.tables.limits import USUAL, Limits

UTF8_BLOCK = 16 << 20
HEADER_BYTES = 1 << 20  # where the header line of a text file is looked for
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


def check_names(source: str, names: Iterable[Any]) -> None:
    """Column names must differ."""
    twice = sorted(str(name) for name, count in Counter(names).items() if count > 1)
    if twice:
        raise PonnError(
            f"{source} has several columns named {listing(twice)}. "
            "Every column needs a name of its own: rename or remove the copies."
        )


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turn whatever a reader raises into one clear error."""
    try:
        yield
    except PonnError:
        raise
    except MemoryError as error:  # Arrow's too
        raise PonnError(
            f"{path} takes more memory than there is, or says so: {one_line(error)}. Is the file damaged? "
            "Otherwise use it in parts, or as a directory of Parquet files."
        ) from error
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        EOFError,
        KeyError,
        TypeError,
        OverflowError,
        struct.error,
    ) as error:
        raise PonnError(
            f"{path} could not be read as {what}: {one_line(error)}. "
            "Is the file complete, and does its ending match its content?"
        ) from error


def text_buffer(path: Path, limits: Limits = USUAL) -> pa.Buffer:
    """The bytes of a text file, decompressed when its ending says so; checked to be UTF-8 text."""
    if compression_of(path) is None:
        limits.check_bytes(path, path.stat().st_size)
        with pa.OSFile(str(path)) as file:
            data = file.read_buffer()
    else:
        with pa.BufferOutputStream() as sink:
            for block in unpacked(path, UTF8_BLOCK):
                limits.check_bytes(path, sink.tell() + len(block), packed=True)
                sink.write(block)
            data = sink.getvalue()
    if data.size < HEADER_BYTES and not bytes(data).strip():
        raise PonnError(f"{path} is empty. Expected a line of column names and rows below it.")
    check_utf8(path, memoryview(data).cast("B"))
    return data


def compression_of(path: Path) -> str | None:
    """How a text file is compressed, by its ending."""
    return COMPRESSIONS.get(path.suffix.lower())


def unpacked(path: Path, size: int) -> Iterator[bytes]:
    """A text file in blocks of this size, decompressed when its ending says so."""
    with pa.input_stream(str(path), compression=compression_of(path)) as stream:
        while block := stream.read(size):
            yield block


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
