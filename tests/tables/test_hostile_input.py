"""Whatever is fed to the reader, it gives a log or one clear PonnError: generated, mutated and mistaken input."""

import codecs
import csv
import datetime
import decimal
import gzip
import io
import json
import os
import random
import re
import string
import tempfile
from contextlib import suppress
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ponn
from ponn.tables import delimited
from ponn.tables import source as source_module
from ponn.tables.table import read_table

ROLES = {"action": "drug", "reward": "days"}


def examples(count):
    """Settings of a property that writes files: time per example is not what is tested."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def encode(log):
    """Levels and design of a log's own rows, after checking what must hold for every log."""
    encoding = ponn.Encoding.fit(log)
    levels, design = encoding.levels(log), encoding.design(log)
    assert levels.shape == (len(log), len(log.features))
    assert (levels >= 0).all()
    assert (levels < encoding.b).all()
    assert design.shape[0] == len(log)
    assert np.isfinite(design).all()
    assert np.isfinite(log.R).all()
    assert log.R.min() >= 0
    assert log.R.max() <= 1
    return levels, design


# Generated tables: content that every format can carry ---------------------------------------------------

# Text that no reader takes for a number, a date or a missing value; with all that makes delimited text hard.
TEXTS = st.text(st.sampled_from("aé漢😀 ,;\t|\"'\n\\=#(\u200d\u0301"), max_size=6).map(lambda text: "t" + text)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1e308, -1e308])
COLUMNS = {
    pa.float64(): NUMBERS,
    pa.int64(): st.integers(-(2**53), 2**53),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.date32(): st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    pa.timestamp("s"): st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2250, 1, 1)).map(
        lambda moment: moment.replace(microsecond=0)
    ),
}
NAMES = st.sampled_from(["x", " ", "a,b", 'q"x', "two\nlines", "été", "f;g", "0", "True", "level_0", "index", "a\tb"])


def column(draw, n, type, missing=True):
    cells = st.none() | COLUMNS[type] if missing else COLUMNS[type]
    return pa.array(draw(st.lists(cells, min_size=n, max_size=n)), type)


@st.composite
def ordinary_tables(draw):
    n = draw(st.integers(1, 12))
    label = draw(st.sampled_from([pa.string(), pa.int64(), pa.bool_()]))
    few = {pa.string(): st.sampled_from(["A", "b", "t,\n"]), pa.int64(): st.integers(0, 2), pa.bool_(): st.booleans()}
    actions = pa.array(draw(st.lists(few[label], min_size=n, max_size=n)), label)
    rewards = column(draw, n, draw(st.sampled_from([pa.float64(), pa.bool_()])), missing=draw(st.integers(0, 4)) == 0)
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    features = {name: column(draw, n, draw(st.sampled_from(list(COLUMNS)))) for name in names}
    return pa.table({"drug": actions, "days": rewards, **features})


def by_json(table, path):
    """One JSON object per row, written by Python's own writer."""
    rows = (json.dumps(row, default=lambda moment: moment.isoformat()) for row in table.to_pylist())
    path.write_text("\n".join(rows) + "\n")


def by_parquet_directory(table, path):
    path.mkdir()
    half = (table.num_rows + 1) // 2
    pq.write_table(table.slice(0, half), path / "1.parquet")
    pq.write_table(table.slice(half), path / "2.parquet")


def by_stream(table, path):
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def by_csv(table, path, delimiter=","):
    with pa.output_stream(str(path), compression="gzip" if path.suffix == ".gz" else None) as sink:
        pacsv.write_csv(table, sink, pacsv.WriteOptions(delimiter=delimiter))


FILES = {
    "log.csv": by_csv,
    "log.CSV.GZ": lambda table, path: path.write_bytes(gzip.compress(csv_bytes(table))),
    "log.tsv": lambda table, path: by_csv(table, path, "\t"),
    "log.parquet": pq.write_table,
    "directory": by_parquet_directory,
    "log.feather": lambda table, path: feather.write_feather(table, str(path)),
    "log.arrow": by_stream,
    "log.jsonl": by_json,
}
NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
FRAMES = {
    "pandas": lambda table: table.to_pandas(types_mapper=NULLABLE.get),
    "polars": pl.from_arrow,
    "duckdb": duckdb.from_arrow,
    "dict": lambda table: dict(zip(table.column_names, table.columns, strict=True)),
}


def csv_bytes(table):
    sink = io.BytesIO()
    pacsv.write_csv(table, sink)
    return sink.getvalue()


def result(source):
    """What reading gives, in a form that can be compared: the log and its encoding, or the kind of the error."""
    try:
        log = ponn.read_log(source, **ROLES)
    except ponn.PonnError as error:
        return re.sub(r"of type .*|Set aside: .*", "", str(error))
    levels, design = encode(log)
    return log.actions, log.A.tolist(), log.R.tolist(), log.features, levels.tolist(), design.tolist()


@examples(60)
@given(table=ordinary_tables())
def test_every_file_gives_the_log_of_the_table(table):
    expected = result(table)
    with tempfile.TemporaryDirectory() as folder:
        for name, write in FILES.items():
            write(table, Path(folder, name))
            assert result(Path(folder, name)) == expected, name


@examples(60)
@given(table=ordinary_tables())
def test_every_frame_gives_the_log_of_the_table(table):
    expected = result(table)
    for name, frame in FRAMES.items():
        assert result(frame(table)) == expected, name


# Generated tables: anything Arrow can hold ---------------------------------------------------------------

ANY_FLOAT = st.floats() | st.sampled_from([float("nan"), float("inf"), -float("inf"), 1.7e308, -1.7e308, 5e-324])
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", "NA", "nan", "1", "01", "1,5", "\0", "\r\n", '"', "true", "2020-01-01", "\ufeff", "x" * 3000]
)
INT64 = st.integers(-(2**63), 2**63 - 1)
ANY_TYPE = [
    (pa.float64(), ANY_FLOAT),
    (pa.float32(), st.floats(width=32)),
    (pa.float16(), st.floats(width=16)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), INT64),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), ANY_TEXT),
    (pa.large_string(), ANY_TEXT),
    (pa.string_view(), ANY_TEXT),
    (pa.binary(), st.binary(max_size=4)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.timestamp("s"), INT64),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("ns"), INT64),
    (pa.timestamp("us", "Asia/Kolkata"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.time32("s"), st.times().map(lambda time: time.replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.duration("s"), INT64),
    (pa.duration("ns"), INT64),
    (pa.decimal32(5, 2), st.decimals(-100, 100, places=2)),
    (pa.decimal128(38, 10), st.decimals(-1000, 1000, places=10)),
    (pa.decimal256(76, 0), st.integers(-(10**70), 10**70).map(decimal.Decimal)),
    (pa.null(), st.none()),
    (pa.list_(pa.int64()), st.lists(INT64, max_size=2)),
    (pa.struct([("z", pa.int64())]), st.fixed_dictionaries({"z": INT64})),
    (pa.map_(pa.string(), pa.int64()), st.just([("k", 1)])),
]
ANY_NAME = st.sampled_from(["drug", "days", "x", "X", "", "__index_level_0__", "\n", "(missing)"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=5
)


@st.composite
def any_columns(draw, n):
    """A column of any type, in one or several chunks, as a dictionary (of odd values too), or run-end encoded."""
    type, cells = draw(st.sampled_from(ANY_TYPE))
    few = draw(st.lists(cells, min_size=1, max_size=3))
    values = draw(st.lists(st.none() | st.sampled_from(few) | cells, min_size=n, max_size=n))
    array = pa.array(values, type)
    layout = draw(st.sampled_from(["plain", "plain", "chunks", "dictionary", "dictionary of odd values", "runs"]))
    simple = not pa.types.is_nested(type) and not pa.types.is_string_view(type)
    if layout == "chunks":
        return pa.chunked_array([array.slice(0, n // 2), array.slice(n // 2)])
    if layout == "dictionary" and simple and not pa.types.is_decimal32(type):
        return array.dictionary_encode()
    if layout == "dictionary of odd values":
        index = draw(st.sampled_from([pa.int8(), pa.uint8(), pa.int64()]))
        places = draw(st.lists(st.none() | st.integers(0, n - 1), min_size=n, max_size=n))
        return pa.DictionaryArray.from_arrays(pa.array(places, index), array)
    if layout == "runs" and simple and not pa.types.is_null(type):
        return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, n + 1), pa.int32()), array)
    return array


@st.composite
def any_tables(draw):
    """Mostly a good action and a good reward with columns of any type beside them."""
    n = draw(st.integers(1, 8) | st.just(30))
    drug, days = pa.array([*"ab" * n][:n]), pa.array([0.0, 1.0, 0.5] * n)[:n]
    names = draw(st.lists(ANY_NAME, min_size=1, max_size=4, unique=draw(st.integers(0, 9)) > 0))
    names = [name for name in names if name not in ROLES.values() or draw(st.integers(0, 9)) == 0]
    columns = [
        draw(any_columns(n)) if draw(st.integers(0, 5)) == 0 else drug,
        draw(any_columns(n)) if draw(st.integers(0, 5)) == 0 else days,
        *(draw(any_columns(n)) for _ in names),
    ]
    return pa.table(columns, [*ROLES.values(), *names])


@examples(400)
@given(table=any_tables(), drop_missing=st.booleans(), minimize=st.booleans(), role=st.sampled_from(["", *"pgtwf"]))
def test_any_table_is_a_log_or_a_clear_error(table, drop_missing, minimize, role):
    words = {"p": "propensity", "g": "group", "t": "time", "w": "weight"}
    extra = {"drop_missing": drop_missing, "minimize": minimize}
    if role in words and table.num_columns > 2:
        extra[words[role]] = table.column_names[2]
    if role == "f":
        extra["features"] = table.column_names[2:]
    with suppress(ponn.PonnError):
        log = ponn.read_log(table, **ROLES, **extra)
        assert drop_missing or len(log) == table.num_rows
        encode(log)
        assert sum(map(len, log.split(0.5))) == len(log)
    with suppress(ponn.PonnError):
        json.dumps(ponn.check(table, **ROLES, **extra).as_json(), default=str)


@examples(120)
@given(table=any_tables())
def test_any_table_is_the_same_log_from_a_file(table):
    # Parquet has neither runs nor dictionaries of anything but text, which come back as plain columns.
    assume(not any(pa.types.is_run_end_encoded(type) for type in table.schema.types))
    values = [type.value_type for type in table.schema.types if pa.types.is_dictionary(type)]
    assume(all(pa.types.is_string(type) for type in values))
    expected = result(table)
    with tempfile.TemporaryDirectory() as folder:
        by_stream(table, Path(folder, "log.arrow"))
        assert result(Path(folder, "log.arrow")) == re_named(expected, Path(folder, "log.arrow"))
        try:
            pq.write_table(table, Path(folder, "log.parquet"))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            return
        assert result(Path(folder, "log.parquet")) == re_named(expected, Path(folder, "log.parquet"))


def re_named(expected, path):
    return expected.replace("The pyarrow Table", str(path)) if isinstance(expected, str) else expected


# Mutated files -------------------------------------------------------------------------------------------

SHARED_MEMORY = Path("/dev/shm")
CITIES = ["Rome", "São Paulo", "New, York", 'the "Hague"', "two\nlines", None]
ROWS = [
    {
        "drug": "AB"[j % 2],
        "days": j % 3 / 2,
        "age": 20 + j % 7,
        "city": CITIES[j % 6],
        "on": f"2024-01-{1 + j % 28:02d}",
    }
    for j in range(14)
]
INSERTED = [b'"', b",", b"\n", b"\r", b"\0", b"\xff", codecs.BOM_UTF8, b"1e999", b"-", b"nan", b"inf", b"{", b"}", b"["]
INSERTED += [b"null", b"\\", b"\\u0000", b"\\ud800", b"9" * 20, b"007", b";", b"\t", b":", b"true", b"'", b"\xc3"]


def mutated(data, rng):
    """The bytes with one to eight random changes: flips, cuts, copies, insertions, removals, swapped lines."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        start = rng.randrange(len(data) + 1)
        part = slice(start, start + rng.randrange(1, 40))
        match rng.randrange(7):
            case 0 if data:
                data[start % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[start % len(data)] = rng.randrange(256)
            case 2:
                del data[start:]
            case 3:
                data[start:start] = data[part]
            case 4:
                data[start:start] = rng.choice(INSERTED)
            case 5:
                del data[part]
            case 6:
                lines = bytes(data).split(b"\n")
                one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[one], lines[other] = lines[other], lines[one]
                data = bytearray(b"\n".join(lines))
    return bytes(data)


def fuzzed(seed_bytes, ending, count, look_at, folder):
    """How many of `count` mutated files gave a log; everything else must be a PonnError."""
    rng = random.Random(0)
    path = Path(folder, f"log{ending}")
    logs = 0
    for _ in range(count):
        data = mutated(seed_bytes, rng)
        path.unlink(missing_ok=True)  # a mapped file must not change under its reader
        path.write_bytes(data)
        with suppress(ponn.PonnError):
            look_at(data, ponn.read_log(path, **ROLES))
            logs += 1
    return logs


@pytest.fixture
def quick_folder(tmp_path):
    """A folder in memory where there is one: the fuzzers write thousands of files."""
    if not SHARED_MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        yield Path(folder)


def csv_seed():
    sink = io.StringIO()
    writer = csv.DictWriter(sink, ROWS[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(ROWS)
    return sink.getvalue().encode()


def test_five_thousand_mutated_csv_files_give_a_log_or_a_clear_error(quick_folder):
    def no_row_is_lost(data, log):
        text = io.StringIO(data.decode("utf-8-sig"), newline="")
        try:
            rows = [row for row in csv.reader(text, strict=True) if row]
        except csv.Error:  # Python's parser is stricter: nothing to compare with
            return
        assert len(log) == len(rows) - 1

    logs = fuzzed(csv_seed(), ".csv", 5_000, no_row_is_lost, quick_folder)
    assert 500 < logs < 4_500  # both outcomes are exercised


def test_five_thousand_mutated_json_lines_files_give_a_log_or_a_clear_error(quick_folder):
    seed_bytes = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()

    def no_row_is_lost(data, log):
        assert len(log) <= data.count(b"{")

    logs = fuzzed(seed_bytes, ".jsonl", 5_000, no_row_is_lost, quick_folder)
    assert 200 < logs < 4_500


def binary_seed(write, **options):
    table = pa.Table.from_pylist(ROWS).append_column(
        "dose", pa.array(list("xyz.") * 3 + ["x", None]).dictionary_encode()
    )
    sink = io.BytesIO()
    write(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("ending", "seed_bytes"),
    [
        (".parquet", binary_seed(pq.write_table)),
        (".parquet", binary_seed(pq.write_table, compression="none", use_dictionary=False, data_page_version="2.0")),
        (".feather", binary_seed(feather.write_feather, compression="uncompressed")),
        (".feather", binary_seed(feather.write_feather, compression="lz4")),
        (".csv.gz", gzip.compress(csv_seed(), mtime=0)),
    ],
    ids=["parquet", "plain parquet", "plain feather", "feather", "gzip"],
)
def test_mutated_binary_files_give_a_log_or_a_clear_error(ending, seed_bytes, quick_folder):
    fuzzed(seed_bytes, ending, 400, lambda _, log: encode(log), quick_folder)


# Named mistakes: each message names the column, the rows and a remedy ------------------------------------


def good(n=24, **columns):
    """A table that makes a log, with columns replaced or added."""
    table = {"drug": ["a", "b"] * (n // 2), "days": [0.0, 1.0, 2.0] * (n // 3), "age": [30, 40, 50, 60] * (n // 4)}
    return table | columns


def message(source, **options):
    """The error that reading raises; `check` tells the same or raises it."""
    options = ROLES | options
    with pytest.raises(ponn.PonnError) as caught:
        ponn.read_log(source, **options)
    told = str(caught.value)
    assert "\n" not in told
    with suppress(ponn.PonnError):
        check = ponn.check(source, **options)
        assert not check.ready
        assert told in check.why
    return told


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def csv_text(**columns):
    return csv_bytes(pa.table(good(**columns))).decode()


def with_cells(values, changes):
    """The values with some replaced, by row number counted from 1."""
    return [changes.get(row, value) for row, value in enumerate(values, start=1)]


DAYS = good()["days"]


def test_the_good_table_is_a_log_without_notes():
    log = ponn.read_log(good(), **ROLES)
    assert len(log) == 24
    assert log.notes == ()


def test_missing_column_names_the_closest():
    assert message(good(), reward="dayz") == (
        "The builtins dict has no column 'dayz' (given as reward). Did you mean 'days'?"
    )
    assert "'DRUG' (given as action). Did you mean 'drug'?" in message(good(), action="DRUG")
    assert "It has 'drug', 'days', 'age'." in message(good(), action="qqqqqq")
    assert "'agee' (given as ignored column). Did you mean 'age'?" in message(good(), ignore=["agee"])
    assert "'agee' (given as feature)" in message(good(), features=["agee"])


@pytest.mark.parametrize(("role", "value"), [("action", None), ("action", 0), ("reward", ["days"]), ("group", 1)])
def test_names_that_are_not_text(role, value):
    assert f"{value!r} is given as {role}; expected the name of a column" in message(good(), **{role: value})


def test_duplicate_names(tmp_path):
    table = pa.table(list(good().values()), ["drug", "days", "days"])
    frame = pd.DataFrame(good()).set_axis(["drug", "days", "days"], axis=1)
    path = write(tmp_path / "log.csv", "drug,days,days\na,1,1\nb,0,1\n")
    for source in (table, frame, path):
        assert "several columns named 'days'" in message(source)
        assert "rename or remove" in message(source)
    assert "specified twice in row 1" in message(write(tmp_path / "log.jsonl", '{"days": 1, "days": 2}\n'))


def test_fewer_than_two_actions():
    told = message(good(drug=["a"] * 24))
    assert "action column 'drug' has only one value, 'a'" in told
    assert "at least two actions" in told


def test_too_many_actions():
    n = 1_002
    table = {"drug": [f"a{j}" for j in range(n)], "days": [0, 1] * (n // 2), "age": [1, 2, 3] * (n // 3)}
    assert "'drug' has 1002 different values in 1002 rows; expected at most 1000" in message(table)


def test_rare_actions_are_told_with_counts():
    log = ponn.read_log(good(drug=[*"ab" * 11, "c", "d"]), **ROLES)
    assert "Actions with fewer than 5 rows, about which nothing reliable can be learned: 'c' (1), 'd' (1)." in log.notes


def test_actions_that_differ_in_case_or_space_are_told():
    log = ponn.read_log(good(drug=["low", "Low ", "high"] * 8), **ROLES)
    assert log.actions == ("Low ", "high", "low")
    assert "Actions that differ only in case or spaces are different actions here: 'Low ', 'low'." in log.notes


@pytest.mark.parametrize("hole", [None, float("nan")])
def test_missing_action(hole):
    told = message(good(drug=pa.array(with_cells([1.0, 2.0] * 12, {2: hole, 24: hole}))))
    assert "action column 'drug' is missing in 2 rows (2, 24) of 24" in told
    assert "--drop-missing" in told


def test_actions_that_are_not_labels():
    told = message(good(drug=[1.0, 2.0, 2.5] * 8))
    assert "'drug' holds numbers that are not whole, or too large, in 8 rows (3, 6, 9, 12, 15, ...): e.g. 2.5" in told
    assert "Cut it into classes" in told
    assert "in 12 rows (2, 4, 6, 8, 10, ...): e.g. inf" in message(good(drug=[1.0, float("inf")] * 12))
    dates = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)] * 12
    assert "of type date32[day]; expected text, whole numbers or booleans" in message(good(drug=dates))


@pytest.mark.parametrize(
    ("labels", "actions"),
    [([2.0, 1.0], (1, 2)), ([True, False], (False, True)), (["10", "9"], ("10", "9"))],
)
def test_whole_numbers_and_booleans_are_labels(labels, actions):
    assert ponn.read_log(good(drug=pa.array(labels * 12)), **ROLES).actions == actions


def test_decimal_labels_are_whole_numbers():
    labels = [decimal.Decimal("1"), decimal.Decimal("2")] * 12
    assert ponn.read_log(good(drug=labels), **ROLES).actions == (1, 2)


@pytest.mark.parametrize("hole", [None, float("nan")])
def test_missing_reward(hole):
    told = message(good(days=with_cells(DAYS, dict.fromkeys(range(3, 10), hole))))
    assert "reward column 'days' is missing in 7 rows (3, 4, 5, 6, 7, ...) of 24" in told
    assert "drop_missing=True" in told


def test_infinite_reward():
    told = message(good(days=with_cells(DAYS, {5: float("inf"), 6: -float("inf")})))
    assert "reward column 'days' is infinite in 2 rows (5, 6)" in told
    assert "correct these rows" in told


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({4: "unknown", 9: "?"}, "not a number in 2 rows (4, 9): e.g. 'unknown'. Correct or leave out"),
        ({4: None, 9: "x"}, "not a number in 1 row (9): e.g. 'x'"),
        ({4: "3,5", 9: "1,234.50"}, "It holds '3,5', '1,234.50': write a decimal point"),
        ({}, "All its cells read as numbers: convert the column."),
        (dict.fromkeys(range(1, 25), "yes") | {2: "no"}, "It holds 'yes', 'no': write them as numbers"),
    ],
)
def test_reward_that_is_text(changes, expected):
    told = message(good(days=with_cells([str(one) for one in DAYS], changes)))
    assert "reward column 'days' is of type string; expected numbers or booleans" in told
    assert expected in told


def test_reward_of_another_type():
    dates = [datetime.date(2024, 1, 1 + j) for j in range(24)]
    assert "'days' is of type date32[day]; expected numbers or booleans: convert it" in message(good(days=dates))
    lasting = [datetime.timedelta(days=j) for j in range(24)]
    assert "'days' is of type duration[us]; expected numbers" in message(good(days=lasting))


def test_reward_that_never_varies():
    assert "reward column 'days' is 1 in every row" in message(good(days=[1] * 24))


def test_reward_range_too_wide_for_floats():
    assert "runs from -1.7e+308 to 1.7e+308" in message(good(days=[-1.7e308, 1.7e308] * 12))


def test_reward_outside_the_declared_range():
    told = message(good(), reward_range=(0, 1))
    assert "'days' is outside the declared range 0 to 1 in 8 rows (3, 6, 9, 12, 15, ...): e.g. 2" in told
    assert "widen the range" in told


@pytest.mark.parametrize("span", [(1, 0), (0, 0), (0, float("inf")), "01", (0,), 3, ("a", "b"), (-1.7e308, 1.7e308)])
def test_reward_ranges_that_are_none(span):
    assert message(good(), reward_range=span).startswith("reward_range is ")


@pytest.mark.parametrize("wrong", [0.0, -0.1, 1e-31, 1.5, float("inf")])
def test_propensity_outside_its_range(wrong):
    told = message(good(p=with_cells([0.5] * 24, {7: wrong})), propensity="p")
    assert f"propensity column 'p' is outside (0, 1] in 1 row (7): e.g. {wrong:g}" in told
    assert "leave it empty where it is not known" in told


def test_propensity_partly_missing_is_counted():
    log = ponn.read_log(good(p=with_cells([0.5] * 24, {7: None, 8: float("nan")})), **ROLES, propensity="p")
    assert "Propensity 'p' is missing in 2 of 24 rows (8.3%); these are to be estimated." in log.notes
    assert np.flatnonzero(np.isnan(log.p0)).tolist() == [6, 7]


def test_propensity_of_no_use():
    assert "'p' is empty in every row. Name it under ignore" in message(good(p=[None] * 24), propensity="p")
    assert "'p' is of type string; expected probabilities" in message(good(p=["0.5"] * 24), propensity="p")


def test_weights_must_be_positive():
    assert "weight column 'w' is not a positive number in 1 row (3): e.g. -1" in message(
        good(w=with_cells([1.0] * 24, {3: -1.0})), weight="w"
    )
    assert "weight column 'w' is missing in 1 row (3)" in message(good(w=with_cells([1.0] * 24, {3: None})), weight="w")


def test_group_and_time_must_be_complete_and_usable():
    assert "group column 'g' is missing in 1 row (2) of 24. Fill" in message(
        good(g=with_cells(["u"] * 24, {2: None})), group="g"
    )
    assert "group column 'g' is of type list" in message(good(g=[[1]] * 24), group="g")
    assert "time column 't' is missing in 1 row (2) of 24" in message(good(t=with_cells([1] * 24, {2: None})), time="t")
    told = message(good(t=["yesterday"] * 24), time="t")
    assert "time column 't' is of type string; expected dates, timestamps or numbers" in told
    assert "2024-01-31" in told


def test_split_that_cannot_be_made():
    for role in ("group", "time"):
        log = ponn.read_log(good(g=[1] * 24), **ROLES, **{role: "g"})
        with pytest.raises(ponn.PonnError, match="24 rows in 1 piece that must stay together"):
            log.split(0.5)
    log = ponn.read_log(good(), **ROLES)
    for share in ("half", None, 0, 1, float("nan")):
        with pytest.raises(ponn.PonnError, match="expected a number between 0 and 1"):
            log.split(share)
    for seed in (-1, "x", 1.5):
        with pytest.raises(ponn.PonnError, match="seed"):
            log.split(0.5, seed=seed)


def test_same_column_in_two_roles():
    assert "'days' is named as action and as reward; it can be only one" in message(good(), action="days")
    assert "'age' is named as group and as feature" in message(good(), group="age", features=["age"])
    assert "'age' is named as feature and as ignored column" in message(good(), features=["age"], ignore=["age"])


@pytest.mark.parametrize("argument", ["features", "ignore"])
def test_lists_of_names_that_are_none(argument):
    assert f"{argument} is the text 'age'; expected a list of column names, e.g. ['age']" in message(
        good(), **{argument: "age"}
    )
    assert f"{argument} is 3; expected a list" in message(good(), **{argument: 3})
    assert "features is an empty list" in message(good(), features=[])


def test_names_may_come_in_any_iterable_and_twice():
    names = pd.Index(["age", "age"])
    assert ponn.read_log(good(z=[1, 2] * 12), **ROLES, features=names).features == ("age",)
    assert ponn.read_log(good(z=[1, 2] * 12), **ROLES, ignore=np.array(["z", "z"])).features == ("age",)


def test_unsupported_feature_types():
    told = message(good(scan=[[1, 2]] * 24))
    assert "Column 'scan' is of type list<item: int64>, which cannot be a feature" in told
    assert "--ignore 'scan'" in told
    assert ponn.read_log(good(scan=[[1, 2]] * 24), **ROLES, ignore=["scan"]).features == ("age",)
    empty = ponn.read_log(good(scan=pa.nulls(24, pa.list_(pa.int64()))), **ROLES)
    assert empty.notes == ("Column 'scan' is not used: it is empty.",)


def test_no_feature_is_left():
    assert "No column is left as a feature. Set aside: 'age': it has one and the same value" in message(
        good(age=[1] * 24)
    )
    assert "Every column has another role or is ignored" in message(good(), ignore=["age"])
    assert "'age': it has no finite value" in message(good(age=[float("inf")] * 24))


def test_dropped_rows_do_not_shift_row_numbers():
    holes = with_cells(DAYS, {1: None, 2: None, 10: float("nan")})
    told = message(good(days=holes, p=with_cells([0.5] * 24, {4: 2.0, 12: 3.0})), propensity="p", drop_missing=True)
    assert "in 2 rows (4, 12): e.g. 2." in told
    log = ponn.read_log(good(days=holes), **ROLES, drop_missing=True)
    assert len(log) == 21
    assert "3 of 24 rows without 'drug' or 'days' were left out, as asked." in log.notes
    text = with_cells([None] * 24, {5: "1", 6: "ill", 7: "2"})
    assert "'days' is of type string; expected numbers or booleans. It is not a number in 1 row (6)" in message(
        good(days=text), drop_missing=True
    )
    assert "All 24 rows lack 'drug' or 'days'" in message(good(days=[None] * 24), drop_missing=True)


# Named mistakes in files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.jsonl", "log.csv.gz"])
@pytest.mark.parametrize("content", ["", "\n\n", "  \r\n"])
def test_empty_file(tmp_path, name, content):
    data = gzip.compress(content.encode()) if name.endswith("gz") else content
    assert "log" in message(write(tmp_path / name, data))
    assert "is empty" in message(write(tmp_path / name, data))


@pytest.mark.parametrize("content", ["drug,days,age", "drug,days,age\n", "\ufeffdrug,days,age\r\n\r\n"])
def test_header_only(tmp_path, content):
    assert "has no rows: only the columns 'drug', 'days', 'age'" in message(write(tmp_path / "log.csv", content))


def test_no_rows_and_no_columns(tmp_path):
    empty = pa.table(good()).slice(0, 0)
    pq.write_table(empty, tmp_path / "log.parquet")
    for source in (empty, tmp_path / "log.parquet", pd.DataFrame(good()).iloc[:0]):
        assert "has no rows: only the columns 'drug', 'days', 'age'" in message(source)
    for source in ({}, pd.DataFrame(), write(tmp_path / "log.jsonl", "{}\n{}\n")):
        assert "has no columns" in message(source)


@pytest.mark.parametrize(
    ("lines", "line", "cells"),
    [
        (["a,1,2", "b,0", "a,1,3"], 3, 2),
        (["a,1,2", "", "", 'b,0,"two', 'lines"', "a,1,2,3", "b"], 7, 4),
        (["a,1,2"] * 5_000 + ["b,1,2,"], 5_002, 4),
    ],
)
def test_ragged_csv_tells_the_line_of_the_file(tmp_path, monkeypatch, lines, line, cells):
    path = write(tmp_path / "log.csv", "drug,days,age\n" + "\n".join(lines) + "\n")
    for block in (delimited.ONE_BLOCK, 512):
        monkeypatch.setattr(delimited, "ONE_BLOCK", block)
        told = message(path)
        assert f"The first one in line {line} has {cells}, expected 3 as in the header" in told
        assert "Is a separator or a quotation mark missing" in told


@pytest.mark.parametrize("rest", ["", 'b,0,"x"\na,1,2\n', 'b,0,5" pipe\n'])
def test_a_quotation_that_is_never_closed_swallows_no_rows(tmp_path, rest):
    path = write(tmp_path / "log.csv", csv_text() + 'a,1,"7\n' + "b,0,2\n" * 9 + rest)
    told = message(path)
    assert "rows may have been swallowed" in told
    assert re.search("line (26|36) ", told)


@pytest.mark.parametrize("cell", ['"two\nlines"', '"a ""quoted"" word\n"', '""""', '5" pipe', '"x\r\n"', '"\n"""'])
def test_quoted_cells_of_every_kind_are_read(tmp_path, cell):
    text = '"drug",days,age\n' + f"a,1,{cell}\n" * 5 + 'b,"0",x\n' * 5 + f'"a",1,{cell}'
    log = ponn.read_log(write(tmp_path / "log.csv", text), **ROLES)
    expected = cell if cell.startswith("5") else cell[1:-1].replace('""', '"')
    assert log.X["age"].to_pylist() == [expected] * 5 + ["x"] * 5 + [expected]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("latin-1", "is not UTF-8 text: line 26 holds the byte 0xe9"),
        ("utf-16", "is UTF-16 text"),
        ("utf-16-le", "is UTF-16 text"),
        ("utf-16-be", "is UTF-16 text"),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_wrong_encoding(tmp_path, monkeypatch, encoding, expected, ending):
    monkeypatch.setattr(source_module, "UTF8_BLOCK", 7)  # a character may lie across blocks
    text = csv_text() if ending == ".csv" else '{"drug": "ü", "days": 1}\n' * 25
    text = text.replace("ü", "x") + "é,1,2\n"
    told = message(write(tmp_path / f"log{ending}", text.encode(encoding)))
    assert expected in told
    assert "Save it again as UTF-8".lower() in told.lower()


@pytest.mark.parametrize("block", range(1, 12))
def test_a_character_cut_short_is_told_wherever_blocks_end(tmp_path, monkeypatch, block):
    monkeypatch.setattr(source_module, "UTF8_BLOCK", block)
    path = write(tmp_path / "log.csv", b"drug,days,age\na,1,\xe2\x82\nb,0,1\n")
    assert "line 2 holds the byte 0xe2" in message(path)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_change_nothing(tmp_path, newline, mark):
    text = mark + csv_text().replace("\n", newline)
    path = write(tmp_path / "log.csv", text)
    assert result(path) == result(good())


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters_are_noticed_outside_quotes_only(tmp_path, delimiter):
    path = write(tmp_path / "log.csv", csv_text().replace(",", delimiter))
    log = ponn.read_log(path, **ROLES)
    assert log.notes == (f"The cells of log.csv are separated by {delimiter!r}, not ',': read that way.",)
    quoted = write(tmp_path / "quoted.csv", '"x;y\nz",drug,days\n' + "1,a,0\n2,b,1\n" * 5)
    assert ponn.read_log(quoted, **ROLES).features == ("x;y\nz",)


@pytest.mark.parametrize("later", ["1.5", "x", "true", "2024-01-01", "2024-01-01 10:00:00", "12:30:00", "NA", "1e300"])
@pytest.mark.parametrize("first", ["", "1", "true", "2024-01-01", "12:30:00", "x"])
def test_types_do_not_depend_on_blocks(tmp_path, monkeypatch, first, later):
    rows = [f"{'ab'[j % 2]},{j % 3},{first}" for j in range(200)] + [f"a,1,{later}"]
    path = write(tmp_path / "log.csv", "\n".join(["drug,days,age", *rows]) + "\n")
    whole = read_table(path).table
    monkeypatch.setattr(delimited, "ONE_BLOCK", 128)
    assert read_table(path).table.equals(whole)


def test_a_row_longer_than_a_block_is_told(tmp_path, monkeypatch):
    path = write(tmp_path / "log.csv", csv_text() + "a,1," + "9" * 5_000 + "\n")
    assert len(ponn.read_log(path, **ROLES)) == 25
    monkeypatch.setattr(delimited, "ONE_BLOCK", 1_024)
    assert "could not be read as delimited text" in message(path)


def test_leading_zeros_stay(tmp_path):
    rows = "".join(f"0{1 + j % 2},{j % 3},0{j % 4}50,{j}.5\n" for j in range(24))
    for name, delimiter in (("log.csv", ","), ("log.tsv", "\t")):
        path = write(tmp_path / name, ("drug,days,zip,x\n" + rows).replace(",", delimiter))
        log = ponn.read_log(path, **ROLES)
        assert log.actions == ("01", "02")
        assert log.X["zip"][1].as_py() == "0150"
        assert "Column 'zip': whole numbers written with leading zeros (24 cells, e.g. '0050')" in "".join(log.notes)
    plain = write(tmp_path / "plain.csv", "drug,days,x\n" + "a,0,0\nb,1,10\na,2,0.5\n" * 5)
    assert ponn.read_log(plain, **ROLES).notes == ()


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("block", [3, 5, 7, 1 << 20])
def test_a_leading_zero_in_the_last_cell_is_seen(tmp_path, monkeypatch, block, end):
    monkeypatch.setattr(delimited, "UTF8_BLOCK", block)
    path = write(tmp_path / "log.csv", csv_text() + "a,1,007" + end)
    assert ponn.read_log(path, **ROLES).X["age"][24].as_py() == "007"


@pytest.mark.parametrize("ending", [".parquet", ".feather", ".arrow"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"not at all", b"ARROW1\0\0" + b"\xff" * 64])
def test_unreadable_binary_files(tmp_path, ending, content):
    told = message(write(tmp_path / f"log{ending}", content))
    assert "could not be read as" in told
    assert "Is the file complete, and does its ending match its content?" in told


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_truncated_binary_files(tmp_path, ending):
    writer = pq.write_table if ending == ".parquet" else feather.write_feather
    writer(pa.table(good()), str(tmp_path / f"log{ending}"))
    data = (tmp_path / f"log{ending}").read_bytes()
    for size in (len(data) - 1, len(data) // 2, 10):
        assert "could not be read" in message(write(tmp_path / f"cut{ending}", data[:size]))


def test_text_that_is_not_utf8_inside_a_table(tmp_path):
    broken = pa.Array.from_buffers(pa.string(), 24, pa.array([b"\xff\xfe", b"ok"] * 12).buffers())
    table = pa.table(good(age=broken))
    pq.write_table(table, tmp_path / "log.parquet")
    for source in (table, tmp_path / "log.parquet"):
        assert "is damaged: " in message(source)
        assert "Write it again" in message(source)


@pytest.mark.parametrize("keep", [-1, -9, 30, 3])
def test_truncated_gzip(tmp_path, keep):
    data = gzip.compress(csv_text().encode())[:keep]
    told = message(write(tmp_path / "log.csv.gz", data))
    assert "could not be read" in told or "is empty" in told


def test_gzip_in_several_members_is_read_to_the_end(tmp_path):
    lines = csv_text().splitlines(keepends=True)
    members = [gzip.compress("".join(part).encode()) for part in (lines[:9], lines[9:20], lines[20:])]
    assert len(ponn.read_log(write(tmp_path / "log.csv.gz", b"".join(members)), **ROLES)) == 24
    assert "could not be read" in message(write(tmp_path / "log.csv.gz", members[0] + b"garbage"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (gzip.compress(b"drug,days", mtime=0), "is a gzip file (.gz), not text"),
        (b"PK\x03\x04 a workbook", "is a zip archive or Excel workbook, not text"),
        (b"PAR1 and so on", "is a Parquet file (.parquet), not text"),
        (b"ARROW1\0\0", "is an Arrow or Feather file (.feather), not text"),
    ],
)
def test_files_of_another_format_are_recognised(tmp_path, content, expected):
    assert expected in message(write(tmp_path / "log.csv", content))


def test_unknown_endings_and_paths_that_are_none(tmp_path):
    told = message(write(tmp_path / "log.xlsx", b"x"))
    assert "ending that is not known. Expected one of .csv, .tsv, .parquet" in told
    write(tmp_path / "visits.csv", csv_text())
    assert f"There is no file {tmp_path / 'visit.csv'}. Did you mean 'visits.csv'?" == message(tmp_path / "visit.csv")
    assert "There is no file" in message(str(tmp_path / "nowhere" / "log.csv"))
    assert "The path of the log is empty" in message("")
    assert "cannot be opened" in message("x" * 5_000 + ".csv")
    assert "There is no file" in message("nul\0.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "is neither a file nor a directory" in message(tmp_path / "pipe.csv")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = write(tmp_path / "log.csv", csv_text())
    path.chmod(0)
    assert "Permission denied" in message(path)


def test_directory_without_parquet(tmp_path):
    write(tmp_path / "log.csv", csv_text())
    (tmp_path / "_temporary").mkdir()
    pq.write_table(pa.table(good()), tmp_path / "_temporary" / "part.parquet")
    (tmp_path / "folder.parquet").mkdir()
    assert f"{tmp_path} is a directory without *.parquet files" in message(tmp_path)
    pq.write_table(pa.table(good()), tmp_path / "folder.parquet" / "part.parquet")
    assert len(ponn.read_log(tmp_path, **ROLES)) == 24


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (
            good(age=[0.5] * 24),
            "Column 'age' is double in {2} but int64 in {1}. All files of a directory need the same",
        ),
        (good(extra=[1] * 24), "{2} has the extra columns 'extra', which {1} does not have"),
        ({"drug": ["a"], "days": [0.0]}, "{2} has no column 'age', which {1} has"),
        (dict(reversed(good().items())), "{2} has the columns of {1} in another order"),
    ],
)
def test_files_with_different_schemas(tmp_path, second, expected):
    pq.write_table(pa.table(good()), tmp_path / "1.parquet")
    pq.write_table(pa.table(second), tmp_path / "2.parquet")
    told = message(tmp_path)
    assert expected.replace("{1}", str(tmp_path / "1.parquet")).replace("{2}", str(tmp_path / "2.parquet")) in told


def test_one_unreadable_file_in_a_directory_is_named(tmp_path):
    pq.write_table(pa.table(good()), tmp_path / "1.parquet")
    write(tmp_path / "2.parquet", b"PAR1 no PAR1")
    assert f"{tmp_path / '2.parquet'} could not be read as Parquet" in message(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"drug": "a"}]', "row 1 is a JSON array; expected JSON lines, one object {...} per line"),
        ('{"drug": "a", "days": 1}\n{"drug": 2, "days": 1}\n', "column 'drug' holds a string and, in row 2, a number"),
        ('{"drug": "a"}\n{"drug": "b"}\n{"drug": "b\n', "in row 3"),
        ('{"drug": "\\ud800"}\n', "in row 1"),
    ],
)
def test_json_lines_that_are_none(tmp_path, text, expected):
    assert expected in message(write(tmp_path / "log.jsonl", text))


def test_json_not_a_number_is_missing(tmp_path):
    rows = "".join(
        f'{{"drug": "{"ab"[j % 2]}", "days": {j % 3}, "age": {"NaN" if j == 3 else j % 4}}}\n' for j in range(24)
    )
    log = ponn.read_log(write(tmp_path / "log.jsonl", rows), **ROLES)
    assert log.notes == ("Missing values, which are a level of their own: 'age' (1).",)


# Frames and their habits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [None, 3, [1], b"log.csv", np.zeros(3), pl.LazyFrame(good())])
def test_sources_that_are_none(source):
    assert f"A log cannot be read from a {type(source).__name__}. Expected a path, or a table" in message(source)


@pytest.mark.parametrize(
    "cells", [[1, "x"], [1, True], [10**30, 1], [object(), object()], [1 + 2j, 1], ["\ud800", "x"]]
)
def test_pandas_columns_of_mixed_or_strange_values(cells):
    frame = pd.DataFrame(good(odd=pd.Series(cells * 12, dtype=object)))
    assert "The pandas DataFrame could not be turned into an Arrow table" in message(frame)


def test_a_pandas_index_is_no_column_from_a_frame_or_a_file(tmp_path):
    frame = pd.DataFrame(good(48)).query("days != 1")
    frame.to_parquet(tmp_path / "log.parquet")
    for source in (frame, tmp_path / "log.parquet"):
        log = ponn.read_log(source, **ROLES)
        assert log.features == ("age",)
        assert log.notes == ("The frame's unnamed pandas index was not read as a column.",)


def test_pandas_names_that_are_not_text_become_text():
    frame = pd.DataFrame(good()).rename(columns={"age": 0})
    assert ponn.read_log(frame, **ROLES).features == ("0",)
    frame.columns = pd.MultiIndex.from_tuples([("drug", ""), ("days", ""), ("age", "x")])
    assert "has no column 'drug'" in message(frame)


@pytest.mark.parametrize(
    ("cells", "missing"),
    [
        (pd.Categorical(["u", None, "v"] * 8), 8),
        (pd.Categorical([1.5, np.nan, 2.5] * 8), 8),
        (pd.array([1, None, 2] * 8, dtype="Int64"), 8),
        (pd.array([True, None, False] * 8, dtype="boolean"), 8),
        (pd.to_timedelta([1, None, 2] * 8, unit="h"), 8),
        (pd.date_range("2024-01-01", periods=24, tz="US/Eastern"), 0),
        (pd.to_datetime(np.arange(24) + 1_700_000_000_123_456_789), 0),
    ],
    ids=str,
)
def test_pandas_columns_of_every_kind(cells, missing):
    log = ponn.read_log(pd.DataFrame(good(z=cells)), **ROLES)
    encode(log)
    assert sum("'z' (8)" in note for note in log.notes) == bool(missing)


@pytest.mark.parametrize("type", [pl.String, pl.Categorical, pl.Enum(["u", "v"])], ids=str)
@pytest.mark.parametrize("name", ["z", "drug"])
def test_polars_texts_of_every_kind(type, name):
    frame = pl.DataFrame(good(**{name: ["v", "u"] * 12})).with_columns(pl.col(name).cast(type))
    log = ponn.read_log(frame, **ROLES)
    encode(log)
    assert log.actions == (("u", "v") if name == "drug" else ("a", "b"))


def test_duckdb_relations_can_be_read_twice_and_fail_clearly():
    frame = pd.DataFrame(good())
    relation = duckdb.sql("select *, age::varchar::enum('30', '40', '50', '60') e, age::hugeint h from frame")
    for _ in range(2):
        log = ponn.read_log(relation, **ROLES)
        assert log.features == ("age", "e", "h")
        encode(log)
    assert ponn.check(relation, **ROLES).ready
    failing = duckdb.sql("select *, case when age > 50 then error('no such ward') else 'x' end w from frame")
    assert "The duckdb DuckDBPyRelation could not be turned into an Arrow table" in message(failing)
    assert "no such ward" in message(failing)
    del frame


def test_a_record_batch_is_a_source():
    assert result(pa.table(good()).to_batches()[0]) == result(good())


def test_a_stream_that_was_read_already_is_told():
    stream = pa.table(good()).to_reader()
    assert len(ponn.read_log(stream, **ROLES)) == 24
    with pytest.raises(ponn.PonnError, match="has no rows"):
        ponn.read_log(stream, **ROLES)


def test_missing_values_inside_a_dictionary_are_missing():
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2] * 8, pa.int8()), pa.array(["u", None, "u"]))
    log = ponn.read_log(good(z=cells), **ROLES)
    assert "Missing values, which are a level of their own: 'z' (8)." in log.notes
    assert ponn.Encoding.fit(log).b.tolist() == [3, 2]
    assert "'drug' is missing in 8 rows (2, 5, 8, 11, 14, ...)" in message(good(drug=cells))


def test_times_far_from_today_and_below_a_microsecond():
    far = pa.array([datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)] * 12, pa.timestamp("us"))
    fine = pa.array([1_700_000_000_123_456_789 + j for j in range(24)], pa.timestamp("ns"))
    whole = pa.array([datetime.date(2024, 2, 29)] * 12 + [datetime.date(1969, 12, 31)] * 12)
    log = ponn.read_log(good(far=far, fine=fine, whole=whole, half=whole.cast(pa.timestamp("ns"))), **ROLES)
    levels, _ = encode(log)
    assert np.array_equal(levels[:, 3], levels[:, 4])
    from ponn.log.profile import numbers

    assert numbers(log.X["far"])[:2].tolist() == [-719_162, 2_932_896]
    assert set(numbers(log.X["half"])) == {19_782, -1}


def test_a_thousand_columns_and_a_long_column_take_no_quadratic_time():
    wide = pa.table(good() | {f"x{j}": [j, j + 1] * 12 for j in range(4_000)})
    assert len(ponn.read_log(wide, **ROLES).features) == 4_001
    with pytest.raises(ponn.PonnError, match="Did you mean 'x399'"):
        ponn.read_log(wide, action="x399a", reward="days")


def test_messages_stay_short_whatever_the_cells_hold(tmp_path):
    endless = "é" * 100_000
    assert len(message(good(days=with_cells([str(one) for one in DAYS], {3: endless})))) < 1_000
    ragged = write(tmp_path / "log.csv", csv_text() + f"{endless},1\n")
    assert len(message(ragged)) < 1_000
    assert set(message(ragged)) <= {*string.printable, "é", *str(ragged)}


def test_labels_beyond_signed_whole_numbers():
    labels = pa.array([2**64 - 1, 2**63] * 12, pa.uint64())
    assert ponn.read_log(good(drug=labels), **ROLES).actions == (2**63, 2**64 - 1)
