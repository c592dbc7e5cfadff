"""A table of past decisions becomes a log, wherever its rows are: in memory where they fit, else where they are.

A directory of Parquet files with at most SMALL_BYTES of data is read into memory, unless an engine is named; a larger
one stays on disk. Everything else is read into memory.
"""

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ponn.engine.choice import EngineName, passes_of
from ponn.errors import PonnError
from ponn.log import draft
from ponn.log.log import Log
from ponn.log.sharded import ShardedLog, read_sharded
from ponn.log.shards import directory_digest, find_pieces, unpacked_bytes
from ponn.log.spark import is_frame, read_frame
from ponn.tables.remote import is_folder, is_uri, place_of

SMALL_BYTES = 64 << 20  # learning takes about ten times the bytes of its rows


def read_log(
    source: Any, *, lazy: bool | None = None, engine: EngineName = None, progress: Any = None, **columns: Any
) -> Log | ShardedLog:
    """Read a table of past decisions and validate it.

    Parameters
    ----------
    source
        A path (.csv, .tsv, .parquet, .feather, .arrow, .jsonl; text also gzipped), a directory of Parquet files, a URI
        of such a directory, a pandas, polars or pyarrow table, a duckdb relation, a dict of columns, or a Spark
        DataFrame.
    lazy
        Whether a directory of Parquet files stays on disk, looked at by one pass. By default it does where it is large
        or an engine is named.
    engine
        Who makes that pass: "local" (default), "ray", "spark", or an engine made beforehand.
    progress
        A function that is called with what is being done.
    columns
        Keywords that say what the columns are. `action` and `reward` must be given. `propensity`: the probability of
        the logged action, may be empty in some rows. `features`: default every column without another role. `ignore`:
        columns that are no features. `group`: rows of one group stay together in every split. `time`: split by time.
        `weight`: row weights. `minimize=True`: a small outcome is good. `reward_range`: default the observed range.
        `drop_missing=True`: leave out, and count, rows without action or reward. `eligible`: a column that names the
        actions available in each row. `rules`: where an action is not available, e.g. "CAF if age >= 70".
        `drop_ineligible=True`: leave out, and count, rows whose logged action was not eligible. `keep`: columns to
        make subgroups by that are no features.

    Returns
    -------
    Log | ShardedLog
        The log, in memory or on disk.

    Raises
    ------
    LogError
        Where the table cannot be learned from, with what was seen and what to do.

    Examples
    --------
    >>> import ponn
    >>> table = {"age": [34, 61, 45, 70], "drug": ["a", "b", "b", "a"], "better": [1, 0, 1, 0]}
    >>> log = ponn.read_log(table, action="drug", reward="better")
    >>> log
    Log(4 rows, 2 actions, 1 features)
    >>> log.actions
    ('a', 'b')
    """
    if is_frame(source):
        with passes_of(engine, progress, "read", str(source), plain_columns(columns)) as passes:
            return read_frame(source, passes, **plain_columns(columns))
    if is_uri(source) and (lazy is False or not is_directory(source)):
        raise PonnError(
            f"{source} is not a folder of Parquet files that can stay where it is: expected the URI of a folder, and "
            "not lazy=False. Copy other files to this machine."
        )
    source = place_of(source) if isinstance(source, str) and source.startswith("file://") else source
    if lazy and not is_directory(source):
        raise PonnError(f"lazy=True is for directories of Parquet files; {str(source)[:80]!r} is read into memory.")
    if not is_directory(source) or lazy is False or (lazy is None and engine is None and not is_large(source)):
        return as_directory(draft.read_log(source, **columns), source)
    with passes_of(engine, progress, "read", str(source), plain_columns(columns)) as passes:
        return read_sharded(source, passes, **plain_columns(columns))


def plain_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `read_log` with every default filled in."""
    given = inspect.signature(draft.read_log).bind("", **columns)
    given.apply_defaults()
    found = {name: value for name, value in given.arguments.items() if name not in ("source", "keep")}
    if given.arguments["keep"]:
        raise PonnError(
            "Subgroups (keep; --by) are known only of logs in memory: read the directory with lazy=False, without "
            "naming an engine."
        )
    return found


def is_directory(source: Any) -> bool:
    """Is it the path of a directory? What cannot be opened is none; the readers say what is wrong with it."""
    if is_uri(source):
        return is_folder(source)
    try:
        found = place_of(source) if isinstance(source, str | os.PathLike) else None
        return isinstance(found, Path) and found != Path() and found.is_dir()
    except (OSError, ValueError):
        return False


def is_large(source: Any) -> bool:
    """Is it a directory elsewhere, or with more data than should be in memory?"""
    return is_directory(source) and (is_uri(source) or unpacked_bytes(find_pieces(place_of(source))) > SMALL_BYTES)


def as_directory(found: Log, source: Any) -> Log:
    """The log, which is known by its directory where it comes from one."""
    return replace(found, directory=directory_digest(place_of(source))) if is_directory(source) else found
