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
from ponn.log.draft import read_log
from ponn.serving import journal
from ponn.serving.advice import Mode
from ponn.serving.decisions import convert_decisions
from ponn.serving.journal import DecisionLog, OutcomeLog, is_decision, line, outcomes_file, policy_line, worker_files
from ponn.tables.table import read_table
from served import as_json, cases, made_policy, served


@pytest.fixture(scope="module")
def policy():
    return made_policy()


def lines_of(path):
    """All lines of all workers, then all outcomes."""
    files = [*worker_files(path), *([outcomes_file(path)] if outcomes_file(path).exists() else [])]
    return [json.loads(text) for file in files for text in file.read_text().splitlines()]


def decision(path, id):
    """The decision of an id, which the server knows."""
    assert is_decision(path, id)
    (found,) = [one for one in lines_of(path) if one["kind"] == "decision" and one["id"] == id]
    return found


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
            assert found["id"] == served_one["id"]
            assert found["id"].startswith(f"{answer['id']}-")
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
    for file in (*worker_files(path), outcomes_file(path)):
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
    assert [decision(path, id)["features"]["age"] for id in ids] == [1, 2, 3, 1, 2, 3]
    tag, secret, place = ids[0].split("-")
    assert len({id.split("-")[1] for id in ids}) == 2  # of two requests, 128 random bits each
    assert len(secret) == 32
    for wrong in (
        "",
        "x",
        f"{tag}-{secret}",
        f"{tag}-{'0' * 32}-{place}",
        f"{tag}-{secret}-{'0' * 12}",
        f"{tag}-{secret}-{'f' * 12}",
        f"{ids[3][:50]}{int(ids[3][50:], 16) + 1:012x}",
        f"{'0' * 16}-{secret}-{place}",
        ids[0] + "9",
        ids[0].upper(),
    ):
        assert not is_decision(path, wrong)


def test_requests_that_come_together_share_a_write(policy, tmp_path, monkeypatch):
    written = []

    def slow_write(file, data):
        time.sleep(0.01)
        written.append(data)
        original(file, data)

    original = journal.write_durably
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        monkeypatch.setattr(journal, "write_durably", slow_write)

        async def many():
            body = json.dumps({"row": good_row()}).encode()
            return await asyncio.gather(*(client.asked("POST", "/recommend", body) for _ in range(50)))

        answers = client.loop.run_until_complete(many())
    assert {one.status for one in answers} == {200}
    assert len(written) <= 3
    for one in answers:
        id = one.json()["recommendations"][0]["id"]
        assert is_decision(tmp_path / "d.jsonl", id)


class FullDisk:
    """Writes that put half of what they should on disk and then find no room, as long as it is full."""

    def __init__(self, monkeypatch):
        self.full, self.tries, self.original = False, 0, journal.write_durably
        monkeypatch.setattr(journal, "write_durably", self.write)
        monkeypatch.setattr(journal, "RETRY_SECONDS", 0.02)

    def write(self, file, data):
        self.tries += 1
        if self.full:
            self.original(file, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        self.original(file, data)


def wait_until_ready(client, ready=True):
    async def wait():
        async with asyncio.timeout(20):
            while (await client.asked("GET", "/readyz")).status != (200 if ready else 503):
                await asyncio.sleep(0.005)

    client.loop.run_until_complete(wait())


def test_what_cannot_be_written_is_not_served_until_there_is_room_again(policy, tmp_path, monkeypatch):
    disk = FullDisk(monkeypatch)
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        before = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]
        disk.full = True
        for _ in range(200):
            assert client.post("/recommend", {"row": good_row()}).status == 503
        assert client.post("/outcome", {"id": before, "reward": 10}).status == 503
        told = client.get("/readyz")
        assert (told.status, told.json()["ready"]) == (503, False)
        assert "No space left" in told.json()["decision_log"]
        assert "ponn_decision_log_writable 0\n" in client.get("/metrics").body.decode()
        assert disk.tries < 50  # a disk that is full is not asked for every request
        disk.full = False
        wait_until_ready(client)  # though nobody recommends
        after = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]
        for id in (before, after):
            assert client.post("/outcome", {"id": id, "reward": 10}).status == 200
    assert len(worker_files(tmp_path / "d.jsonl")) == 1
    found = convert_decisions([tmp_path / "d.jsonl"], tmp_path / "log.csv")
    assert (found.rows, found.without_outcome, found.torn, found.unreadable) == (2, 0, 0, 0)


def test_a_worker_that_starts_on_a_full_disk_leaves_no_file_and_begins_when_there_is_room(
    policy, tmp_path, monkeypatch
):
    disk = FullDisk(monkeypatch)
    disk.full = True
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        wait_until_ready(client, ready=False)
        client.loop.run_until_complete(asyncio.sleep(0.2))  # several tries
        assert worker_files(tmp_path / "d.jsonl") == []
        assert client.post("/recommend", {"row": good_row()}).status == 503
        disk.full = False
        wait_until_ready(client)
        id = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]
        assert is_decision(tmp_path / "d.jsonl", id)
    assert len(worker_files(tmp_path / "d.jsonl")) == 1


def test_a_file_that_is_removed_under_the_server_is_begun_anew(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.02)
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        worker_files(tmp_path / "d.jsonl")[0].unlink()
        assert client.post("/recommend", {"row": good_row()}).status == 503  # else nobody would ever find it
        wait_until_ready(client)
        id = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]
        assert decision(tmp_path / "d.jsonl", id)
        client.post("/outcome", {"id": id, "reward": 10})
        outcomes_file(tmp_path / "d.jsonl").unlink()
        client.post("/outcome", {"id": id, "reward": 11})
    assert lines_of(tmp_path / "d.jsonl")[-1]["reward"] == 11


def test_those_who_wait_behind_a_write_that_fails_are_told(policy, tmp_path, monkeypatch):
    original, failures = journal.write_durably, iter([True])

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

    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.02)
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        monkeypatch.setattr(journal, "write_durably", slow_failure)
        answers = client.loop.run_until_complete(one_then_more(client))
        assert [one.status for one in answers] == [503] * 6  # their ids say where lines stand that were cut off
        wait_until_ready(client)
        after = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]
        assert is_decision(tmp_path / "d.jsonl", after)


def test_a_folder_that_is_gone_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        DecisionLog(tmp_path / "gone" / "d.jsonl").open(b"")


def outcome_line(id, reward, when=0.0):
    return line(kind="outcome", id=id, time=when, reward=reward, outside=False)


def test_what_a_killed_worker_left_behind_the_last_outcome_is_cut_off(tmp_path):
    path = outcomes_file(tmp_path / "d.jsonl")
    for whole in (b"", outcome_line("a", 1.0) * 2_000):
        path.write_bytes(whole + outcome_line("torn", 2.0)[:-5])
        log = OutcomeLog(tmp_path / "d.jsonl")
        log.write(outcome_line("b", 3.0))
        assert path.read_bytes() == whole + outcome_line("b", 3.0)
        log.close_file()


def test_workers_write_outcomes_in_turns(tmp_path):
    """Eight threads with a log each, as eight workers have: no line is lost or damaged, and each's order is kept."""

    def work(number):
        log = OutcomeLog(tmp_path / "d.jsonl")
        for reward in range(40):
            log.write(outcome_line(f"{number}", float(reward)))
        log.close_file()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(text) for text in outcomes_file(tmp_path / "d.jsonl").read_text().splitlines()]
    for number in range(8):
        assert [one["reward"] for one in lines if one["id"] == f"{number}"] == list(range(40))


def test_to_look_up_a_forged_id_reads_no_more_than_a_true_one(policy, tmp_path, monkeypatch):
    """In a file with lines of a megabyte."""
    path, read = tmp_path / "d.jsonl", []
    with served(policy, tmp_path, decisions=path, access_log=False) as client:
        id = client.post("/recommend", {"row": good_row()}).json()["recommendations"][0]["id"]
    (file,) = worker_files(path)
    with file.open("ab") as more:
        more.write((b"x" * 1_000_000 + b"\n") * 3)

    def reading(path, place, size):
        read.append(size)
        return original(path, place, size)

    original = journal.read_at
    monkeypatch.setattr(journal, "read_at", reading)
    tag, secret, place = id.split("-")
    forged = [f"{tag}-{secret}-{place + more:012x}" for place in (0, 7, 500_000) for more in (0, 1)]
    forged += [f"{tag}-{'0' * 32}-{place}", f"{'0' * 16}-{secret}-{place}"]
    assert is_decision(path, id)
    assert not any(is_decision(path, one) for one in forged)
    assert set(read) == {len(journal.BEGINNING) - 2 + len(id)}


def test_ids_of_version_0_1_are_still_known(written, tmp_path):
    lines = written.read_bytes().splitlines(keepends=True)
    start = len(lines[0])
    texts = [text.replace(b"id-", b"0123456789ab-%x-0a1b2c3d-" % start) for text in lines[1:4]]
    written.write_bytes(b"".join([lines[0], *texts]))
    ids = [json.loads(text)["id"] for text in texts]
    assert [is_decision(tmp_path / "d.jsonl", id) for id in ids] == [True] * 3
    for wrong in (ids[0][:-1] + "3", ids[0][:-1] + "9999999", ids[0].replace("0a1b", "0a1c"), "0" + ids[0][1:-1] + "7"):
        assert not is_decision(tmp_path / "d.jsonl", wrong)


@pytest.mark.parametrize("what", ["flag", "refuse"])
def test_outcomes_outside_the_range_of_training_are_flagged_or_refused(policy, tmp_path, what):
    low, high = policy.provenance["reward"]["range"]
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", outcomes=what, access_log=False) as client:
        found = client.post("/recommend", {"rows": [good_row()] * 3}).json()["recommendations"]
        sent = ((found[0], low), (found[1], high + 1), (found[2], -1e308))
        answers = [client.post("/outcome", {"id": one["id"], "reward": reward}) for one, reward in sent]
    outside = [200, 200] if what == "flag" else [422, 422]
    assert [one.status for one in answers] == [200, *outside]
    assert "outside the range of training" in answers[1].body.decode()
    made = convert_decisions([tmp_path / "d.jsonl"], tmp_path / "log.csv")
    assert (made.rows, made.outside) == ((3, 2) if what == "flag" else (1, 0))


def test_the_outcome_that_arrives_last_counts_whatever_clocks_say(policy, tmp_path, monkeypatch):
    """Three servers, the last two at once, as workers are; the clock goes backwards all the time."""
    path, clock = tmp_path / "d.jsonl", iter(range(2_000_000_000, 0, -1))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    with served(policy, tmp_path, decisions=path, access_log=False) as client:
        ids = [one["id"] for one in client.post("/recommend", {"rows": [good_row()] * 2}).json()["recommendations"]]
        client.post("/outcome", {"id": ids[0], "reward": 1})
    with (
        served(policy, tmp_path, decisions=path, access_log=False) as one,
        served(policy, tmp_path, decisions=path, access_log=False) as other,
    ):
        for reward, client in enumerate([one, other, other, one, other], start=2):
            client.post("/outcome", {"id": ids[0], "reward": reward})
        one.post("/outcome", {"id": ids[1], "reward": 9})
    found = convert_decisions([path], tmp_path / "log.parquet", keep=["id"], history=tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    assert dict(zip(table["id"].to_pylist(), table["cost"].to_pylist(), strict=True)) == {ids[0]: 6.0, ids[1]: 9.0}
    assert (found.rows, found.replaced) == (2, 5)
    history = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert [one["reward"] for one in history] == [1, 2, 3, 4, 5, 6, 9]
    assert [one["counts"] for one in history] == [False] * 5 + [True] * 2
    assert [one["arrival"] for one in history] == list(range(1, 8))


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
    known = {one.get("id"): one for one in lines_of(tmp_path / "d.jsonl")}
    for one in answered:
        found = known[one["id"]]
        assert is_decision(tmp_path / "d.jsonl", one["id"])
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


@pytest.mark.parametrize("formulas", [False, True])
def test_texts_that_a_spreadsheet_would_execute_are_learned_from_as_they_were(written, tmp_path, formulas):
    written.write_bytes(written.read_bytes().replace(b'with \\"quotes\\"', b"=cmd|'/C calc'!A0"))
    found = convert_decisions([written], tmp_path / "log.csv", formulas=formulas)
    assert found.quoted == (not formulas)
    assert ("'=cmd" in (tmp_path / "log.csv").read_text()) != formulas
    town = "=cmd|'/C calc'!A0,\nand lines"
    assert town in read_table(tmp_path / "log.csv").table.column("town").to_pylist()


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
    ("change", "told", "rows"),
    [
        (lambda text: text.replace(b'"outcome"', b'"result"', 1), "line 5: it is of no known kind", 2),
        (lambda text: text.replace(b'"reward": 1.5', b'"reward": "x"'), "line 5: its 'reward' cannot be one", 2),
        (lambda text: text.replace(b'"reward": 1.5', b'"reward": NaN'), "line 5: its 'reward' cannot be one", 2),
        (lambda text: text.replace(b'"reward": 1.5', b'"reward": 1' + b"0" * 400), "line 5: its 'reward'", 2),
        (lambda text: text.replace(b'"probability": 0.5', b'"probability": 0.0'), "line 3: its 'probability'", 1),
        (lambda text: text.replace(b'"action": "pill", ', b"", 1), "line 2: it lacks 'action'", 2),
        (lambda text: b"{}\n" + text, "line 1: it is of no known kind", 2),
        (lambda text: b"not json\n" + text, "line 1: Expecting value", 2),
        (lambda text: b"\xff\xfe\n" + text, "line 1: it is not text", 2),
        (lambda text: b"[" * 100_000 + b"\n" + text, "line 1: it is nested", 2),
        (lambda text: b"9" * 10_000 + b"\n" + text, "line 1: Exceeds the limit", 2),
        (lambda text: text.replace(b'"age": 51.5', b'"age": "old"'), "line 3: a cell of 'age' is no double", 1),
        (lambda text: text.replace(b'"age": 51.5', b'"age": 1' + b"0" * 400), "line 3: a cell of 'age'", 1),
        (lambda text: text.replace(b'"smoker": 0', b'"smoker": 7'), "line 3: a cell of 'smoker' is no bool", 1),
        (lambda text: text.replace(b"2021-03-04T12", b"2021-33-04T12"), "line 3: a cell of 'seen'", 1),
        (lambda text: text.replace(b'"town": "with', b'"town": "\\ud800'), "line 3: a cell of 'town'", 1),
        (lambda text: text.replace(b'"town": "with', b'"town": 3, "x": "'), "line 3: a cell of 'town'", 1),
        (
            lambda text: text.replace(b'"pill", "probability": 0.5', b'3, "probability": 0.5'),
            "line 3: a cell of 'did'",
            1,
        ),
    ],
    ids=range(18),
)
def test_a_line_that_cannot_be_read_is_named_counted_and_passed_over(written, here, tmp_path, change, told, rows):
    changed = change(written.read_bytes())
    assert changed != written.read_bytes()
    written.write_bytes(changed)
    done = here("decisions", "d.jsonl", "--out", "log.csv", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["unreadable"], found["rows"]) == (1, rows)
    (named,) = found["unreadable_lines"]
    assert f"line {named['line']}: {named['reason']}".startswith(told)
    assert named["file"] == written.name
    assert "old" not in named["reason"]  # nothing of a cell
    in_words = here("decisions", "d.jsonl", "--out", "log.csv")
    assert f"1 lines cannot be read and were passed over:\n  {written.name}, {told}" in in_words.stderr
    (tmp_path / "log.csv").unlink()
    refused = here("decisions", "d.jsonl", "--out", "log.csv", "--strict")
    assert refused.returncode == 1
    assert told in refused.stderr
    assert not (tmp_path / "log.csv").exists()


def test_of_many_unreadable_lines_the_first_are_named(written, tmp_path):
    written.write_bytes(written.read_bytes() + b"x\n" * 1_000)
    found = convert_decisions([written], tmp_path / "log.csv")
    assert (found.unreadable, len(found.unreadable_lines), found.rows) == (1_000, 20, 2)


def test_a_file_without_a_policy_is_refused(written, tmp_path):
    written.write_bytes(b"")
    with pytest.raises(PonnError, match="name no policy"):
        convert_decisions([written], tmp_path / "log.csv")
    assert not (tmp_path / "log.csv").exists()


def test_decisions_that_are_there_twice_count_once(written, tmp_path):
    (tmp_path / "d.00000000abcd.jsonl").write_bytes(written.read_bytes())
    found = convert_decisions([tmp_path / "d.jsonl", written], tmp_path / "log.csv")
    assert (found.rows, found.unknown, found.repeated) == (2, 1, 2)


def test_only_their_owner_reads_what_is_made_of_decisions(written, tmp_path):
    convert_decisions([written], tmp_path / "log.csv", history=tmp_path / "all.csv")
    for name in ("log.csv", "all.csv"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_whole_numbers_that_no_column_holds_exactly_do_not_spoil_the_log(policy, tmp_path):
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:
        for age in (2**53 + 1, 2**64 - 1, 1e308, 5e-324):
            answer = client.post("/recommend", {"row": good_row(age=age), "reasons": True})
            assert answer.status == 200
            (one,) = answer.json()["recommendations"]
            assert client.post("/outcome", {"id": one["id"], "reward": 10}).status == 200
    found = convert_decisions([tmp_path / "d.jsonl"], tmp_path / "log.csv")
    assert (found.rows, found.unreadable) == (4, 0)


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
