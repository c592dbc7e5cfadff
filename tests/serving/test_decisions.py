"""The decision log loses nothing that anybody was told, and becomes a log to learn from."""

import asyncio
import json
import os
import threading
import time
from http.client import HTTPException

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from test_serve import ask, good_row, started

from ponn.errors import PonnError
from ponn.log.log import read_log
from ponn.serving import decisions
from ponn.serving.advice import Mode
from ponn.serving.decisions import DecisionLog, convert_decisions, find_decision, line, policy_line, worker_files
from served import as_json, cases, made_policy, served


@pytest.fixture(scope="module")
def policy():
    return made_policy()


def lines_of(path):
    """All lines of all workers."""
    return [json.loads(text) for file in worker_files(path) for text in file.read_text().splitlines()]


# Writing -------------------------------------------------------------------------------------------------


def test_what_is_answered_was_written_before(policy, tmp_path):
    path = tmp_path / "d.jsonl"
    with served(policy, tmp_path, decisions=path, mode=Mode("explore", 0.5), access_log=False) as client:
        sent = {"rows": [good_row(), good_row(town="Atlantis", age=None)], "eligible": [["pill", "wait"], ["operate"]]}
        answer = client.post("/recommend", sent).json()
        first, one, two = lines_of(path)
        assert first["kind"] == "policy"
        assert first["columns"] == {"action": "did", "reward": "cost"}
        for j, found in enumerate((one, two)):
            served_one = answer["recommendations"][j]
            assert found["kind"] == "decision"
            assert found["id"] == served_one["id"] == f"{answer['id']}-{j}"
            assert found["policy"] == answer["policy"] == policy.digest
            assert found["features"] == sent["rows"][j]
            assert found["eligible"] == sent["eligible"][j]
            assert (found["action"], found["probability"]) == (served_one["action"], served_one["served"])
            assert abs(found["time"] - time.time()) < 60
        assert two["probability"] == 1.0  # one eligible action
        outcome = client.post("/outcome", {"id": two["id"], "reward": 12.5})
        assert outcome.json() == {"id": two["id"], "reward": 12.5, "notes": []}
        assert lines_of(path)[-1].items() >= {"kind": "outcome", "id": two["id"], "reward": 12.5}.items()
        assert "outside the range" in client.post("/outcome", {"id": one["id"], "reward": 1e6}).json()["notes"][0]
    (file,) = worker_files(path)
    assert file.stat().st_mode & 0o077 == 0  # features are nobody else's business


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"id": "{id}"}, 422),
        ({"id": "{id}", "reward": None}, 422),
        ({"id": "{id}", "reward": "1"}, 422),
        ({"id": "{id}", "reward": 10**400}, 400),
        ({"id": 7, "reward": 1}, 422),
        ({"id": "{id}", "reward": 1, "more": 1}, 422),
        ({"id": "{id}0", "reward": 1}, 404),
        ({"id": "../../etc/passwd", "reward": 1}, 404),
        ({"id": "0" * 12 + "-0-00000000-0", "reward": 1}, 404),
        ({"id": "{id}", "reward": True}, 200),
    ],
)
def test_outcomes_need_a_decision_and_a_number(policy, tmp_path, body, status):
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        (found,) = client.post("/recommend", {"row": good_row()}).json()["recommendations"]
        body = body | {"id": body["id"].replace("{id}", found["id"])} if isinstance(body["id"], str) else body
        answer = client.post("/outcome", body)
        assert answer.status == status
        assert len(lines_of(tmp_path / "d.jsonl")) == 2 + (status == 200)


def test_decisions_are_found_by_any_worker_and_only_by_their_whole_id(policy, tmp_path):
    path = tmp_path / "d.jsonl"
    ids = []
    for _ in range(2):
        with served(policy, tmp_path, decisions=path, access_log=False) as client:
            answer = client.post("/recommend", {"rows": [good_row(age=age) for age in (1, 2, 3)]}).json()
            ids += [one["id"] for one in answer["recommendations"]]
    assert len(worker_files(path)) == 2
    assert [find_decision(path, id)["features"]["age"] for id in ids] == [1, 2, 3, 1, 2, 3]
    tag, offset, salt, row = ids[0].split("-")
    for wrong in (
        "",
        "x",
        f"{tag}-{offset}-{salt}",
        f"{tag}-{offset}-00000000-{row}",
        f"{tag}-0-{salt}-0",
        ids[0] + "9",
    ):
        assert find_decision(path, wrong) is None


def test_requests_that_come_together_share_a_write(policy, tmp_path, monkeypatch):
    written = []

    def slow_write(file, data):
        time.sleep(0.01)
        written.append(data)
        original(file, data)

    original = decisions.write_durably
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        monkeypatch.setattr(decisions, "write_durably", slow_write)

        async def many():
            body = json.dumps({"row": good_row()}).encode()
            return await asyncio.gather(*(client.asked("POST", "/recommend", body) for _ in range(50)))

        answers = client.loop.run_until_complete(many())
    assert {one.status for one in answers} == {200}
    assert len(written) <= 3
    for one in answers:
        id = one.json()["recommendations"][0]["id"]
        assert find_decision(tmp_path / "d.jsonl", id)["id"] == id


def test_what_cannot_be_written_is_not_served(policy, tmp_path, monkeypatch):
    original = decisions.write_durably
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        before = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]

        def half_then_full(file, data):
            original(file, data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(decisions, "write_durably", half_then_full)
        assert client.post("/recommend", {"row": good_row()}).status == 503
        assert client.post("/outcome", {"id": before, "reward": 1}).status == 503
        monkeypatch.setattr(decisions, "write_durably", original)
        while client.service.decisions.file < 0:
            client.post("/recommend", {"row": good_row()})
        after = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]
        assert client.post("/outcome", {"id": after, "reward": 1}).status == 200
        assert client.post("/outcome", {"id": before, "reward": 1}).status == 200
    found = convert_decisions([tmp_path / "d.jsonl"], tmp_path / "log.csv")
    assert (found.rows, found.without_outcome) == (2, 0)
    assert found.torn >= 1


def test_those_who_wait_behind_a_write_that_fails_are_told(policy, tmp_path, monkeypatch):
    original, failures = decisions.write_durably, iter([True])

    def slow_failure(file, data):
        if next(failures, False):
            time.sleep(0.1)
            raise OSError(5, "Input/output error")
        original(file, data)

    async def one_then_more(client):
        body = json.dumps({"row": good_row()}).encode()
        async with asyncio.timeout(20):
            first = asyncio.create_task(client.asked("POST", "/recommend", body))
            while not client.service.decisions.committing:
                await asyncio.sleep(0)
            await asyncio.sleep(0.02)  # the write has begun
            return await asyncio.gather(first, *(client.asked("POST", "/recommend", body) for _ in range(5)))

    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        monkeypatch.setattr(decisions, "write_durably", slow_failure)
        answers = client.loop.run_until_complete(one_then_more(client))
        assert [one.status for one in answers] == [503] * 6  # their ids point into a file that is not trusted
        after = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]
        assert find_decision(tmp_path / "d.jsonl", after)["id"] == after


def test_a_folder_that_is_gone_is_told(tmp_path):
    with pytest.raises(PonnError, match="could not be begun"):
        DecisionLog(tmp_path / "gone" / "d.jsonl").open(b"")


def test_killing_the_server_loses_no_decision_that_was_answered(policy, tmp_path):
    """SIGKILL while four clients ask; every answer that arrived is in the log, and can be told its outcome later."""
    policy.save(tmp_path / "p.ponn")
    arguments = ("p.ponn", "--decisions", "d.jsonl", "--explore", "0.2", "--no-access-log")
    answered: list[dict] = []
    with started(*arguments, cwd=tmp_path) as (process, url):

        def keep_asking():
            try:
                while True:
                    status, body = ask(url, "/recommend", {"rows": [good_row(), good_row(town="b")]})
                    assert status == 200
                    answered.extend(json.loads(body)["recommendations"])
            except (OSError, HTTPException, ValueError, AssertionError):
                pass  # the server is gone, perhaps in the middle of an answer

        threads = [threading.Thread(target=keep_asking) for _ in range(4)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 30
        while len(answered) < 200 and time.monotonic() < until:
            time.sleep(0.01)
        process.kill()
        for thread in threads:
            thread.join()
    assert len(answered) >= 200
    for one in answered:
        found = find_decision(tmp_path / "d.jsonl", one["id"])
        assert (found["action"], found["probability"]) == (one["action"], one["served"])
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        for one in answered[:50]:
            assert client.post("/outcome", {"id": one["id"], "reward": 8}).status == 200
    converted = convert_decisions([tmp_path / "d.jsonl"], tmp_path / "log.csv")
    assert converted.rows == 50
    assert converted.decisions >= len(answered)


# Converting ----------------------------------------------------------------------------------------------


@pytest.fixture
def written(policy, tmp_path):
    """A file of one worker with three decisions, two of which have an outcome."""
    rows = as_json(cases(3, 4))
    rows[1] = good_row(seen="2021-03-04T12:00:00", smoker=0, town='with "quotes",\nand lines')
    rows[2] = {}
    texts = [policy_line(policy, "digest")]
    for j, row in enumerate(rows):
        more = {"eligible": None, "action": "pill", "probability": 0.25 * (j + 1)}
        texts.append(
            line(kind="decision", id=f"id-{j}", time=1_600_000_000.0 + j, policy="digest", features=row, **more)
        )
    for id, when, reward in (("id-1", 5.0, 1.5), ("id-2", 6.0, 2.5), ("id-1", 4.0, 9.9), ("elsewhere", 1.0, 0.0)):
        texts.append(line(kind="outcome", id=id, time=when, reward=reward))
    path = tmp_path / "d.0123456789ab.jsonl"
    path.write_bytes(b"".join(texts))
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_decisions_with_outcomes_become_rows(written, tmp_path, ending):
    out = tmp_path / f"log.{ending}"
    found = convert_decisions([tmp_path / "d.jsonl"], out, keep=("id", "time"))
    assert (found.decisions, found.rows, found.without_outcome) == (3, 2, 1)
    assert (found.replaced, found.unknown, found.torn) == (1, 1, 0)
    assert found.flags == "--action did --reward cost --propensity propensity --minimize"
    options = pacsv.ParseOptions(newlines_in_values=True)
    table = pacsv.read_csv(out, parse_options=options) if ending == "csv" else pq.read_table(out)
    features = ["age", "dose", "smoker", "seen", "town", "ward"]
    assert table.column_names == [*features, "did", "cost", "propensity", "id", "time"]
    first, second = table.to_pylist()
    assert (first["did"], first["cost"], first["propensity"], first["id"]) == ("pill", 1.5, 0.5, "id-1")
    assert (first["age"], first["smoker"], first["town"]) == (51.5, False, 'with "quotes",\nand lines')
    assert str(first["seen"]).startswith("2021-03-04 12:00:00")
    assert (second["cost"], second["propensity"], second["age"]) == (2.5, 0.75, None)
    if ending == "parquet":
        assert table.schema.field("seen").type == pa.timestamp("us")
        assert table.schema.field("smoker").type == pa.bool_()


def test_a_line_that_a_crash_cut_off_is_passed_over_and_counted(written, tmp_path):
    whole = written.read_bytes()
    wanted = convert_decisions([written], tmp_path / "whole.csv")
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last + 1, len(whole)):
        written.write_bytes(whole[:cut])
        found = convert_decisions([written], tmp_path / "log.csv")
        assert (found.torn, found.unknown, found.rows) == (1, wanted.unknown - 1, wanted.rows)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace(b'"outcome"', b'"result"', 1), "line 5: .*of no known kind"),
        (lambda text: text.replace(b'"reward": 1.5', b'"reward": "x"'), "line 5: .*lacks 'reward'"),
        (lambda text: text.replace(b'"action": "pill", ', b"", 1), "line 2: .*lacks 'action'"),
        (lambda text: b"{}\n" + text, "line 1: .*no known kind"),
        (lambda text: b"not json\n" + text, "line 1"),
        (lambda text: b"", "name no policy"),
        (
            lambda text: text.replace(b'"action": "pill"', b'"action": 3', 1).replace(b"id-0", b"id-2", 1),
            "Column 'did'",
        ),
    ],
    ids=range(7),
)
def test_a_file_that_was_changed_is_refused(written, tmp_path, change, told):
    written.write_bytes(change(written.read_bytes()))
    with pytest.raises(PonnError, match=told):
        convert_decisions([written], tmp_path / "log.csv")
    assert not (tmp_path / "log.csv").exists()


def test_policies_that_do_not_agree_are_not_mixed(written, tmp_path):
    text = written.read_bytes()
    first = text[: text.find(b"\n") + 1].replace(b'"digest"', b'"other"')
    for change, told in (
        ((b'"age": "number"', b'"age": "category"'), "'age' is of different kinds"),
        ((b'"reward": "cost"', b'"reward": "price"'), "different action or reward"),
    ):
        written.write_bytes(first.replace(*change) + text)
        with pytest.raises(PonnError, match=told):
            convert_decisions([written], tmp_path / "log.csv")
    written.write_bytes(first.replace(b'"age": "number", ', b'"height": "number", ') + text)
    convert_decisions([written], tmp_path / "log.csv")
    names = pacsv.read_csv(tmp_path / "log.csv", parse_options=pacsv.ParseOptions(newlines_in_values=True)).column_names
    assert {"age", "height"} <= set(names)
    with pytest.raises(PonnError, match="two columns 'cost'"):
        convert_decisions([written], tmp_path / "log.csv", propensity="cost")


def test_a_log_that_is_not_there_is_told(tmp_path):
    with pytest.raises(PonnError, match=r"There is no decision log .*d.jsonl, nor a file d.<worker>.jsonl"):
        convert_decisions([tmp_path / "d.jsonl"], tmp_path / "log.csv")


def test_the_next_policy_is_learned_from_the_decisions_of_the_last(policy, here, tmp_path):
    """Serve with exploration, tell outcomes, convert, learn: all that the server knew arrives in the log."""
    rng = np.random.default_rng(2)
    rows = as_json(cases(600, 3))
    mode = Mode("explore", 0.6)
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", mode=mode, access_log=False) as client:
        found = client.post("/recommend", {"rows": rows}).json()["recommendations"]
        for j, one in enumerate(found[:500]):
            better = one["action"] == ("pill" if rows[j]["ward"] == "north" else "wait")
            client.post("/outcome", {"id": one["id"], "reward": float(10 - 5 * better + rng.normal())})
    made = here("decisions", "d.jsonl", "--out", "log.csv")
    assert made.returncode == 0, made.stderr
    assert "log.csv: 500 of 600 decisions; 100 have no outcome." in made.stderr
    next_command = made.stderr.rpartition("Next: ponn ")[2].split()
    assert next_command[:2] == ["learn", "log.csv"]
    log = read_log(tmp_path / "log.csv", action="did", reward="cost", propensity="propensity", minimize=True)
    assert len(log) == 500
    assert log.p0.tolist() == pytest.approx([one["served"] for one in found[:500]])
    assert [log.actions[a] for a in log.A] == [one["action"] for one in found[:500]]
    quick = ("--set", "epochs=15", "--set", "hidden=(8,)", "--out", "next.ponn", "--json")
    learned = here(*next_command, *quick)
    assert learned.returncode == 0, learned.stderr
    assert json.loads(learned.stdout)["rows"] == 500
    told = json.loads(here("explain", "next.ponn", "--json").stdout)
    assert told["provenance"]["propensities"]["known"] == 1.0
    with served(tmp_path, tmp_path) as client:
        assert client.service.adviser.digest == policy.digest
        os.replace(tmp_path / "next.ponn", tmp_path / "policy.ponn")
        for _ in range(1_000):
            client.loop.run_until_complete(asyncio.sleep(0.01))
            if client.service.adviser.digest != policy.digest:
                break
        answer = client.post("/recommend", {"row": rows[0]})
        assert answer.status == 200
        assert answer.json()["policy"] != policy.digest
