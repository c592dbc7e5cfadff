"""Files that ended the process or took its memory: each is a clear error now, looked at in a process of its own."""

import bz2
import gzip
import io
import json
import resource
import struct
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ponn
from ponn.policy.batches import write_recommendations
from ponn.tables import limits as limits_module
from ponn.tables import streams
from ponn.tables.delimited import count_columns, header_of
from ponn.tables.files import write_table
from ponn.tables.ipc import messages
from ponn.tables.limits import Limits, in_words, memory_there
from ponn.tables.parquet import check_parquet, open_parquet, page_sizes, read_footer, read_struct
from ponn.tables.remote import opened
from ponn.tables.streams import open_stream
from ponn.tables.table import read_table

ROLES = {"action": "drug", "reward": "days"}
SERVED = Limits(columns=10_000, cells=2_000_000, bytes=32 << 20)
# Reads each file in a child: whole and as a stream. Says how that ended and how much memory it took.
LOOK = """
import json, os, resource, sys
from pathlib import Path
import pyarrow.dataset, pyarrow.json
from ponn.errors import PonnError
from ponn.tables.limits import Limits, USUAL
from ponn.tables.streams import open_stream
from ponn.tables.table import read_table

def look(path, limits):
    told = []
    for step in (lambda: read_table(path, limits), lambda: list(stream_of(path, limits))):
        try:
            step()
            told.append("ok")
        except PonnError as error:
            told.append(str(error))
    return told

def stream_of(path, limits):
    stream = open_stream(path, limits=limits)
    return stream.batches(stream.schema.names, 1000)

for name, served in json.load(sys.stdin):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
        limits = Limits(columns=10_000, cells=2_000_000, bytes=32 << 20) if served else USUAL
        os.write(write, json.dumps([one[:3000] for one in look(Path(name), limits)]).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 1 << 16)
    os.close(read)
    _, status, used = os.wait4(child, 0)
    print(json.dumps([status, json.loads(said) if said else [], used.ru_maxrss << 10, used.ru_utime + used.ru_stime]))
"""


def looked_at(*files, served=False):
    """What reading files whole and as a stream says of each, where no process died, and none took 700 MB or 10 s."""
    asked = json.dumps([[str(file), served] for file in files])
    done = subprocess.run([sys.executable, "-c", LOOK], input=asked, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for file, (status, _, memory, seconds) in zip(files, found, strict=True):
        assert status == 0, file
        assert memory < 700 << 20, file
        assert seconds < 10, file
    return [told for _, told, _, _ in found]


# JSON ----------------------------------------------------------------------------------------------------

ROW = b'{"drug": "A", "days": 1}\n'
DEEP = {"lists": b"[" * 100_000, "objects": b'{"a":' * 100_000, "closed lists": b"[" * 40_000 + b"]" * 40_000}
NOT_LINES = {
    **{f"{kind} {where}": (text, where, kind) for where in ("first", "later") for kind, text in {
        "null": b"null\n", "array": b"[1]\n", "number": b"-3.5\n", "string": b'"x"\n', "boolean": b"true\n",
    }.items()},
    "null among spaces": (b"  null  ", "first", "null"),
    "null beside a row": (b" null " + ROW, "first", "null"),
}  # fmt: skip


def test_json_that_is_no_object_is_told_with_its_row(tmp_path):
    files = {}
    for number, (name, (text, where, kind)) in enumerate(NOT_LINES.items()):
        files[name] = tmp_path / f"{number}.jsonl", kind, 1 if where == "first" else 3
        files[name][0].write_bytes(text + ROW if where == "first" else 2 * ROW + text)
    found = looked_at(*(path for path, _, _ in files.values()))
    for told, (path, kind, row) in zip(found, files.values(), strict=True):
        assert told == [f"{path}: row {row} is a JSON {kind}; expected JSON lines, one object {{...}} per line."] * 2


def test_deep_json_is_told_with_its_row(tmp_path):
    for name, text in DEEP.items():
        (tmp_path / f"{name}.jsonl").write_bytes(ROW + b'{"drug": ' + text + b"}\n")
    for told in looked_at(*sorted(tmp_path.iterdir())):
        assert all("row 2 nests objects or lists more than 32 deep" in one for one in told)


def test_a_column_for_every_row_is_too_many_cells(tmp_path):
    (tmp_path / "flat.jsonl").write_bytes(b"".join(b'{"x%d":1}\n' % one for one in range(9_000)))
    paths = ["".join(f'{{"{"ab"[one >> place & 1]}":' for place in range(13)) for one in range(1 << 13)]
    (tmp_path / "nested.jsonl").write_text("".join(f"{one}1{'}' * 13}\n" for one in paths))
    (tmp_path / "wide.jsonl").write_text(json.dumps({f"x{one}": 1 for one in range(300_000)}))
    flat, nested, wide = (tmp_path / f"{one}.jsonl" for one in ("flat", "nested", "wide"))
    found = looked_at(flat, nested, wide, served=True)
    assert "9,000 rows of 9,000 columns; 2,000,000 cells are the most that is read here" in found[0][0]
    assert all("rows of" in one or "columns or more" in one for one in found[1])
    assert all("has 300,000 columns or more; at most 10,000 are read" in one for one in found[2])


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": "[[{{\\"}}", "b": [[1]]}\n{"a": "\\\\", "b": null}\n',
        b'{"a"  :1}{"a"\n:2}\n\n  {"a":3}',
        b'\xef\xbb\xbf{"a": {"b": [{"c": null}]}}\n',
        b'{"%s": 1, "\\"": 2}\n' % (b"k" * 300),
        b'{"a": 1}\r\n{"a": 2}\r\n',
    ],
)
@pytest.mark.parametrize("block", [3, 7, 4 << 20])
def test_odd_but_sound_json_is_read(tmp_path, monkeypatch, text, block):
    monkeypatch.setattr("ponn.tables.jsonlines.LOOKED_AT", block)
    path = tmp_path / "t.jsonl"
    path.write_bytes(text)
    assert read_table(path).table.num_rows == text.count(b"\n") - text.count(b"\n\n") or text.count(b'"a"')


# Delimited text ------------------------------------------------------------------------------------------


def test_headers_of_commas_are_counted_before_anything_is_built(tmp_path):
    for count in (125_000, 1_000_000):
        (tmp_path / f"{count}.csv").write_bytes(b"," * count)
        (tmp_path / f"{count}.tsv").write_bytes(b'"a\n\t"\t' * count + b"\n1\t2\n")
    files = sorted(tmp_path.iterdir())
    for path, told in zip(files, looked_at(*files), strict=True):
        assert told[0].startswith(f"{path} has {int(path.stem) + 1:,} columns or more; at most 50,000 are read.")
        assert "columns or more; at most 50,000 are read." in told[1]


@pytest.mark.parametrize(
    ("text", "columns", "rest"),
    [
        (b"a,b\n1,2", 2, b"1,2"),
        (b'\xef\xbb\xbf\n\n"a,\n",b\r\n1', 2, b"1"),
        (b'a",b,c\n"', 3, b'"'),
        (b'"","" x","\n1', 3, b""),
        (b'"never closed,\n1,2', 1, b""),
        (b"", 1, b""),
    ],
)
def test_columns_of_a_header_are_counted_as_arrow_does(text, columns, rest):
    header, end = header_of(text, ",")
    assert count_columns(header, ",") == columns
    assert text[end:] == rest


def test_a_million_wrong_rows_are_not_counted_one_by_one(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,b\n" + b"1\n" * 1_000_000)
    started = time.process_time()
    with pytest.raises(ponn.PonnError, match="10,000 or more rows have a wrong number of cells"):
        read_table(tmp_path / "t.csv")
    assert time.process_time() - started < 5


def test_a_long_row_is_not_searched_again_with_every_block(tmp_path, monkeypatch):
    searched = []
    monkeypatch.setattr(streams, "PIECE_BYTES", 1_000)
    (tmp_path / "t.csv").write_bytes(b'a,b\n"' + b"x" * 100_000 + b'",2\n' + b"1,2\n" * 10)
    pieces = list(
        streams.text_pieces(
            tmp_path / "t.csv", lambda text: searched.append(len(text)) or streams.last_row_end(text, ","), Limits()
        )
    )
    assert b"".join(pieces) == (tmp_path / "t.csv").read_bytes()
    assert sum(searched) < 4 * 100_000


# Bombs ---------------------------------------------------------------------------------------------------

PACKERS = {
    ".gz": lambda data: gzip.compress(data, 1),
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    ".lz4": lambda data: pa.compress(data, "lz4", asbytes=True),
}


def test_what_unpacks_to_too_much_is_stopped_while_unpacking(tmp_path):
    rows = b"drug,days\n" + b"\n" * 50_000_000
    for ending, pack in PACKERS.items():
        (tmp_path / f"t.csv{ending}").write_bytes(pack(rows))
    files = sorted(tmp_path.iterdir())
    for path, told in zip(files, looked_at(*files, served=True), strict=True):
        assert all(one.startswith(f"{path} unpacks to") for one in told)
        assert all("32 MB are the most that is read here" in one for one in told)


def bomb(path, table):
    """A table in the format of its ending, with compression."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, compression="zstd")
    else:
        new = pa.ipc.new_file if path.suffix == ".feather" else pa.ipc.new_stream
        with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("ending", [".parquet", ".feather", ".arrow"])
def test_small_files_of_large_tables_are_refused_by_what_they_say(tmp_path, ending):
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["x" * 100_000])
    files = [
        bomb(tmp_path / f"rows{ending}", pa.table({"drug": pa.nulls(20_000_000)})),
        bomb(tmp_path / f"bytes{ending}", pa.table({"drug": [b"0" * 50_000_000]})),
        bomb(tmp_path / f"texts{ending}", pa.table({"drug": long})),
    ]
    many, large, texts = looked_at(*files, served=True)
    assert all("20,000,000 rows of 1 columns" in one for one in many)
    assert all("unpacks to 47.7 MB or more" in one for one in large)
    assert "GB or more; 32 MB are the most" in texts[0]


def varint(number, length):
    """A number in Thrift's compact protocol, in so many bytes."""
    parts = [2 * number >> 7 * one & 127 for one in range(length)]
    return bytes([one | 128 for one in parts[:-1]] + parts[-1:])


def test_metadata_that_lie_about_pages_are_not_believed(tmp_path):
    table = pa.table({"drug": [b"0" * 50_000_000]})
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    size = pq.read_metadata(path).row_group(0).total_byte_size
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert varint(size, 4) in data[footer:]
    path.write_bytes(data[:footer] + data[footer:].replace(varint(size, 4), varint(100, 4)))
    assert pq.read_metadata(path).row_group(0).total_byte_size == 100
    with pytest.raises(ponn.PonnError, match=r"unpacks to 47\.7 MB or more"):
        check_parquet(path, [path], SERVED)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_sizes_of_pages_are_those_of_the_metadata(tmp_path, codec, version):
    table = pa.table(
        {"x": np.arange(9_000), "y": [f"text {one % 90}" for one in range(9_000)], "z": [[1], None, []] * 3_000}
    )
    path = tmp_path / "t.parquet"
    options = {"compression": codec, "data_page_version": version, "data_page_size": 3_000, "row_group_size": 4_000}
    pq.write_table(table, path, **options, write_page_checksum=True)
    with open_parquet(path) as file, opened(path) as content:
        groups = read_footer(content)[4]
        assert len(groups) == 3
        for group, columns in enumerate(one[1] for one in groups):
            for number, column in enumerate(columns):
                said = file.metadata.row_group(group).column(number).total_uncompressed_size
                sizes = list(page_sizes(content, column[3]))
                assert len(sizes) > 1
                assert sum(sizes) <= said <= sum(sizes) + 200 * len(sizes)


def test_texts_that_repeat_in_parquet_are_read_like_others_under_limits(tmp_path):
    texts = pa.array(["same" * 50, None, "other"] * 1_000)
    table = pa.table(
        {"plain": texts, "dictionary": texts.dictionary_encode(), "n": range(3_000), "raw": texts.cast("binary")}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    found = read_table(tmp_path / "t.parquet", limits=SERVED).table
    assert found.to_pydict() == table.to_pydict()
    assert found.schema.types[0] == pa.string()
    stream = open_stream(tmp_path / "t.parquet", limits=SERVED)
    assert pa.concat_tables(stream.pieces(["plain", "n"])).to_pydict() == table.select(["plain", "n"]).to_pydict()


# Arrow ---------------------------------------------------------------------------------------------------


def arrow_bytes(codec=None, new=pa.ipc.new_file):
    table = pa.table(
        {"drug": list("AB") * 8, "days": [0.0, 1.0] * 8, "dose": pa.array(list("xyz.") * 4).dictionary_encode()}
    )
    sink = io.BytesIO()
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_what_batches_say_of_themselves_is_what_they_have():
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        data = arrow_bytes(new=new)
        dictionary, batch = messages(memoryview(data))
        assert (dictionary.rows, dictionary.columns, batch.rows, batch.columns) == (4, 1, 16, 3)
        assert b"ABAB" in b"".join(data[start : start + size] for start, size in batch.buffers)
        packed = list(messages(memoryview(arrow_bytes("zstd", new))))
        sizes = [[one.unpacked(memoryview(data)) for one in found] for found in ((dictionary, batch),)]
        assert sizes[0][1] >= 16 * 8
        assert packed[1].unpacked(memoryview(arrow_bytes("zstd", new))) >= 16 * 8


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("number", [-1, -2, 2**31 - 1, 2**40, 2**62, -(2**63)])
def test_every_number_in_the_metadata_may_be_wrong(tmp_path, new, number):
    """Others in place of rows, cells and lengths are a clear error, or matter to nobody."""
    data = arrow_bytes(new=new)
    path = tmp_path / "t.arrow"
    for start in range(0, len(data) - 8, 8):
        if struct.unpack_from("<q", data, start)[0] in (4, 16, 64, 128):
            path.write_bytes(data[:start] + struct.pack("<q", number) + data[start + 8 :])
            for step in (lambda: read_table(path), lambda: list(open_stream(path).pieces(["drug", "dose"]))):
                try:
                    step()
                except ponn.PonnError:
                    continue


@pytest.mark.parametrize("size", [-2, 2**40, 2**62])
def test_a_buffer_that_says_it_unpacks_to_more(tmp_path, size):
    data = bytearray(arrow_bytes("zstd"))
    _, batch = messages(memoryview(bytes(data)))
    start = next(start for start, length in batch.buffers if length > 8)
    data[start : start + 8] = struct.pack("<q", size)
    (tmp_path / "t.feather").write_bytes(data)
    with pytest.raises(ponn.PonnError, match="a buffer of -2 bytes" if size < 0 else "unpacks to .* or more"):
        read_table(tmp_path / "t.feather")


@pytest.fixture(scope="module")
def policy():
    few = [0, 1] * 100
    log = ponn.read_log({"drug": few, "days": few, "age": few}, **ROLES, features=["age"])
    return ponn.learn(log, method="lr-l1")


def test_rare_types_in_a_stream_are_an_error_or_read(policy, tmp_path):
    few = pa.array([0, 1] * 100)
    union = pa.UnionArray.from_sparse(pa.array([0] * 200, pa.int8()), [few, few])
    odd = pa.DictionaryArray.from_arrays(few.cast(pa.int8()), pa.array(["x", None]))
    table = pa.table({"drug": few, "days": few, "odd": odd, "union": union})
    with pa.ipc.new_file(str(tmp_path / "t.arrow"), table.schema) as writer:
        writer.write_table(table.select(["drug", "days", "odd", "union"]), max_chunksize=90)
    stream = open_stream(tmp_path / "t.arrow")
    assert sum(len(one) for one in stream.batches(["odd"], 100)) == 200
    with pytest.raises(ponn.PonnError, match="lacks the columns 'age'"):
        write_recommendations(policy, tmp_path / "t.arrow", tmp_path / "out.csv", keep=["union"])
    with pa.ipc.new_file(
        str(tmp_path / "u.arrow"), table.rename_columns(["age", "days", "odd", "union"]).schema
    ) as writer:
        writer.write_table(table.rename_columns(["age", "days", "odd", "union"]), max_chunksize=90)
    with pytest.raises(ponn.PonnError, match="cannot be written: do not keep it"):
        write_recommendations(policy, tmp_path / "u.arrow", tmp_path / "out.csv", keep=["union"])
    assert write_recommendations(policy, tmp_path / "u.arrow", tmp_path / "out.csv", keep=["odd"]).rows == 200


# Limits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet", ".feather"])
def test_limits_hold_in_every_format_whole_and_as_a_stream(tmp_path, ending):
    table = pa.table({f"x{one}": list(range(1_000)) for one in range(5)})
    path = tmp_path / f"t{ending}"
    write_table(table, path)
    for limits, told in (
        (Limits(columns=4), "has 5 columns or more; at most 4 are read"),
        (Limits(cells=4_000), "4,000 cells are the most"),
        (Limits(bytes=3_000), "2.93 kB are the most"),
    ):
        with pytest.raises(ponn.PonnError, match=told):
            read_table(path, limits=limits)
        with pytest.raises(ponn.PonnError, match=told):
            list(open_stream(path, limits=limits).pieces(["x1"]))
    enough = Limits(columns=5, cells=5_000 + 20, bytes=200_000)
    assert read_table(path, limits=enough).table.num_rows == 1_000
    assert sum(map(len, open_stream(path, limits=enough).pieces(["x1"]))) == 1_000


def test_whole_files_must_fit_into_memory_and_streams_need_not(tmp_path, monkeypatch):
    monkeypatch.setattr("ponn.tables.limits.memory_there", lambda: 20_000)
    (tmp_path / "t.csv").write_bytes(b"a,b\n" + b"1,2\n" * 4_000)
    with pytest.raises(ponn.PonnError, match=r"takes 15.6 kB or more; 9.77 kB are what fits into memory"):
        read_table(tmp_path / "t.csv")
    assert sum(map(len, open_stream(tmp_path / "t.csv").pieces(["a"]))) == 4_000


def test_memory_is_what_the_process_may_take():
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (5 << 40, hard))
        whole = memory_there()
        resource.setrlimit(resource.RLIMIT_DATA, (whole // 2, hard))
        assert memory_there() == whole // 2
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def test_groups_of_processes_have_less_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(limits_module, "CONTROL_GROUP", tmp_path / "memory.max")
    for text, least in (("max\n", memory_there()), ("1000000\n", 1_000_000)):
        (tmp_path / "memory.max").write_text(text)
        limits_module.machine_memory.cache_clear()
        assert memory_there() == least
    limits_module.machine_memory.cache_clear()


def test_bytes_are_told_in_a_unit_that_fits():
    assert [in_words(one) for one in (12, 2_048, 3 << 20, 5 << 30)] == ["12 bytes", "2 kB", "3 MB", "5 GB"]


# Many columns --------------------------------------------------------------------------------------------


def test_thousands_of_columns_take_seconds(policy, tmp_path):
    n, d = 24, 3_000
    rng = np.random.default_rng(0)
    columns = {"drug": list("ab") * 12, "days": [0.0, 0.5, 1.0] * 8, "age": list(range(n))}
    table = pa.table(columns | {f"x{one}": rng.integers(0, 9, n) for one in range(d)})
    started = time.process_time()
    for ending in (".csv", ".jsonl"):
        write_table(table, tmp_path / f"t{ending}")
        assert len(ponn.read_log(tmp_path / f"t{ending}", **ROLES).features) > 2_500
        stream = open_stream(tmp_path / f"t{ending}")
        assert sum(map(len, stream.batches(stream.schema.names, 12))) == n
    assert time.process_time() - started < 10  # in quadratic time: far more


def test_recommendations_for_many_columns_take_linear_time(policy, tmp_path):
    seconds = []
    for columns in (1_500, 6_000):
        table = pa.table({"age": [1, 2]} | {f"x{one}": [1, 2] for one in range(columns)})
        write_table(table, tmp_path / "t.csv")
        started = time.process_time()
        write_recommendations(policy, tmp_path / "t.csv", tmp_path / "out.csv", keep=table.column_names, threads=1)
        seconds.append(time.process_time() - started)
    assert seconds[1] < 8 * seconds[0]  # four times as many columns; in quadratic time 16


@pytest.mark.parametrize(
    "data", [b"", b"\x15", b"\x15\xff", b"\x18\x05a", b"\x1c" * 40, b"\x19\xf5\xff\xff\xff\xff\x0f", b"\x1b"]
)
def test_metadata_without_end_are_an_error(data):
    with pytest.raises(ValueError, match="its metadata"):
        read_struct(data, 0)


def test_metadata_on_which_the_library_falls_are_read_without_it(tmp_path):
    """One element is missing in a histogram of sizes: the library's metadata of the column end the process."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": ["a", None] * 4}), path, write_page_index=True)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little") - 1
    place = data.index(b"\x19\x26\x08\x08", len(data) - 9 - length)  # of definition levels: two numbers, both 4
    path.write_bytes(data[:place] + b"\x19\x16\x08" + data[place + 4 : -8] + length.to_bytes(4, "little") + data[-4:])
    (told,) = looked_at(path, served=True)
    assert all("histogram size mismatch" in one for one in told)


def test_pieces_of_nested_columns_are_put_together(tmp_path):
    cells = pa.array([{"a": 1, "b": [None]}] * 48)
    cut = pa.array(list("ab") * 24).dictionary_encode()  # comes in a piece for each row group
    pq.write_table(pa.table({"x": cells, "cut": cut}), tmp_path / "t.parquet", row_group_size=7)
    assert sum(map(len, open_stream(tmp_path / "t.parquet").batches(["x", "cut"], 1_000))) == 48
