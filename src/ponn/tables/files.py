"""Files by their ending: which reader or writer a path gets, and what can go wrong with each."""

import difflib
import json
import os
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
from ponn.tables.formulas import quote_table, quoted_names
from ponn.tables.ipc import read_arrow
from ponn.tables.jsonlines import read_json_lines
from ponn.tables.limits import USUAL, Limits
from ponn.tables.parquet import check_parquet, open_parquet, read_parquet, whole_table
from ponn.tables.remote import Place, files_below, is_uri, located
from ponn.tables.source import COMPRESSIONS, Source, check_names, reading


def read_path(path: Path, limits: Limits = USUAL) -> Source:
    """Read a file by its ending, or a directory of Parquet files."""
    check_exists(path)
    if path.is_dir():
        with reading(path, "a directory of Parquet files"):
            return Source(read_parquet_directory(path, limits), str(path))
    return READERS[format_of(path)](path, limits)


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


def read_parquet_directory(path: Path, limits: Limits = USUAL) -> pa.Table:
    """All Parquet files below a directory in order of their names; `key=value` folders become columns."""
    parts = parquet_parts(path)
    check_parquet(path, [part.file for part in parts], limits)
    return pa.concat_tables(part.complete(whole_table(part.file, limits)) for part in parts)


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
    with reading(path, "Parquet"), open_parquet(path) as file:
        return file.schema_arrow


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


READERS: dict[str, Callable[[Path, Limits], Source]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".feather": read_arrow,
    ".arrow": read_arrow,
    ".jsonl": read_json_lines,
}


# Writing -------------------------------------------------------------------------------------------------

Write = Callable[[pa.Table], None]


@dataclass
class Writer:
    """Appends tables to a file, and counts the cells that were changed so that no spreadsheet executes them."""

    write: Write
    quoted: int = 0

    def __call__(self, table: pa.Table) -> None:
        """Append a table."""
        self.write(table)


def write_table(table: pa.Table, path: Path, *, formulas: bool = False) -> int:
    """Write a table in the format of the path's ending, whole or not at all; how many formulas were made texts."""
    with writing(path, table.schema, formulas=formulas) as write:
        write(table)
    return write.quoted


@contextmanager
def writing(path: Path, schema: pa.Schema, *, private: bool = False, formulas: bool = False) -> Iterator[Writer]:
    """A function that appends tables to a file in the format of its ending; the file appears complete or never.

    private: may only its owner read it? formulas: may texts in CSV and TSV be what a spreadsheet executes? Otherwise
    they get an apostrophe, which `read_log` and all our readers take away again.
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
            writer(sink, schema, formulas) as write,
        ):
            yield write
    except (OSError, pa.ArrowException) as error:
        raise PonnError(f"{path} could not be written: {one_line(error)}.") from error


@contextmanager
def csv_writer(sink: Any, schema: pa.Schema, formulas: bool = False, delimiter: str = ",") -> Iterator[Writer]:
    """Delimited text with a header."""
    import pyarrow.csv as pacsv

    names = schema.names if formulas else quoted_names(schema.names)
    shown = pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
    options = pacsv.WriteOptions(delimiter=delimiter)
    with pacsv.CSVWriter(sink, shown, write_options=options) as writer:

        def write(table: pa.Table) -> None:
            quoted, count = (table, 0) if formulas else quote_table(table)
            writer.write_table(quoted.rename_columns(names))
            made.quoted += count

        made = Writer(write, sum(name != one for name, one in zip(schema.names, names, strict=True)))
        yield made


def tsv_writer(sink: Any, schema: pa.Schema, formulas: bool = False) -> AbstractContextManager[Writer]:
    """Tab separated text."""
    return csv_writer(sink, schema, formulas, "\t")


@contextmanager
def parquet_writer(sink: Any, schema: pa.Schema, _formulas: bool = False) -> Iterator[Writer]:
    """Parquet; tables are gathered into row groups of a usual size."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:

        def write(table: pa.Table) -> None:
            for batch in table.to_batches():
                writer.write_batch(batch)

        yield Writer(write)


@contextmanager
def arrow_writer(sink: Any, schema: pa.Schema, _formulas: bool = False) -> Iterator[Writer]:
    """Arrow IPC file, which is also what Feather is."""
    with pa.ipc.new_file(sink, schema) as writer:
        yield Writer(writer.write_table)


@contextmanager
def json_lines_writer(sink: Any, _schema: pa.Schema, _formulas: bool = False) -> Iterator[Writer]:
    """One JSON object per row."""

    def write(table: pa.Table) -> None:
        for batch in table.to_batches():
            for row in batch.to_pylist():
                sink.write(json.dumps(row, default=str).encode() + b"\n")

    yield Writer(write)


WRITERS: dict[str, Callable[[Any, pa.Schema, bool], AbstractContextManager[Writer]]] = {
    ".csv": csv_writer,
    ".tsv": tsv_writer,
    ".parquet": parquet_writer,
    ".feather": arrow_writer,
    ".arrow": arrow_writer,
    ".jsonl": json_lines_writer,
}
