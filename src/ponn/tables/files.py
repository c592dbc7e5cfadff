"""Files by their ending: which reader or writer a path gets, and what can go wrong with each."""

import difflib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from ponn.errors import PonnError, listing, one_line
from ponn.storage import replacing
from ponn.tables.delimited import read_csv, read_tsv
from ponn.tables.remote import Place, files_below, is_uri, located, openable
from ponn.tables.source import COMPRESSIONS, Source, check_names, reading, text_buffer

JSON_BLOCK = 1 << 30  # JSON lines up to this size are parsed as one block, so that types come from every row


def read_path(path: Path) -> Source:
    """Read a file by its ending, or a directory of Parquet files."""
    check_exists(path)
    if path.is_dir():
        with reading(path, "a directory of Parquet files"):
            return Source(read_parquet_directory(path), str(path))
    return READERS[format_of(path)](path)


def check_exists(path: Path) -> None:
    """Raise PonnError unless there is something at this path."""
    if path == Path():
        raise PonnError("The path of the log is empty: give the name of a file, or of a directory of Parquet files.")
    if not exists(path):
        near = difflib.get_close_matches(path.name, siblings(path), n=3)
        hint = f" Did you mean {listing(near)}?" if near else ""
        raise PonnError(f"There is no file {path}.{hint}")


def format_of(path: Path) -> str:
    """The ending of a file that says its format."""
    name = Path(path.name.lower())
    ending = name.with_suffix("").suffix if name.suffix in COMPRESSIONS else name.suffix
    if ending not in READERS:
        raise PonnError(
            f"{path} has an ending that is not known. Expected one of {', '.join(READERS)} "
            "(text files also with .gz), or a directory of Parquet files."
        )
    if not path.is_file():
        raise PonnError(f"{path} is neither a file nor a directory: copy its content into a file.")
    return ending


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
    import pyarrow.parquet as pq

    parts = parquet_parts(path)
    return pa.concat_tables(part.complete(pq.ParquetFile(part.file, memory_map=True).read()) for part in parts)


@dataclass(frozen=True)
class Part:
    """One Parquet file of a directory, and the columns that its folders stand for."""

    file: Place
    folders: dict[str, pa.Scalar]

    def complete(self, table: pa.Table) -> pa.Table:
        """A table of this file with the columns of its folders."""
        for name, value in self.folders.items():
            table = table.append_column(name, pa.repeat(value, len(table)))
        return table


def parquet_parts(path: Place) -> list[Part]:
    """The Parquet files below a directory in order of their names, if their columns agree."""
    import pyarrow.dataset as ds

    files = parquet_files(path)
    if not files:
        raise PonnError(f"{path} is a directory without *.parquet files.")
    first = read_schema(files[0])
    for file in files[1:]:
        compare_schemas(files[0], first, file, read_schema(file))
    hive = ds.partitioning(flavor="hive")
    system, base = located(str(path)) if is_uri(path) else (None, str(path))
    names = [located(str(file))[1] if is_uri(file) else str(file) for file in files]
    dataset = ds.dataset(names, format="parquet", partitioning=hive, partition_base_dir=base, filesystem=system)
    types = {field.name: field.type for field in dataset.schema if field.name not in first.names}
    return [Part(file, folders_of(one, types)) for file, one in zip(files, dataset.get_fragments(), strict=True)]


def parquet_files(path: Place) -> list[Place]:
    """The Parquet files below a directory, in order, without those that writers use for themselves."""
    if isinstance(path, str):
        start = len(urlsplit(path).path.rstrip("/")) + 1
        below = {file: Path(urlsplit(file).path[start:]) for file in files_below(path)}
        return [file for file, name in below.items() if name.suffix == ".parquet" and not hidden(name)]
    found = (file for file in path.rglob("*.parquet") if file.is_file())
    return sorted(file for file in found if not hidden(file.relative_to(path)))


def folders_of(fragment: Any, types: dict[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """The value of every column that stands in folders' names; missing where a file is in no such folder."""
    import pyarrow.dataset as ds

    values = ds.get_partition_keys(fragment.partition_expression)
    return {name: pa.scalar(values.get(name), type) for name, type in types.items()}


def hidden(path: Path) -> bool:
    """Files and folders that writers use for themselves, such as _temporary or .crc."""
    return any(part.startswith((".", "_")) for part in path.parts)


def read_schema(path: Place) -> pa.Schema:
    """The schema of one Parquet file."""
    import pyarrow.parquet as pq

    with reading(path, "Parquet"):
        return pq.read_schema(openable(path))


def compare_schemas(first: Place, expected: pa.Schema, path: Place, seen: pa.Schema) -> None:
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
        return Source(open_arrow(pa.memory_map(str(path))).read_all(), str(path))


def open_arrow(file: pa.NativeFile) -> Any:
    """A reader of Arrow IPC, in file or stream format."""
    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file)


def read_json_lines(path: Path) -> Source:
    """One JSON object per line."""
    with reading(path, JSON_LINES):
        return Source(parse_json_lines(path, text_buffer(path)), str(path))


def parse_json_lines(path: Path, data: pa.Buffer, before: int = 0) -> pa.Table:
    """Rows of a JSON lines file, `before` of which came earlier; types come from all these rows."""
    import pyarrow.json as paj

    try:
        options = paj.ReadOptions(block_size=min(data.size + 1, JSON_BLOCK))
        return paj.read_json(pa.BufferReader(data), read_options=options)
    except pa.ArrowInvalid as error:
        raise PonnError(wrong_json(path, one_line(error), before)) from error


JSON_LINES = "JSON lines (one object per line)"
JSON_TYPES = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+) in row (\d+)")
JSON_ROW = re.compile(r" in row (\d+)$")


def wrong_json(path: Path, reason: str, before: int) -> str:
    """What is wrong with a JSON lines file; Arrow counts rows from 0, after those that were read before."""
    if types := JSON_TYPES.search(reason):
        column, first, then, row = types[1], types[2], types[3], before + int(types[4]) + 1
        if not column:
            return f"{path}: row {row} is a JSON {then}; expected JSON lines, one object {{...}} per line."
        return f"{path}: column {column!r} holds a {first} and, in row {row}, a {then}. Give it one type everywhere."
    where = JSON_ROW.search(reason)
    told = JSON_ROW.sub("", reason).removesuffix(".") + (f" in row {before + int(where[1]) + 1}" if where else "")
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

Write = Callable[[pa.Table], None]


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table in the format of the path's ending, whole or not at all."""
    with writing(path, table.schema) as write:
        write(table)


@contextmanager
def writing(path: Path, schema: pa.Schema, *, private: bool = False) -> Iterator[Write]:
    """A function that appends tables to a file in the format of its ending; the file appears complete or never.

    private: may only its owner read it?
    """
    name = path.name.lower()
    writer = WRITERS.get(Path(name.removesuffix(".gz")).suffix)
    if writer is None:
        raise PonnError(f"{path} has an ending that is not known; expected one of {', '.join(WRITERS)}.")
    if not path.parent.is_dir():
        raise PonnError(f"There is no folder {path.parent} to write {path.name} into.")
    try:
        with (
            replacing(path, private=private) as file,
            pa.output_stream(file, compression="gzip" if name.endswith(".gz") else None) as sink,
            writer(sink, schema) as write,
        ):
            yield write
    except (OSError, pa.ArrowException) as error:
        raise PonnError(f"{path} could not be written: {one_line(error)}.") from error


@contextmanager
def csv_writer(sink: Any, schema: pa.Schema, delimiter: str = ",") -> Iterator[Write]:
    """Delimited text with a header."""
    import pyarrow.csv as pacsv

    with pacsv.CSVWriter(sink, schema, write_options=pacsv.WriteOptions(delimiter=delimiter)) as writer:
        yield writer.write_table


def tsv_writer(sink: Any, schema: pa.Schema) -> AbstractContextManager[Write]:
    """Tab separated text."""
    return csv_writer(sink, schema, "\t")


@contextmanager
def parquet_writer(sink: Any, schema: pa.Schema) -> Iterator[Write]:
    """Parquet; tables are gathered into row groups of a usual size."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:

        def write(table: pa.Table) -> None:
            for batch in table.to_batches():
                writer.write_batch(batch)

        yield write


@contextmanager
def arrow_writer(sink: Any, schema: pa.Schema) -> Iterator[Write]:
    """Arrow IPC file, which is also what Feather is."""
    with pa.ipc.new_file(sink, schema) as writer:
        yield writer.write_table


@contextmanager
def json_lines_writer(sink: Any, _schema: pa.Schema) -> Iterator[Write]:
    """One JSON object per row."""

    def write(table: pa.Table) -> None:
        for batch in table.to_batches():
            for row in batch.to_pylist():
                sink.write(json.dumps(row, default=str).encode() + b"\n")

    yield write


WRITERS: dict[str, Callable[[Any, pa.Schema], AbstractContextManager[Write]]] = {
    ".csv": csv_writer,
    ".tsv": tsv_writer,
    ".parquet": parquet_writer,
    ".feather": arrow_writer,
    ".arrow": arrow_writer,
    ".jsonl": json_lines_writer,
}
