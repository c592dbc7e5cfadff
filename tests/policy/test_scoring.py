"""Batch scoring: the same recommendations as in memory, whatever the format, the pieces and the threads."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import ponn
from ponn.log.encoding import Encoding
from ponn.policy import batches as scoring
from ponn.policy.batches import BATCH_ROWS, write_recommendations
from ponn.policy.inference import BLOCK_ROWS, Architecture, sigmoid
from ponn.policy.models import LinearRewards, Network
from ponn.policy.policy import RECOMMENDED, Policy
from ponn.simulate.synthetic import synthetic
from ponn.tables import streams
from ponn.tables.delimited import blank_missing, parse_delimited
from ponn.tables.files import write_table
from ponn.tables.source import text_buffer
from ponn.tables.streams import open_stream
from ponn.tables.table import read_table

ROWS = 5 * BLOCK_ROWS + 77
INPUTS = ("rows.csv", "rows.csv.gz", "rows.tsv", "rows.parquet", "rows.feather", "rows.arrow", "rows.jsonl")
OUTPUTS = ("out.csv", "out.tsv", "out.parquet", "out.feather", "out.jsonl")


@pytest.fixture(scope="module")
def log() -> ponn.Log:
    return synthetic(rows=ROWS, features=9, actions=4, relevant=3, categorical=0.4, seed=3).log


@pytest.fixture(scope="module")
def rows(log) -> pa.Table:
    """The features with some cells missing, and a column that is no feature."""
    table = log.X
    first = table.column(0)
    holes = pa.chunked_array([pa.array(np.arange(ROWS) % 97 == 5)])
    table = table.set_column(0, table.column_names[0], pc.if_else(holes, pa.scalar(None, first.type), first))
    return table.append_column("id", pa.array([f"{j:05d}" for j in range(ROWS)]))


@pytest.fixture(scope="module")
def policy(log) -> Policy:
    """A network with random weights."""
    encoding = Encoding.fit(log)
    architecture = Architecture(len(log.actions), len(encoding.owner), (30, 20))
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in architecture.shapes.items()}
    selected = np.ones((len(log.actions), len(encoding.features)), bool)
    made = {"reward": {"range": [10.0, 30.0], "minimize": True}}
    return Policy(log.actions, encoding, Network(architecture, weights), selected, (), "ponn", {}, made)


@pytest.fixture
def small(monkeypatch) -> None:
    """Many pieces and batches out of a few rows."""
    monkeypatch.setattr(streams, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(streams, "PIECE_ROWS", 100)
    monkeypatch.setattr(scoring, "BATCH_ROWS", BLOCK_ROWS)


def write_arrow_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=90)


def written(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".arrow":
        write_arrow_stream(table, path)
    else:
        write_table(table, path)
    return path


def in_memory(policy: Policy, rows: pa.Table, **asked: object) -> pa.Table:
    """What the policy recommends; BLAS with several threads rounds otherwise than with one."""
    with threadpool_limits(1, user_api="blas"):
        return policy.recommend(rows, **asked)


# What is written -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", INPUTS)
def test_every_format_gives_what_the_policy_gives_in_memory(policy, rows, tmp_path, name):
    path = written(rows, tmp_path / name)
    expected = in_memory(policy, rows)
    done = write_recommendations(policy, path, tmp_path / "out.parquet", keep=["id"])
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["id", *RECOMMENDED]
    assert found.column("id").to_pylist() == rows.column("id").to_pylist()
    assert found.drop_columns("id").equals(expected)  # to the last bit
    assert done.rows == ROWS
    assert done.surprises == policy.encoding.surprises(rows)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", OUTPUTS)
def test_every_format_is_written(policy, rows, tmp_path, name):
    path = written(rows, tmp_path / "rows.parquet")
    write_recommendations(policy, path, tmp_path / name, columns=["probability", "action"])
    found = read_table(tmp_path / name).table
    assert found.column_names == ["probability", "action"]
    expected = in_memory(policy, rows)
    assert found.column("action").to_pylist() == expected.column("action").to_pylist()
    np.testing.assert_allclose(found.column("probability"), expected.column("probability"), rtol=1e-15)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([name, "rows.parquet"])


@pytest.mark.usefixtures("small")
def test_a_directory_is_read_in_order_and_its_folders_are_columns(policy, rows, tmp_path):
    for part in range(3):
        (tmp_path / "rows" / f"clinic={part}").mkdir(parents=True)
        pq.write_table(rows.slice(part * 500, 500), tmp_path / "rows" / f"clinic={part}" / "x.parquet")
    write_recommendations(policy, tmp_path / "rows", tmp_path / "out.parquet", keep=["clinic", "id"])
    found, whole = pq.read_table(tmp_path / "out.parquet"), read_table(tmp_path / "rows").table
    assert whole.column("clinic").to_pylist() == [j // 500 for j in range(ROWS)]
    assert whole.schema.field("clinic").type == ds.dataset(tmp_path / "rows", partitioning="hive").schema[-1].type
    assert found.column("clinic").equals(whole.column("clinic"))
    assert found.column("id").to_pylist() == rows.column("id").to_pylist()
    assert found.select(RECOMMENDED).equals(in_memory(policy, rows))


@pytest.mark.parametrize("sample", [False, True])
def test_neither_batches_nor_pieces_nor_threads_change_a_bit(policy, rows, tmp_path, monkeypatch, sample):
    path = written(rows, tmp_path / "rows.parquet")
    expected = in_memory(policy, rows, sample=sample, seed=4, probabilities=True)
    for batch, piece, threads in ((1, 7, 1), (1, 1000, 3), (2, 300, 2), (64, 16_384, 2)):
        monkeypatch.setattr(scoring, "BATCH_ROWS", batch * BLOCK_ROWS)
        monkeypatch.setattr(streams, "PIECE_ROWS", piece)
        out = tmp_path / "out.parquet"
        write_recommendations(policy, path, out, probabilities=True, sample=sample, seed=4, threads=threads)
        assert pq.read_table(out).equals(expected)
    assert BATCH_ROWS % BLOCK_ROWS == 0


def test_the_runner_up_is_the_second_most_probable_unless_that_was_drawn(policy, rows):
    h = policy.predict_proba(rows)
    for sample in (False, True):
        table = policy.recommend(rows, sample=sample, seed=1)
        for j in range(0, ROWS, 50):
            ranked = [policy.actions[a] for a in np.argsort(-h[j])]
            ranked.remove(table.column("action")[j].as_py())
            assert table.column("runner_up")[j].as_py() == ranked[0]


def test_draws_follow_the_seed(policy, rows):
    one, again, other = (policy.recommend(rows, sample=True, seed=seed).column("action") for seed in (1, 1, 2))
    assert one.equals(again)
    assert not one.equals(other)
    assert one.to_pylist() == policy.sample(rows, seed=1).tolist()


@pytest.mark.parametrize(("minimize", "ends"), [(False, (10.0, 30.0)), (True, (30.0, 10.0))])
def test_a_model_of_rewards_promises_one_in_the_users_unit(policy, rows, minimize, ends):
    W = np.random.default_rng(0).normal(size=(len(policy.encoding.owner), 4))
    made = {"reward": {"range": [10.0, 30.0], "minimize": minimize}}
    promising = replace(policy, model=LinearRewards(W, np.zeros(4)), provenance=made)
    best = promising.model.rewards(promising.encoding.design(rows)).max(axis=1)
    found = promising.recommend(rows).column("expected_reward").to_numpy()
    np.testing.assert_allclose(found, np.interp(best, (0, 1), ends) if not minimize else 30 - 20 * best, rtol=1e-12)
    assert policy.recommend(rows).column("expected_reward").null_count == ROWS


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.feather", "rows.jsonl"])
def test_no_rows_give_a_table_without_rows(policy, rows, tmp_path, name):
    path = written(rows.slice(0, 0), tmp_path / name)
    done = write_recommendations(policy, path, tmp_path / "out.parquet", keep=["id"])
    assert done.rows == 0
    assert pq.read_schema(tmp_path / "out.parquet").names == ["id", *RECOMMENDED]
    write_recommendations(policy, path, tmp_path / "out.csv", columns=["action"])
    assert (tmp_path / "out.csv").read_text() == '"action"\n'


def test_kept_text_is_copied_as_it_was_written(policy, rows, tmp_path):
    odd = ["007", "1.50", 'a "quoted" word', "two\nlines", "1e3", "", "NA", "ü"]
    table = rows.slice(0, len(odd)).set_column(rows.column_names.index("id"), "id", pa.array(odd))
    write_recommendations(policy, written(table, tmp_path / "rows.csv"), tmp_path / "out.parquet", keep=["id"])
    expected = [None if one in ("", "NA") else one for one in odd]
    assert pq.read_table(tmp_path / "out.parquet").column("id").to_pylist() == expected


@pytest.mark.usefixtures("small")
def test_dictionaries_that_change_between_batches_are_kept_as_values(policy, rows, tmp_path):
    batches = rows.to_batches(max_chunksize=100)
    place = rows.column_names.index("id")
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = rows.schema.set(place, pa.field("id", kind))
    with pa.ipc.new_stream(str(tmp_path / "rows.arrow"), schema) as writer:
        for batch in batches:
            columns = [column.dictionary_encode() if i == place else column for i, column in enumerate(batch.columns)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    write_recommendations(policy, tmp_path / "rows.arrow", tmp_path / "out.feather", keep=["id"])
    found = read_table(tmp_path / "out.feather").table
    assert found.column("id").to_pylist() == rows.column("id").to_pylist()


def test_a_column_may_be_whole_numbers_here_and_fractions_or_nothing_there(policy, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "PIECE_BYTES", 3_000)
    name = next(one.name for one in policy.encoding.features if one.kind == "number")
    numbers = np.where(np.arange(ROWS) < 400, np.arange(ROWS) % 3, np.linspace(0, 1, ROWS))
    column = pa.array(numbers, mask=(np.arange(ROWS) > 900) & (np.arange(ROWS) < 1200))
    text = pc.cast(column, pa.string())
    table = rows.set_column(rows.column_names.index(name), name, text)
    write_recommendations(policy, written(table, tmp_path / "rows.csv"), tmp_path / "out.parquet")
    expected = in_memory(policy, rows.set_column(rows.column_names.index(name), name, column))
    assert pq.read_table(tmp_path / "out.parquet").equals(expected)


@pytest.mark.usefixtures("small")
def test_a_key_that_json_objects_leave_out_is_missing(policy, rows, tmp_path):
    name = policy.encoding.features[0].name
    gone = pa.array(np.arange(ROWS) >= 500)
    table = rows.set_column(0, name, pc.if_else(gone, pa.scalar(None, rows.column(0).type), rows.column(0)))
    path = written(table, tmp_path / "rows.jsonl")
    objects = map(json.loads, path.read_text().splitlines())
    path.write_text("".join(json.dumps({k: v for k, v in one.items() if v is not None}) + "\n" for one in objects))
    write_recommendations(policy, path, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").equals(in_memory(policy, table))


# Text cut into pieces ------------------------------------------------------------------------------------

CELL = st.text(st.sampled_from('ab1 ,"\n\r\tü'), max_size=8)
QUOTED = CELL.map(lambda text: '"' + text.replace('"', '""') + '"')
PLAIN = st.text(st.sampled_from("ab1 ü."), min_size=1, max_size=8)
STRAY = st.sampled_from(['5" pipe', 'a"b', 'x""', 'it"s'])


@given(
    cells=st.lists(st.tuples(QUOTED | PLAIN, QUOTED | PLAIN, QUOTED | PLAIN), min_size=1, max_size=30),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    size=st.integers(1, 200),
)
@settings(max_examples=150, deadline=None)
def test_pieces_of_text_are_the_whole_text(tmp_path_factory, cells, end, last, size):
    check_pieces(tmp_path_factory.mktemp("text") / "t.csv", cells, end, last, size)


@given(
    cells=st.lists(st.tuples(STRAY | PLAIN, PLAIN | STRAY, PLAIN), min_size=1, max_size=30),
    size=st.integers(1, 200),
)
@settings(max_examples=150, deadline=None)
def test_marks_that_do_not_quote_do_not_join_rows(tmp_path_factory, cells, size):
    check_pieces(tmp_path_factory.mktemp("text") / "t.csv", cells, "\n", True, size)


def check_pieces(path: Path, cells: list[tuple[str, ...]], end: str, last: bool, size: int) -> None:
    """Every cell of a text file, read in pieces, is what it is when read at once."""
    lines = ["p,q,r", *map(",".join, cells)]
    path.write_bytes((end.join(lines) + (end if last else "")).encode())
    names = ["p", "q", "r"]
    whole = read_text_at_once(path, names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "PIECE_BYTES", size)
        pieces = list(open_stream(path, names).pieces(names))
    found = pa.concat_tables(pieces) if pieces else whole.slice(0, 0)
    assert found.to_pylist() == whole.to_pylist()


def read_text_at_once(path: Path, names: list[str]) -> pa.Table:
    table = parse_delimited(path, text_buffer(path), ",", dict.fromkeys(names, pa.string()))
    return blank_missing(table, "", [])[0]


def test_old_line_ends_and_blank_lines_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "PIECE_BYTES", 7)
    for content in (b"a,b\r1,x\r2,y\r3,z", b"\n\na,b\n\n1,x\n\n2,y\n3,z\n\n", "\ufeffa,b\n1,x\n2,y\n3,z\n".encode()):
        (tmp_path / "t.csv").write_bytes(content)
        pieces = list(open_stream(tmp_path / "t.csv", ["b"]).pieces(["a", "b"]))
        assert pa.concat_tables(pieces).to_pydict() == {"a": [1, 2, 3], "b": ["x", "y", "z"]}


# What goes wrong -----------------------------------------------------------------------------------------


def refused(policy: Policy, path: Path, message: str, **asked: object) -> None:
    """The run fails with this message and leaves nothing behind."""
    before = set(path.parent.iterdir())
    with pytest.raises(ponn.PonnError, match=message):
        write_recommendations(policy, path, path.parent / "out.parquet", **asked)
    assert set(path.parent.iterdir()) == before


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("row", [1, 2, 257, 900, ROWS])
def test_a_cell_that_is_no_number_is_told_with_file_row_and_column(policy, rows, tmp_path, row):
    name = next(one.name for one in policy.encoding.features if one.kind == "number")
    cells = [None if one is None else str(one) for one in rows.column(name).to_pylist()]
    table = rows.set_column(rows.column_names.index(name), name, pa.array([*cells[: row - 1], "hello", *cells[row:]]))
    for file in ("rows.csv", "rows.parquet"):
        path = written(table, tmp_path / file)
        refused(policy, path, f"{file}, row {row:,}: Column '{name}' holds text .*hello")
        path.unlink()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line + b",1", "in line 1001 has"),
        (lambda line: line.replace(b",", b",\xff", 1), "line 1001 holds the byte 0xff"),
        (lambda line: line.replace(b",", b',"', 1), "quotation mark in line 1001|more than|wrong number of cells"),
    ],
)
def test_text_errors_count_lines_of_the_file(policy, rows, tmp_path, change, message):
    path = written(rows, tmp_path / "rows.csv")
    lines = path.read_bytes().split(b"\n")
    lines[1000] = change(lines[1000])
    path.write_bytes(b"\n".join(lines))
    refused(policy, path, message)


def test_a_row_that_never_ends_is_refused(policy, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(streams, "ONE_BLOCK", 20_000)
    path = written(rows, tmp_path / "rows.csv")
    lines = path.read_text().replace('"', "").splitlines()
    lines[1000] = '"' + lines[1000]
    path.write_text("\n".join(lines))
    refused(policy, path, "has a row of more than .*Is a quotation mark missing")


@pytest.mark.usefixtures("small")
def test_json_errors_count_rows_of_the_file(policy, rows, tmp_path):
    path = written(rows, tmp_path / "rows.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:800], "{oops", *lines[801:]]))
    refused(policy, path, "could not be read as JSON lines: .* in row 801")


@pytest.mark.usefixtures("small")
def test_numbers_here_and_truth_values_there_are_refused(policy, rows, tmp_path):
    name = next(one.name for one in policy.encoding.features if one.kind == "number")
    cells = pa.array(["1.5" if j < 1000 else "true" for j in range(ROWS)])
    table = rows.set_column(rows.column_names.index(name), name, cells)
    refused(policy, written(table, tmp_path / "rows.csv"), f"column '{name}' holds numbers and, in rows .* true or fal")


@pytest.mark.usefixtures("small")
def test_a_kept_column_needs_one_type(policy, rows, tmp_path):
    path = written(rows, tmp_path / "rows.jsonl")
    parsed = [
        json.loads(line) | {"id": j if j < 1000 else j + 0.5} for j, line in enumerate(path.read_text().splitlines())
    ]
    path.write_text("\n".join(map(json.dumps, parsed)))
    refused(policy, path, "column 'id' is of type int64 in its first rows and double in rows", keep=["id"])


def test_wrong_questions_are_told(policy, rows, tmp_path):
    path = written(rows, tmp_path / "rows.parquet")
    first = policy.encoding.features[0].name
    refused(policy, path, "has no column 'nowhere' to keep", keep=["nowhere"])
    refused(policy, path, "two columns 'id'", keep=["id", "id"])
    refused(policy, path, "expected some of action, probability", columns=["reward"])
    refused(policy, path, "asked for are none", columns=[])
    refused(policy, path, "each once", columns=["action", "action"])
    path = written(rows.drop_columns(first), tmp_path / "rows.parquet")
    refused(policy, path, f"lacks the columns '{first}'")
    path = written(rows.append_column("action", rows.column("id")), tmp_path / "rows.parquet")
    refused(policy, path, "two columns 'action'", keep=["action"])
    with pytest.raises(ponn.PonnError, match="ending that is not known"):
        write_recommendations(policy, path, tmp_path / "out.xlsx")
    with pytest.raises(ponn.PonnError, match="There is no file"):
        write_recommendations(policy, tmp_path / "nowhere.csv", tmp_path / "out.csv")


def test_what_a_format_cannot_hold_is_told(policy, rows, tmp_path):
    lists = pa.array([[1, 2]] * ROWS)
    path = written(rows.append_column("many", lists), tmp_path / "rows.parquet")
    with pytest.raises(ponn.PonnError, match=r"out.csv could not be written: .*list"):
        write_recommendations(policy, path, tmp_path / "out.csv", keep=["many"])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("small")
def test_a_truncated_file_leaves_nothing_behind(policy, rows, tmp_path):
    path = written(rows, tmp_path / "rows.csv.gz")
    path.write_bytes(path.read_bytes()[:-2000])
    refused(policy, path, "rows.csv.gz")


@pytest.mark.usefixtures("small")
def test_an_interrupted_run_leaves_the_old_output_and_nothing_else(policy, rows, tmp_path):
    path = written(rows, tmp_path / "rows.parquet")
    (tmp_path / "out.csv").write_text("old")

    def interrupt(done: int, in_all: int | None) -> None:
        assert in_all == ROWS
        if done > 600:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_recommendations(policy, path, tmp_path / "out.csv", progress=interrupt)
    assert {one.name for one in tmp_path.iterdir()} == {"rows.parquet", "out.csv"}
    assert (tmp_path / "out.csv").read_text() == "old"


# Memory --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_reading_is_only_a_few_batches_ahead_of_writing(policy, rows, tmp_path, monkeypatch):
    path = written(rows, tmp_path / "rows.parquet")
    read, ahead = [0], []
    real = open_stream

    def counted(*given) -> streams.Stream:
        stream = real(*given[:1], **{})
        many = pa.concat_tables([rows] * 10)

        def pieces(columns) -> Iterator[pa.Table]:
            for batch in many.select(columns).to_batches(max_chunksize=100):
                read[0] += len(batch)
                yield pa.table(batch)

        return replace(stream, pieces=pieces, rows=None)

    monkeypatch.setattr(scoring, "open_stream", lambda path, texts, limits: counted(path))
    done = write_recommendations(
        policy, path, tmp_path / "out.csv", threads=2, progress=lambda rows, _: ahead.append(read[0] - rows)
    )
    assert done.rows == 10 * ROWS
    assert max(ahead) <= (2 * (1 + scoring.WAITING) + 1) * BLOCK_ROWS


def test_text_is_read_piece_by_piece(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "PIECE_BYTES", 10_000)
    for name in ("rows.csv", "rows.csv.gz", "rows.jsonl"):
        stream = open_stream(written(rows, tmp_path / name))
        assert max(piece.nbytes for piece in stream.pieces(rows.column_names)) < 40_000


# Speed without loss --------------------------------------------------------------------------------------


def test_the_sigmoid_is_exact_to_single_precision():
    z = np.concatenate([np.linspace(-200, 200, 400_001), [-1e6, 1e6, -np.inf, np.inf, -0.0]])
    for kind, most in ((np.float32, 2e-7), (np.float64, 3e-16)):
        given = z.astype(kind)
        expected = 1 / (1 + np.exp(-given.astype(float).clip(-700)))
        assert np.abs(sigmoid(given) - expected).max() < most


# The command ---------------------------------------------------------------------------------------------


def test_the_command_writes_files_and_standard_output_and_tells_surprises_once(policy, rows, here, tmp_path):
    name = policy.encoding.features[0].name
    policy.save(tmp_path / "p.ponn")
    written(rows, tmp_path / "rows.csv")
    only = ("--columns", "action,probability", "--keep", "id")
    done = here("recommend", "p.ponn", "rows.csv", "--out", "out.parquet", "--threads", "2", *only)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    holes = rows.column(0).null_count
    assert done.stderr.count(f"Column '{name}' holds cells unlike anything in training: {holes} ") == 1
    assert f"out.parquet: {ROWS:,} rows in " in done.stderr
    assert pq.read_schema(tmp_path / "out.parquet").names == ["id", "action", "probability"]
    shown = here("recommend", "p.ponn", "rows.csv", *only)
    assert shown.stdout.splitlines()[0] == '"id","action","probability"'
    assert len(shown.stdout.splitlines()) == ROWS + 1
    wrong = here("recommend", "p.ponn", "rows.csv", "--columns", "act")
    assert wrong.returncode == 1
    assert "expected some of action" in wrong.stderr


def test_a_reader_that_goes_away_is_no_error(policy, rows, tmp_path):
    policy.save(tmp_path / "p.ponn")
    written(pa.concat_tables([rows] * 20), tmp_path / "rows.parquet")
    code = "import sys; sys.argv = ['ponn', 'recommend', 'p.ponn', 'rows.parquet']; from ponn.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    _, told = process.communicate()
    assert b"Traceback" not in told
    assert b"Error" not in told
