"""How much a table may hold: asked before anything is built of it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ponn.errors import LimitError

try:
    import resource
except ImportError:  # on Windows a process has no such limits
    resource = None  # type: ignore[assignment]

# Columns of a table whose limits nobody set. Arrow takes some kB for each, and ten times that while it parses text.
MOST_COLUMNS = 50_000
CELL_BYTES = 8  # of a number; what a text takes more than that is counted as bytes
CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Limits:
    """What is read of one source. None: as much as half of this process's memory holds, or in a stream a piece of it.

    columns: of the table, and of every object in JSON. cells: rows times columns. bytes: of text after decompression,
    of other formats as they are in memory.
    """

    columns: int = MOST_COLUMNS
    cells: int | None = None
    bytes: int | None = None

    @property
    def most_cells(self) -> int:
        """How many cells may be in memory."""
        return memory_there() // 2 // CELL_BYTES if self.cells is None else self.cells

    @property
    def most_bytes(self) -> int:
        """How many bytes may be in memory."""
        return memory_there() // 2 if self.bytes is None else self.bytes

    def check_columns(self, name: object, count: int) -> None:
        """Refuse a table with too many columns."""
        if count > self.columns:
            raise LimitError(
                f"{name} has {count:,} columns or more; at most {self.columns:,} are read. "
                "Is the separator right? Leave out columns that are not needed."
            )

    def check_cells(self, name: object, rows: int, columns: int) -> None:
        """Refuse a table with too many cells."""
        if rows * columns > self.most_cells:
            raise LimitError(
                f"{name} has about {rows:,} rows of {columns:,} columns; {self.most_cells:,} cells "
                f"{self.why(self.cells)}. Leave out columns that are not needed, or use it in parts."
            )

    def check_bytes(self, name: object, count: int, packed: bool = False) -> None:
        """Refuse a table that takes too many bytes."""
        if count > self.most_bytes:
            takes = "unpacks to" if packed else "takes"
            raise LimitError(
                f"{name} {takes} {in_words(count)} or more; {in_words(self.most_bytes)} {self.why(self.bytes)}. "
                "Use it in parts, or as a directory of Parquet files."
            )

    @staticmethod
    def why(limit: int | None) -> str:
        """Where a limit comes from."""
        return "are what fits into memory" if limit is None else "are the most that is read here"


USUAL = Limits()  # of files that their owner reads


def in_words(count: int) -> str:
    """A number of bytes in a unit that fits it."""
    unit = next((one for one in (30, 20, 10) if count >= 1 << one), 0)
    return f"{count / (1 << unit):,.3g} {({30: 'GB', 20: 'MB', 10: 'kB', 0: 'bytes'})[unit]}"


def memory_there() -> int:
    """Bytes that this process may take: of the machine, less where it or its group is limited."""
    given = machine_memory()
    if resource is None:
        return given
    soft = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return least(given, (one for one in soft if one != resource.RLIM_INFINITY))


@cache
def machine_memory() -> int:
    """Bytes of memory of this machine, or of the group of processes that this one is in."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not told there
        whole = 1 << 40
    try:
        group = CONTROL_GROUP.read_text().strip()
    except OSError:
        group = "max"
    return least(whole, [int(group)] if group.isdigit() else [])


def least(first: int, others: Iterable[int]) -> int:
    """The least of some numbers."""
    return min([first, *others])
