"""Files by their ending: which reader or writer a path gets, and what can go wrong with each."""

import difflib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ponn.delimited import read_csv, read_tsv
from ponn.errors import PonnError, listing, one_line
from ponn.source import COMPRESSIONS, Source, check_names, reading, text_buffer

JSON_BLOCK = 1 << 30  # JSON lines up to this size are parsed as one block, so that types come from every row


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


READERS: dict[str, Callable[[Path], Source]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".feather": read_arrow,
    ".arrow": read_arrow,
    ".jsonl": read_json_lines,
}


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
