"""Broken and hostile tables, each made from a number: a good log in some format, changed in one of many ways."""

import codecs
import gzip
import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

Random = np.random.Generator
ROWS = 48
BOMBS = ("many columns", "many rows", "many columns or rows")  # kinds that are small files of large tables
RARE = 0.2  # of them beside each other kind: they take most of the time
DIRECTORY = "/"  # the ending of a directory of Parquet files


@dataclass(frozen=True)
class Case:
    """A file to be read."""

    kind: str
    ending: str
    data: bytes


def case_of(rng: Random) -> Case:
    """A random case."""
    ending = str(rng.choice(list(FORMATS)))
    kinds = TEXT_KINDS if ending in TEXT else BINARY_KINDS
    share = np.array([RARE if kind in BOMBS else 1.0 for kind in kinds])
    kind = str(rng.choice(list(kinds), p=share / share.sum()))
    return Case(kind, ending, kinds[kind](rng, ending))


def written(case: Case, folder: Path) -> Path:
    """The path of a case's file or directory."""
    path = folder / f"case{case.ending}"
    if case.ending != DIRECTORY:
        path.write_bytes(case.data)
        return path
    path = folder / "case"
    path.mkdir()
    (path / "1.parquet").write_bytes(good(".parquet"))
    (path / "2.parquet").write_bytes(case.data)
    return path


# The good table ------------------------------------------------------------------------------------------


@cache
def good_table() -> pa.Table:
    """A log that is read without a complaint."""
    rng = np.random.default_rng(7)
    cities = ["Rome", "São Paulo", "New, York", 'the "Hague"', "two\nlines", None]
    return pa.table(
        {
            "drug": ["AB"[one] for one in rng.integers(0, 2, ROWS)],
            "days": rng.integers(0, 3, ROWS) / 2,
            "age": rng.integers(20, 40, ROWS),
            "city": [cities[one] for one in rng.integers(0, 6, ROWS)],
            "on": pa.array([19_723 + int(one) for one in rng.integers(0, 28, ROWS)], pa.int32()).cast(pa.date32()),
            "dose": pa.array(["xyz."[one] for one in rng.integers(0, 4, ROWS)]).dictionary_encode(),
        }
    )


def by_csv(table: pa.Table, delimiter: str = ",") -> bytes:
    """Delimited text."""
    sink = io.BytesIO()
    pacsv.write_csv(flat(table), sink, pacsv.WriteOptions(delimiter=delimiter))
    return sink.getvalue()


def flat(table: pa.Table) -> pa.Table:
    """Dictionaries as their values."""
    columns = [one.cast(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in table.columns]
    return pa.table(columns, table.column_names)


def by_json(table: pa.Table) -> bytes:
    """One object per line."""
    return b"".join(json.dumps(row, default=str, ensure_ascii=False).encode() + b"\n" for row in table.to_pylist())


def by_parquet(table: pa.Table, rng: Random | None = None) -> bytes:
    """Parquet with some options."""
    sink = io.BytesIO()
    options = (
        {}
        if rng is None
        else {
            "compression": str(rng.choice(["none", "snappy", "zstd", "gzip", "lz4"])),
            "use_dictionary": bool(rng.integers(2)),
            "data_page_version": str(rng.choice(["1.0", "2.0"])),
            "row_group_size": int(rng.choice([7, 1000])),
            "write_page_index": bool(rng.integers(2)),
        }
    )
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def by_file(table: pa.Table, rng: Random | None = None) -> bytes:
    """Arrow IPC file format."""
    return by_ipc(pa.ipc.new_file, table, rng)


def by_stream(table: pa.Table, rng: Random | None = None) -> bytes:
    """Arrow IPC stream format."""
    return by_ipc(pa.ipc.new_stream, table, rng)


def by_ipc(new: Callable, table: pa.Table, rng: Random | None) -> bytes:
    """Arrow IPC with some options."""
    codec = None if rng is None else [None, None, "lz4", "zstd"][rng.integers(4)]
    rows = 1_000 if rng is None else int(rng.choice([9, 1_000]))
    sink = io.BytesIO()
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


TEXT = {
    ".csv": by_csv,
    ".tsv": lambda table: by_csv(table, "\t"),
    ".csv.gz": lambda table: gzip.compress(by_csv(table), mtime=0),
    ".jsonl": by_json,
}
BINARY = {".parquet": by_parquet, DIRECTORY: by_parquet, ".feather": by_file, ".arrow": by_stream}
FORMATS = {**TEXT, **BINARY}


@cache
def good(ending: str) -> bytes:
    """The good table in a format."""
    return FORMATS[ending](good_table())


# Bytes ---------------------------------------------------------------------------------------------------


def place(data: bytes | bytearray, rng: Random) -> int:
    """A place in some bytes."""
    return int(rng.integers(0, len(data) + 1))


def times(rng: Random) -> range:
    """How often a change is made."""
    return range(int(rng.choice([1, 1, 1, 2, 3, 8])))


def flip(data: bytes, rng: Random) -> bytes:
    """Bits turned over."""
    changed = bytearray(data)
    for _ in times(rng):
        changed[place(data, rng) % len(data)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def replace_bytes(data: bytes, rng: Random) -> bytes:
    """Bytes replaced."""
    changed = bytearray(data)
    for _ in times(rng):
        changed[place(data, rng) % len(data)] = int(rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))]))
    return bytes(changed)


def insert(data: bytes, rng: Random) -> bytes:
    """Bytes put in between."""
    for _ in times(rng):
        start = place(data, rng)
        data = data[:start] + rng.bytes(int(rng.choice([1, 2, 4, 8, 40]))) + data[start:]
    return data


def delete(data: bytes, rng: Random) -> bytes:
    """Bytes left out."""
    for _ in times(rng):
        start = place(data, rng)
        data = data[:start] + data[start + int(rng.choice([1, 2, 4, 8, 40])) :]
    return data


def truncate(data: bytes, rng: Random) -> bytes:
    """The end cut off."""
    return data[: place(data, rng)]


def copy(data: bytes, rng: Random) -> bytes:
    """Some bytes twice, or in another place too."""
    for _ in times(rng):
        start, target = place(data, rng), place(data, rng)
        data = data[:target] + data[start : start + int(rng.integers(1, 64))] + data[target:]
    return data


def overwrite(data: bytes, rng: Random) -> bytes:
    """A run of zeros, ones or other bytes of the file over what was there."""
    changed = bytearray(data)
    for _ in times(rng):
        length = int(rng.choice([4, 8, 16, 64, 500]))
        start = place(data, rng)
        other = place(data, rng)
        content = [bytes(length), b"\xff" * length, data[other : other + length]][rng.integers(3)]
        changed[start : start + len(content)] = content
    return bytes(changed)


NUMBERS = (0, 1, -1, -2, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**63), 1 << 16, 100, 10**9)


def numbers(data: bytes, rng: Random) -> bytes:
    """Whole numbers that are sizes, counts and offsets, where such usually are, replaced by others."""
    changed = bytearray(data)
    for _ in times(rng):
        number = int(rng.choice(np.array(NUMBERS, object)))
        width = int(rng.choice([2, 4, 8]))
        start = place(data, rng) // width * width
        changed[start : start + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return bytes(changed[: len(data)])


def of_good(change: Callable[[bytes, Random], bytes]) -> Callable[[Random, str], bytes]:
    """A change of the good table's bytes, or of its text before it is compressed."""

    def make(rng: Random, ending: str) -> bytes:
        if ending == ".csv.gz" and rng.integers(2):
            return gzip.compress(change(by_csv(good_table()), rng), mtime=0)
        data = BINARY[ending](good_table(), rng) if ending in BINARY else good(ending)
        return change(data, rng)

    return make


BYTES = {
    "flipped bits": flip,
    "replaced bytes": replace_bytes,
    "inserted bytes": insert,
    "deleted bytes": delete,
    "truncated": truncate,
    "copied bytes": copy,
    "overwritten bytes": overwrite,
    "other numbers": numbers,
}

# Text ----------------------------------------------------------------------------------------------------


def of_text(change: Callable[[bytes, Random, str], bytes]) -> Callable[[Random, str], bytes]:
    """A change of a good text, compressed afterwards where the format is."""

    def make(rng: Random, ending: str) -> bytes:
        text = good(ending) if ending != ".csv.gz" else by_csv(good_table())
        changed = change(text, rng, ending)
        return gzip.compress(changed, 1, mtime=0) if ending == ".csv.gz" else changed

    return make


ODD = [
    b'"',
    b'""',
    b",",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    codecs.BOM_UTF8,
    b"\xc3",
    b"\xed\xa0\x80",
    b"1e999",
    b"-",
    b"nan",
]
ODD += [
    b"inf",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"9" * 20,
    b"9" * 400,
    b"007",
    b";",
    b"\t",
]
ODD += [b":", b"true", b"'", b"=1+1", b"@x", b"99999-01-01", b"0000-00-00", b"1582-10-04", b"2024-02-30", b"1e-400"]
ODD += [b"\xe2\x80\xa8", b"-0", b"0x1F", b"NaN", b"Infinity", b"-Infinity", b"//", b"/*", b"\x1a", b"\x1b[2J"]


def odd_bytes(text: bytes, rng: Random, ending: str) -> bytes:
    """Bytes that mean something to some parser, anywhere."""
    for _ in times(rng):
        start = place(text, rng)
        text = text[:start] + ODD[rng.integers(len(ODD))] * int(rng.choice([1, 1, 1, 5, 3000])) + text[start:]
    return text


def odd_cells(text: bytes, rng: Random, ending: str) -> bytes:
    """Other values in some cells: dates out of range, giant numbers, types that change midway."""
    table = good_table()
    rows = flat(table).to_pylist()
    name = str(rng.choice(table.column_names))
    values = [
        10**400,
        -(10**30),
        1e308,
        2**63,
        2**64,
        "x",
        "",
        None,
        True,
        "2024-01-01",
        "99999-12-31",
        "-5",
        "0001-01-01",
    ]
    values += [
        "1",
        "01",
        "1,5",
        "10:00",
        "24:00:00",
        "é" * 1000,
        "\0",
        [1],
        {"a": 1},
        [],
        {},
        [[None]],
        5e-324,
        "NA",
        "NaN",
    ]
    first = int(rng.integers(ROWS))
    for row in rows[first : first + int(rng.choice([1, 3, ROWS]))]:
        row[name] = values[rng.integers(len(values))]
    if ending == ".jsonl":
        return b"".join(json.dumps(row, default=str).encode() + b"\n" for row in rows)
    delimiter = "\t" if ending == ".tsv" else ","
    cells = [table.column_names] + [["" if one is None else str(one) for one in row.values()] for row in rows]
    quoted = [delimiter.join('"' + one.replace('"', '""') + '"' for one in line) for line in cells]
    return "\n".join(quoted).encode()


def wide(text: bytes, rng: Random, ending: str) -> bytes:
    """Many columns: a header of commas, or of names, with few rows below or none."""
    count = int(rng.choice([1_000, 9_000, 100_000, 1_000_000, 3_000_000]))
    if ending == ".jsonl":
        count = min(count, 300_000)
        names = (f'"{one}":1' for one in range(count))
        if rng.integers(2):
            return "\n".join("{" + one + "}" for one in names).encode()
        return b"{" + ",".join(names).encode() + b"}\n" + b"{}\n" * int(rng.choice([0, 1, 1000, 100_000]))
    delimiter = b"\t" if ending == ".tsv" else b","
    if rng.integers(2):
        header = delimiter * count
    else:
        header = delimiter.join([b"drug", b"days", *(b"x%d" % one for one in range(min(count, 300_000)))])
    return b"\n".join([header] * int(rng.integers(1, 4)) + [text])


def repeated(text: bytes, rng: Random, ending: str) -> bytes:
    """A bomb: rows or a single character, a great many times."""
    if rng.integers(2):
        return text + [b"\n", b" ", b"A", b",", b'"', b"1\n", b"a,b\n", b"{", b"[", b"{}\n", b"null\n"][
            rng.integers(11)
        ] * int(rng.choice([10**5, 10**6, 4 * 10**7]))
    line = text.split(b"\n")[1] + b"\n"
    return text + line * int(rng.choice([1_000, 20_000, 1_000_000]))


def nested(text: bytes, rng: Random, ending: str) -> bytes:
    """Brackets and quotation marks to a great depth."""
    depth = int(rng.choice([10, 100, 1_000, 100_000, 1_000_000]))
    opening, closing = [(b"[", b"]"), (b'{"a":', b"}"), (b'"', b'"'), (b"(", b")"), (b'[{"a":', b"}]")][rng.integers(5)]
    value = opening * depth + b"1" + closing * (depth if rng.integers(2) else 0)
    if ending == ".jsonl":
        lines = text.split(b"\n")
        lines.insert(
            int(rng.integers(len(lines))), [b'{"drug":"A","days":1,"deep":%b}' % value, value][rng.integers(2)]
        )
        return b"\n".join(lines)
    start = place(text, rng)
    return text[:start] + value + text[start:]


def names(text: bytes, rng: Random, ending: str) -> bytes:
    """Names that are equal, empty, endless or like ours."""
    odd = [
        "drug",
        "days",
        "",
        " ",
        "é" * 40_000,
        "\0",
        "action",
        "probability",
        "__index_level_0__",
        "x\n",
        '"',
        "a,b",
        "=1",
    ]
    old = str(rng.choice(["drug", "days", "age", "city", "on", "dose"]))
    new = odd[rng.integers(len(odd))]
    given = json.dumps(new) if ending == ".jsonl" else '"' + new.replace('"', '""') + '"'
    return text.replace(b'"' + old.encode() + b'"', given.encode())


def lone(text: bytes, rng: Random, ending: str) -> bytes:
    """A file of hardly anything."""
    tokens = [
        b"null",
        b"[",
        b"[]",
        b"{}",
        b"1",
        b'"a"',
        b"true",
        b"{",
        b"\n",
        b"\0",
        b"",
        codecs.BOM_UTF8,
        b",",
        b'"',
        b"nul",
        b"-",
    ]
    tokens += [b"{}\n", b"null\n", b'{"drug":null}', b"PK\x03\x04", b"\x1f\x8b", b"PAR1", b"ARROW1"]
    chosen = [tokens[rng.integers(len(tokens))] for _ in range(int(rng.integers(1, 4)))]
    return [b"\n", b" ", b""][rng.integers(3)].join(chosen) + [b"", b"\n", text][rng.integers(3)]


def other_lines(text: bytes, rng: Random, ending: str) -> bytes:
    """Lines in another order, missing, twice, or with other ends; other encodings."""
    lines = text.split(b"\n")
    one, other = rng.integers(len(lines), size=2)
    match rng.integers(6):
        case 0:
            lines[one], lines[other] = lines[other], lines[one]
        case 1:
            del lines[one]
        case 2:
            lines = [lines[0]]
        case 3:
            return [b"\r\n", b"\r", b"\n\n", b"\0"][rng.integers(4)].join(lines)
        case 4:
            return text.decode().encode(str(rng.choice(["utf-16", "utf-32", "latin-1", "utf-7"])), "replace")
        case _:
            lines[one:one] = [b"null", b"[1]", b"3", b'"x"', b'{"drug":{"a":1}}', b'{"new":1}'][
                rng.integers(6)
            ].splitlines()
    return b"\n".join(lines)


TEXT_KINDS = {name: of_good(change) for name, change in BYTES.items()} | {
    "odd bytes": of_text(odd_bytes),
    "odd cells": of_text(odd_cells),
    "many columns": of_text(wide),
    "many rows": of_text(repeated),
    "deep nesting": of_text(nested),
    "odd names": of_text(names),
    "hardly anything": of_text(lone),
    "other lines": of_text(other_lines),
}

# Binary --------------------------------------------------------------------------------------------------


def ends(rng: Random, ending: str) -> bytes:
    """Another length of the metadata or the footer, other magic bytes, or garbage behind them."""
    data = bytearray(BINARY[ending](good_table(), rng))
    number = int(rng.choice(np.array(NUMBERS, object))) & 0xFFFFFFFF
    match rng.integers(5):
        case 0:
            data[-8:-4] = number.to_bytes(4, "little")
        case 1:
            data[-10:-6] = number.to_bytes(4, "little")
        case 2:
            data[4:8] = number.to_bytes(4, "little")
        case 3:
            data[8:16] = struct.pack("<iI", -1, number)
        case _:
            data += rng.bytes(int(rng.integers(1, 60)))
    return bytes(data)


def footer(rng: Random, ending: str) -> bytes:
    """Changes in the last or first bytes only, where the metadata are."""
    data = BINARY[ending](good_table(), rng)
    change = list(BYTES.values())[rng.integers(len(BYTES))]
    cut = min(len(data) // 2, int(rng.choice([60, 400, 1500])))
    if rng.integers(2):
        return data[:-cut] + change(data[-cut:], rng)
    return change(data[:cut], rng) + data[cut:]


def odd_types(rng: Random, ending: str) -> bytes:
    """Types that are rare: nested, dictionaries of odd values, runs, extensions, unions, views, dates out of range."""
    table = good_table()
    for name, cells in zip(table.column_names, table.columns, strict=True):
        if rng.integers(3) == 0:
            table = table.set_column(table.column_names.index(name), name, [odd_column(rng, len(table))])
        elif rng.integers(6) == 0:
            table = table.append_column(str(rng.choice([name, "x", ""])), cells)
    try:
        return BINARY[ending](table, rng)
    except (pa.ArrowException, ValueError):
        return good(ending)


def odd_column(rng: Random, n: int) -> pa.Array:
    """A column of a rare type."""
    whole = pa.array(rng.integers(-(2**62), 2**62, n))
    few = pa.array(rng.integers(0, 3, n))
    texts = pa.array([["=1", "-5", "\0", "é" * 99, None, "NA"][one] for one in rng.integers(0, 6, n)])
    made = [
        lambda: pa.array([[1, None], [], None] * n)[:n],
        lambda: pa.array([{"a": 1, "b": [None]}] * n),
        lambda: pa.array([[("k", 1)]] * n, pa.map_(pa.string(), pa.int64())),
        lambda: pa.DictionaryArray.from_arrays(few.cast(pa.int8()), pa.array(["x", None, "x"])),
        lambda: pa.DictionaryArray.from_arrays(few.cast(pa.int32()), pa.array([1.5, None, float("nan")])),
        lambda: pa.RunEndEncodedArray.from_arrays(pa.array([1, n], pa.int32()), pa.array([None, "x"])),
        lambda: pa.UnionArray.from_sparse(pa.array([0] * n, pa.int8()), [few, texts]),
        lambda: texts.cast(pa.string_view()),
        lambda: texts.cast(pa.large_string()),
        lambda: texts.cast(pa.binary()),
        lambda: pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"] * n)),
        lambda: pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16] * n, pa.binary(16))),
        lambda: whole.cast(pa.timestamp("s")),
        lambda: whole.cast(pa.timestamp("ns", "Asia/Kolkata")),
        lambda: whole.cast(pa.duration("s")),
        lambda: pa.array(rng.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32)).cast(pa.date32()),
        lambda: whole.cast(pa.date64(), safe=False),
        lambda: pa.array([1e308, -1e308, float("nan"), float("inf")] * n)[:n],
        lambda: pa.array([10**75] * n, pa.decimal256(76, 0)),
        lambda: pa.array([2**64 - 1] * n, pa.uint64()),
        lambda: pa.nulls(n),
        lambda: pa.array(few.to_pylist(), pa.float16()),
        lambda: pa.array([1, 2] * n, pa.time32("s"))[:n],
        lambda: pa.array([{}] * n, pa.struct([])),
        lambda: (
            pa.FixedSizeListArray.from_arrays(pa.nulls(0), 0)
            if n == 0
            else pa.array([[1, 2]] * n, pa.list_(pa.int8(), 2))
        ),
        lambda: pa.array([(1, 2, 3)] * n, pa.month_day_nano_interval()),
    ]
    return made[rng.integers(len(made))]()


def empty(rng: Random, ending: str) -> bytes:
    """No rows, no columns, or no batches."""
    table = [good_table().slice(0, 0), pa.table({}), good_table().select([]), good_table().slice(0, 1)][rng.integers(4)]
    return BINARY[ending](table, rng)


def many(rng: Random, ending: str) -> bytes:
    """Many columns or rows that take few bytes."""
    if rng.integers(2):
        count = int(rng.choice([1_000, 9_000, 20_000]))
        table = pa.table({f"x{one}": pa.nulls(1, pa.int8()) for one in range(count)})
        return BINARY[ending](table)
    return bomb(ending, int(rng.choice([10**5, 10**7, 10**8])), int(rng.integers(3)))


@cache
def bomb(ending: str, rows: int, layout: int) -> bytes:
    """Equal rows, which compress to nearly nothing."""
    if ending in (".feather", ".arrow"):
        rows = min(rows, 10**7)
    column = pa.array(np.zeros(rows, np.int8))
    if layout == 1:
        column = pa.DictionaryArray.from_arrays(column, pa.array(["x" * 1000]))
    elif layout == 2:
        column = pa.nulls(rows)
    table = pa.table({"drug": column, "days": column})
    sink = io.BytesIO()
    if ending in (".feather", ".arrow"):
        new = pa.ipc.new_file if ending == ".feather" else pa.ipc.new_stream
        with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def of_odd(rng: Random, ending: str) -> bytes:
    """Changed bytes of a table with rare types."""
    data = odd_types(rng, ending)
    return list(BYTES.values())[rng.integers(len(BYTES))](data, rng)


def other_format(rng: Random, ending: str) -> bytes:
    """The content of another format under this ending, whole or changed."""
    data = good(str(rng.choice(list(FORMATS))))
    return data if rng.integers(2) else flip(data, rng)


BINARY_KINDS = {name: of_good(change) for name, change in BYTES.items()} | {
    "wrong ends": ends,
    "changed metadata": footer,
    "rare types": odd_types,
    "rare types, changed": of_odd,
    "nothing in it": empty,
    "many columns or rows": many,
    "another format": other_format,
}
TEXT_KINDS["another format"] = other_format
