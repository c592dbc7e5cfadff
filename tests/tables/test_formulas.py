"""Texts that a spreadsheet would execute are written as texts, and read as they were."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ponn
from commands import here  # noqa: F401 - a fixture
from ponn.policy.batches import write_recommendations
from ponn.tables.files import write_table
from ponn.tables.formulas import is_formula, quote, unquote
from ponn.tables.streams import open_stream
from ponn.tables.table import read_table

EXECUTED = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1+1", "--1", "-5-3", "-x", "+", "-"]
HARMLESS = ["-5", "+3", "-3.5", "+.5e-3", "-", "+", "a=1", " =1", "x", "", "'x", "'", "5-3", "'-5"]


def column(*texts):
    return pa.chunked_array([pa.array(texts, pa.string())])


@pytest.mark.parametrize("text", [one for one in EXECUTED if len(one) > 1])
def test_what_is_executed_gets_an_apostrophe(text):
    found, count = quote(column(text))
    assert found.to_pylist() == ["'" + text]
    assert count == 1
    assert is_formula(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_numbers_and_other_texts_stay_as_they_are(text):
    assert quote(column(text, None)) == (column(text, None), 0)
    assert unquote(column(text, None)) == (column(text, None), 0)


TEXTS = st.text(st.sampled_from("=+-@\t\r'＝5.ex "), max_size=5)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(texts=st.lists(TEXTS | st.none(), max_size=6), cut=st.integers(0, 3))
def test_every_text_comes_back_as_it_was(texts, cut):
    given_ = pa.chunked_array([pa.array(["=x", *texts], pa.string()).slice(cut)])
    quoted, count = quote(given_)
    back, undone = unquote(quoted)
    assert back.to_pylist() == given_.to_pylist()
    assert count == undone == sum(is_formula(one) for one in given_.to_pylist() if one is not None)
    assert not any(is_formula(one) and one[0] != "'" for one in quoted.to_pylist() if one)


@pytest.mark.parametrize("type", [pa.large_string(), pa.binary(), pa.large_binary()])
def test_other_kinds_of_text_too(type):
    assert quote(pa.chunked_array([pa.array([b"=1", b"x"], pa.binary()).cast(type)]))[1] == 1


LABELS = ["=A", "+B", "@C"]


def dangerous_log(n=240):
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "=drug": [LABELS[one] for one in rng.integers(0, 3, n)],
            "days": rng.integers(0, 3, n) / 2,
            "@age": rng.integers(0, 9, n),
            "note": np.array(["=1+1", "-5", "'=1", "x"])[rng.integers(0, 4, n)],
            "low": np.array(["-5", "+3"])[rng.integers(0, 2, n)],
            "loss": -rng.integers(1, 9, n) / 4,
        }
    )


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz"])
def test_a_log_written_as_text_is_the_same_log(tmp_path, ending):
    table = dangerous_log().drop_columns(["low"])
    path = tmp_path / f"log{ending}"
    assert write_table(table, path) == 2 + 240 + sum(one in ("=1+1", "'=1") for one in table["note"].to_pylist())
    log = ponn.read_log(path, action="=drug", reward="days")
    assert log.table.to_pydict() == ponn.read_log(table, action="=drug", reward="days").table.to_pydict()
    assert any("apostrophe before what a spreadsheet would execute" in note for note in log.notes)
    stream = open_stream(path, ["note"])
    assert pa.concat_tables(stream.pieces(stream.schema.names)).to_pydict() == table.to_pydict()


def test_formulas_are_kept_where_asked_for_and_other_formats_are_never_changed(tmp_path):
    table = dangerous_log().drop_columns(["low"])
    assert write_table(table, tmp_path / "log.csv", formulas=True) == 0
    assert pacsv.read_csv(tmp_path / "log.csv").column_names[0] == "=drug"
    for ending in (".parquet", ".feather", ".jsonl"):
        assert write_table(table, tmp_path / f"log{ending}") == 0
        assert read_table(tmp_path / f"log{ending}").table.to_pydict() == table.to_pydict()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "small.ponn"
    ponn.learn(ponn.read_log(dangerous_log(), action="=drug", reward="days"), method="lr-l1").save(path)
    return path


def cells(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_recommendations_execute_nothing_and_say_how_much_was_changed(policy, tmp_path, here):  # noqa: F811
    write_table(dangerous_log(), tmp_path / "rows.parquet")
    words = ("recommend", policy, "rows.parquet", "--probabilities", "--reasons", "--keep", "=drug", "--keep", "note")
    words += ("--keep", "low", "--keep", "loss", "--keep", "@age")
    done = here(*words, "--out", "advice.csv", "--json")
    found = cells(tmp_path / "advice.csv")
    executed = [cell for row in found for cell in row if is_formula(cell) and not cell.startswith("'")]
    assert executed == []
    names = found[0]
    assert {"'=drug", "'@age", "p_=A"} <= set(names)
    assert {row[names.index("low")] for row in found[1:]} == {"-5", "+3"}
    assert all(row[names.index("loss")].startswith("-") for row in found[1:])
    changed = sum(cell.startswith("'") and is_formula(cell[1:]) for row in found for cell in row)
    assert json.loads(done.stdout)["quoted"] == changed > 0
    assert read_table(tmp_path / "advice.csv").table["=drug"].to_pylist() == dangerous_log()["=drug"].to_pylist()
    told = here(*words, "--out", "advice.csv").stderr
    assert f"{changed:,} texts that a spreadsheet would execute" in told
    here(*words, "--out", "raw.csv", "--keep-formulas")
    assert "=drug" in cells(tmp_path / "raw.csv")[0]
    assert "apostrophe" not in here(*words, "--out", "raw.csv", "--keep-formulas").stderr


def test_text_that_came_with_the_apostrophe_is_known_to_the_policy(policy, tmp_path):
    loaded = ponn.load(policy)
    write_table(dangerous_log().drop_columns(["low"]).append_column("low", dangerous_log()["low"]), tmp_path / "r.csv")
    write_table(dangerous_log(), tmp_path / "r.parquet")
    for name in ("r.csv", "r.parquet"):
        done = write_recommendations(loaded, tmp_path / name, tmp_path / f"{name}.out.parquet")
        assert not done.surprises
    assert read_table(tmp_path / "r.csv.out.parquet").table == read_table(tmp_path / "r.parquet.out.parquet").table
