"""The log: reading, scaling of rewards, splitting."""

import gzip

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ponn
from ponn.tables.files import write_table


def small_table(n: int = 60, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "age": rng.normal(50, 10, n),
            "ward": rng.choice(["north", "south"], n),
            "smoker": rng.random(n) < 0.3,
            "drug": rng.choice(["a", "b", "c"], n),
            "days": rng.integers(1, 30, n),
        }
    )


ROLES = {"action": "drug", "reward": "days"}


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet", ".feather", ".arrow", ".jsonl"])
def test_every_file_format_gives_the_same_log(tmp_path, ending):
    table = small_table()
    path = tmp_path / f"log{ending}"
    write_table(table, path)
    log, direct = ponn.read_log(path, **ROLES), ponn.read_log(table, **ROLES)
    assert log.actions == direct.actions == ("a", "b", "c")
    assert log.features == direct.features == ("age", "ward", "smoker")
    assert np.array_equal(log.A, direct.A)
    assert np.array_equal(log.R, direct.R)
    assert np.array_equal(ponn.Encoding.fit(log).levels(log), ponn.Encoding.fit(direct).levels(direct))


@pytest.mark.parametrize("frame", [pa.Table.to_pandas, pl.from_arrow, lambda table: table.to_pydict()])
def test_every_frame_gives_the_same_log(frame):
    log, direct = ponn.read_log(frame(small_table()), **ROLES), ponn.read_log(small_table(), **ROLES)
    assert log.features == direct.features
    assert np.array_equal(log.A, direct.A)
    assert np.array_equal(log.R, direct.R)


def notes_on(rewards) -> str:
    table = small_table(len(rewards)).set_column(4, "days", pa.array(rewards))
    return " ".join(ponn.read_log(table, **ROLES).notes)


def test_a_few_rewards_far_from_the_others_are_told():
    near = np.random.default_rng(1).uniform(0, 5, 400)
    near[[17, 40]] = 5_000, -900
    told = notes_on(near)
    assert "'days' lies far from all others in 2 rows (18, 41), e.g. 5000; the others are between 0.0" in told
    assert "far from all others" not in notes_on(np.clip(near, 0, 5))


@pytest.mark.parametrize(
    "rewards",
    [
        np.arange(600) < 2,  # rare successes
        np.random.default_rng(2).lognormal(0, 1.5, 5_000),  # a long tail, as of costs
        np.random.default_rng(3).normal(size=5_000),
        [0, 1, 0, 0, 0, 50, 1, 0],  # too few rows to tell
    ],
)
def test_rewards_as_they_usually_are_give_no_such_note(rewards):
    assert "far from all others" not in notes_on(rewards)


def test_a_duckdb_relation_is_a_source():
    import duckdb

    relation = duckdb.from_arrow(small_table())
    log = ponn.read_log(relation, **ROLES)
    assert len(log) == 60


def test_a_directory_of_parquet_files_is_one_log(tmp_path):
    table = small_table()
    for part in range(3):
        pq.write_table(table.slice(part * 20, 20), tmp_path / f"part-{part}.parquet")
    (tmp_path / "_SUCCESS").touch()
    log = ponn.read_log(tmp_path, **ROLES)
    assert np.array_equal(log.R, ponn.read_log(table, **ROLES).R)


def test_folders_named_key_value_become_columns(tmp_path):
    for ward in ("north", "south"):
        (tmp_path / f"clinic={ward}").mkdir()
        pq.write_table(small_table(), tmp_path / f"clinic={ward}" / "x.parquet")
    assert "clinic" in ponn.read_log(tmp_path, **ROLES).features


def test_arrow_columns_are_handed_over_not_copied():
    table = small_table()
    log = ponn.read_log(table, **ROLES)
    ours, theirs = log.table.column("age").chunk(0), table.column("age").chunk(0)
    assert ours.buffers()[1].address == theirs.buffers()[1].address


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6), minimize=st.booleans(), declared=st.booleans())
def test_rewards_are_scaled_and_shown_in_the_users_unit_again(low, width, minimize, declared):
    raw = low + width * np.array([0.0, 0.25, 1.0, 0.5])
    table = pa.table({"x": [1.5, 2.5, 1.5, 3.5], "a": ["u", "v", "u", "v"], "r": raw})
    span = (low - width, low + 3 * width) if declared else None
    log = ponn.read_log(table, action="a", reward="r", minimize=minimize, reward_range=span)
    assert log.R.min() >= 0
    assert log.R.max() <= 1
    assert np.allclose(log.outcome, raw, rtol=1e-9, atol=1e-9 * (abs(low) + width))
    assert (np.argmax(log.R) == np.argmin(raw)) if minimize else (np.argmax(log.R) == np.argmax(raw))
    if not declared:
        assert log.R.min() == 0
        assert log.R.max() == 1


def test_split_is_random_reproducible_and_complete():
    log = ponn.read_log(small_table(1_000), **ROLES)
    train, test = log.split(0.7, seed=3)
    again, _ = log.split(0.7, seed=3)
    other, _ = log.split(0.7, seed=4)
    assert len(train) == 700
    assert len(test) == 300
    assert train.table.equals(again.table)
    assert not train.table.equals(other.table)
    both = np.sort(np.concatenate([train.table.column("age").to_numpy(), test.table.column("age").to_numpy()]))
    assert np.array_equal(both, np.sort(log.table.column("age").to_numpy()))
    assert train.reward_range == test.reward_range == log.reward_range


def share_of_largest(groups: list[int]) -> float:
    return max(groups.count(one) for one in groups) / len(groups)


@given(st.lists(st.integers(0, 12), min_size=8, max_size=60), st.integers(0, 5), st.sampled_from([0.3, 0.5, 0.7]))
def test_no_group_is_in_two_parts(groups, seed, share):
    n = len(groups)
    rng = np.random.default_rng(seed)
    table = pa.table({"x": rng.normal(size=n), "a": [0, 1] * (n // 2) + [0] * (n % 2), "r": np.arange(n), "g": groups})
    log = ponn.read_log(table, action="a", reward="r", group="g")
    if share_of_largest(groups) > 0.3:  # a part could come out empty, which split refuses
        return
    train, test = log.split(share, seed)
    assert len(train) + len(test) == n
    assert not set(train.table.column("g").to_pylist()) & set(test.table.column("g").to_pylist())
    assert "g" not in log.features


def test_later_rows_are_in_the_test_part_and_ties_stay_together():
    rng = np.random.default_rng(0)
    days = pa.array(rng.integers(0, 20, 200)).cast(pa.int32()).cast(pa.date32())
    table = small_table(200).append_column("day", days)
    log = ponn.read_log(table, **ROLES, time="day")
    train, test = log.split(0.7)
    assert max(train.table.column("day").to_pylist()) < min(test.table.column("day").to_pylist())
    assert abs(len(train) - 140) <= 10


def test_with_group_and_time_a_group_goes_where_its_last_row_goes():
    table = pa.table(
        {"x": [0.1, 0.2, 0.3, 0.4], "a": [0, 1, 0, 1], "r": [0, 1, 1, 0], "g": ["p", "q", "p", "q"], "t": [1, 2, 9, 3]}
    )
    train, test = ponn.read_log(table, action="a", reward="r", group="g", time="t").split(0.5)
    assert set(train.table.column("g").to_pylist()) == {"q"}
    assert set(test.table.column("g").to_pylist()) == {"p"}


def test_split_refuses_what_it_cannot_do():
    log = ponn.read_log(small_table(), **ROLES)
    with pytest.raises(ponn.PonnError, match="between 0 and 1"):
        log.split(1.5)
    alone = ponn.read_log(small_table().append_column("g", pa.array(["same"] * 60)), **ROLES, group="g")
    with pytest.raises(ponn.PonnError, match="one part empty"):
        alone.split(0.5)


def test_batches_are_the_log_in_order():
    log = ponn.read_log(small_table().append_column("p", pa.array([0.5] * 60)), **ROLES, propensity="p")
    parts = list(log.batches(25))
    assert [len(part) for part in parts] == [25, 25, 10]
    assert np.array_equal(np.concatenate([part.R for part in parts]), log.R)
    assert pa.concat_tables(part.table for part in parts).equals(log.table)


def test_set_aside_columns_are_told_and_can_be_named():
    table = small_table().append_column("patient", pa.array([f"P{j:03}" for j in range(60)]))
    table = table.append_column("number", pa.array(np.arange(60))).append_column("site", pa.array(["here"] * 60))
    log = ponn.read_log(table, **ROLES)
    assert set(log.set_aside) == {"patient", "number", "site"}
    assert all(any(repr(name) in note for note in log.notes) for name in log.set_aside)
    named = ponn.read_log(table, **ROLES, features=["age", "number"])
    assert named.features == ("age", "number")


def test_drop_missing_counts_what_it_leaves_out():
    table = small_table().to_pandas()
    table.loc[[3, 4], "drug"] = None
    table["days"] = table["days"].astype("Int64")
    table.loc[[4, 5], "days"] = pd.NA
    with pytest.raises(ponn.PonnError, match=r"'drug' is missing in 2 rows \(4, 5\)"):
        ponn.read_log(table, **ROLES)
    log = ponn.read_log(table, **ROLES, drop_missing=True)
    assert len(log) == 57
    assert any("3 of 60 rows" in note for note in log.notes)


def test_semicolons_are_noticed(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("x;a;r\n1.5;u;0\n2.5;v;1\n")
    log = ponn.read_log(path, action="a", reward="r")
    assert log.features == ("x",)
    assert any("';'" in note for note in log.notes)


def test_spelled_missing_values_are_counted(tmp_path):
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(b"country,a,r\nNA,u,0\nDE,v,1\nNA,u,1\nFR,v,0\n,v,0\nDE,u,0\n"))
    log = ponn.read_log(path, action="a", reward="r")
    assert any("'country'" in note and "'NA' (2)" in note for note in log.notes)
    assert log.table.column("country").null_count == 3


def test_none_is_an_answer_not_a_missing_value(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("drugs,a,r\nnone,u,0\naspirin,v,1\nnone,u,1\naspirin,v,0\n")
    assert ponn.read_log(path, action="a", reward="r").table.column("drugs").null_count == 0


def test_weights_whose_sum_no_number_holds_are_refused():
    table = small_table().append_column("w", pa.array([1e308] * 3 + [1.0] * 57))
    with pytest.raises(ponn.PonnError, match=r"weights in column 'w' add up to more than a number can hold.*1e\+308"):
        ponn.read_log(table, action="drug", reward="days", weight="w")
