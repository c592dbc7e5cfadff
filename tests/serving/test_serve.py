"""The server says what the library says, refuses what it must, and stays up."""

import asyncio
import gc
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from commands import PONN
from ponn.errors import PonnError
from ponn.log.eligibility import Eligibility
from ponn.policy.policy import JSON_NAME, WEIGHTS_NAME
from ponn.policy.reasons import usual_values
from ponn.serving import server
from ponn.serving.advice import Adviser, Ask, AskError, Mode, drawn
from ponn.serving.decisions import convert_decisions
from ponn.serving.metrics import Metrics
from ponn.serving.rows import RowError, RowReader
from ponn.serving.service import Options, served_adviser
from ponn.serving.turns import MOST_TURNS, REFUSED_AT_ONCE, REFUSED_LATE, Pace, Together
from served import as_json, cases, made_policy, served

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def policy():
    return made_policy()


@pytest.fixture(scope="module")
def rows():
    """Rows that training never saw: missing cells where there were none, unseen texts, numbers far outside."""
    table = cases(300, 7).to_pydict()
    table["age"][:4] = [None, 1e300, -1e300, 49.95]
    table["dose"][:4] = [None, 3.7, -2.0, 1.0]
    table["town"][:4] = [None, "h", "Atlantis", "a"]
    table["ward"][:4] = [None, "söuth", "NORTH", ""]
    return pa.table(table, cases(1, 7).schema)


@pytest.fixture(scope="module")
def client(policy, tmp_path_factory):
    with served(policy, tmp_path_factory.mktemp("served"), access_log=False) as found:
        yield found


def good_row(**changes):
    return {"age": 51.5, "dose": 2.5, "smoker": True, "seen": "2021-03-04", "town": "a", "ward": "north"} | changes


# The same as the library ---------------------------------------------------------------------------------


def test_plain_rows_are_encoded_as_tables_are(policy, rows):
    reader = RowReader(policy.encoding)
    read = reader.read(as_json(rows))
    found = reader.design(read.x, read.texts)
    np.testing.assert_array_equal(found, policy.encoding.design(rows))
    singles = [reader.design([x], [texts]) for x, texts in zip(read.x, read.texts, strict=True)]
    np.testing.assert_array_equal(np.vstack(singles), found)
    assert [bool(notes) for notes in read.notes[:4]] == [True, True, True, True]
    surprises = policy.encoding.surprises(rows.slice(4))
    assert sum(map(len, read.notes[4:])) == sum(sum(counts.values()) for counts in surprises.values())


def test_a_field_that_is_left_out_is_missing(policy):
    reader = RowReader(policy.encoding)
    blank = reader.read([dict.fromkeys(reader.names), {}])
    X = reader.design(blank.x, blank.texts)
    np.testing.assert_array_equal(X[0], X[1])
    assert blank.notes[1][0] == "age: left out, taken as missing"
    assert [note for note in blank.notes[0] if "age" in note] == []
    assert "dose: missing, which training never saw" in blank.notes[0]


@pytest.mark.parametrize("single", [True, False], ids=["one by one", "together"])
def test_the_server_recommends_what_the_library_recommends(client, policy, rows, single):
    sent = as_json(rows)
    if single:
        sent, rows = sent[:20], rows.slice(0, 20)
        answers = [client.post("/recommend", {"row": row}).json()["recommendations"][0] for row in sent]
    else:
        answers = client.post("/recommend", {"rows": sent}).json()["recommendations"]
    expected = policy.recommend(rows, probabilities=True).to_pylist()
    for found, wanted in zip(answers, expected, strict=True):
        for name in ("action", "runner_up", "supported"):
            assert found[name] == wanted[name]
        for name in ("probability", "expected_reward"):
            assert found[name] == pytest.approx(wanted[name], abs=1e-6)
        for action, p in found["probabilities"].items():
            assert p == pytest.approx(wanted[f"p_{action}"], abs=1e-6)
        assert found["served"] == 1.0


def test_requests_that_come_together_get_their_own_answers(client, rows):
    sent = [{"rows": as_json(rows.slice(j, 1 + j % 3))} for j in range(30)]
    sent[4] = {"row": good_row(), "eligible": ["operate"]}
    sent[5] = {"row": good_row(dose="many")}

    async def all_at_once():
        return await asyncio.gather(*(client.asked("POST", "/recommend", json.dumps(one).encode()) for one in sent))

    together = client.loop.run_until_complete(all_at_once())
    for one, found in zip(sent, together, strict=True):
        alone = client.post("/recommend", one)
        assert found.status == alone.status
        for mine, other in zip(
            found.json().get("recommendations", ()), alone.json().get("recommendations", ()), strict=True
        ):
            assert mine["action"] == other["action"]
            assert mine["probability"] == pytest.approx(other["probability"], abs=1e-6)
    assert together[4].json()["recommendations"][0]["action"] == "operate"
    assert together[5].status == 422


def test_long_requests_are_answered_in_a_thread(client, rows, monkeypatch):
    short = client.post("/recommend", {"rows": as_json(rows)}).json()["recommendations"]
    monkeypatch.setattr("ponn.serving.service.INLINE", 0)
    for mine, other in zip(
        client.post("/recommend", {"rows": as_json(rows)}).json()["recommendations"], short, strict=True
    ):
        assert mine["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)


def test_what_is_not_asked_for_is_not_sent(client):
    (found,) = client.post("/recommend", {"row": good_row(), "probabilities": False}).json()["recommendations"]
    assert "probabilities" not in found
    assert found["notes"] == []
    assert found["reasons"] is None


# What is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("dose", "2.5", "'2.5' is a text"),
        ("dose", True, "True is true or false"),
        ("dose", [1], "the value is a list"),
        ("dose", {}, "the value is an object"),
        ("age", 10**400, "a number of more than 60 digits is not a finite number"),
        ("smoker", "yes", "'yes' is a text"),
        ("smoker", 2, "2 is a number"),
        ("seen", "soon", "'soon' is not a date"),
        ("seen", 18_000, "18000 is a number"),
        ("seen", "\ud800", "'\\ud800' is not a date"),
        ("town", 1, "1 is a number"),
        ("town", False, "False is true or false"),
        ("town", "\ud800", "'\\ud800' is not text that can be written"),
        ("colour", 1, "the policy has no such field"),
    ],
)
def test_a_wrong_cell_is_named(client, policy, field, value, reason):
    sent = [good_row(), good_row(**{field: value})]
    with pytest.raises(RowError) as refused:
        RowReader(policy.encoding).read(sent)
    assert (refused.value.row, refused.value.field, refused.value.reason) == (2, field, reason)
    answer = client.post("/recommend", {"rows": sent})
    if value in (10**400, "\ud800"):
        assert answer.status == 400  # nothing that JSON can hold
        return
    found = answer.json()
    assert answer.status == 422
    assert (found["row"], found["field"], found["reason"]) == (2, field, reason)
    assert found["error"].startswith(f"Row 2, field {field!r}: {reason}; expected ")


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b'{"row": {"age": NaN}}', 400, "not JSON"),
        (b'{"row": {"age": 1e999}}', 400, "infinity"),
        (b'{"row": {"age": 1}', 400, "not JSON"),
        (b'{"row": {"ward": "\xff"}}', 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b'{"row": ' + b'{"age":' * 5_000, 400, "not JSON"),
        (b"", 400, "not JSON"),
        (b"[]", 422, "it is a list"),
        (b"{}", 422, "both or none of row and rows"),
        (b'{"row": {}, "rows": [{}]}', 422, "both or none of row and rows"),
        (b'{"rows": []}', 422, "it is empty"),
        (b'{"rows": {}}', 422, "it is an object"),
        (b'{"rows": [1]}', 422, "Row 1: it is a number"),
        (b'{"row": {}, "reason": true}', 422, "there is no such field"),
        (b'{"row": {}, "reasons": 1}', 422, "it is a number"),
        (b'{"row": {}, "eligible": []}', 422, "it is empty"),
        (b'{"row": {}, "eligible": "pill"}', 422, "it is a text"),
        (b'{"row": {}, "eligible": ["pil"]}', 422, "there is no action 'pil'"),
        (b'{"row": {}, "eligible": [{}]}', 422, "there is no action"),
        (b'{"row": {}, "eligible": [["pill"], ["pill"]]}', 422, "2 lists for 1 rows"),
        (b'{"rows": [{}, {}], "eligible": [["pill"], []]}', 422, "no eligible action"),
        (b'{"rows": [' + b"{}," * 1_000 + b"{}]}", 413, "1,001 rows"),
    ],
    ids=lambda value: value[:30].decode("latin-1") if isinstance(value, bytes) else None,
)
def test_a_wrong_request_is_told_what_is_wrong(client, body, status, told):
    answer = client.ask("POST", "/recommend", body)
    assert answer.status == status
    assert told in answer.json()["error"]


HOSTILE = [  # values that JSON can hold, each of which some later step has trouble with
    *(2**53 + 1, 2**60, 2**63, 2**64 - 1, -(2**63), 10**30, 1e308, -1.7e308, 5e-324, -0.0, 1e15, 1e22, 0, 1, 2),
    *(True, False, None, "", "\x00", "a\x00b", "=cmd", "|", "pill|", "\r\n", "a\tb", "nan", "inf", "1e5", "true"),
    *("\U0010ffff", "\uffff", "é" * 9_999, "y" * 10_001, "1" * 65, [], [[]], ["pill"], [1], [None], [2**60]),
    *(["pill", 1], {}, {"a": 1}, "0001-01-01", "9999-12-31", "99999-01-01", "-99999-01-01", "2021-02-30"),
    *("2021-03-04T23:59:60", "2021-03-04T12:00:00Z", "2021-03-04T12:00:00.123456789", "1677-01-01", "292277-01-01"),
]


def test_no_value_of_any_field_makes_a_mistake_of_ours(policy, here, tmp_path):
    """Every hostile value in every field, with every option: answered or refused, and what was logged is a log."""
    rules = ["operate if age >= 40", "pill if ward == 'x'", "pill if floor >= 3", "wait if old == true"]
    told = replace(policy, usual=usual_values(policy.encoding, cases(400, 1)), eligibility=Eligibility("open", rules))
    good = good_row(open="wait|pill", floor=2, old=False)
    options = [{"reasons": True}, {"eligible": ["wait", "pill"]}]
    answered = 0
    mode = Mode("explore", 0.5)
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", mode=mode, access_log=False) as client:
        client.service.adviser = Adviser(told, mode)
        for field in good:
            for value in HOSTILE:
                for more in options:
                    answer = client.post("/recommend", {"rows": [good, good | {field: value}], **more})
                    assert answer.status in (200, 400, 422), (field, value, more)
                    if answer.status == 200:
                        id = answer.json()["recommendations"][1]["id"]
                        assert client.post("/outcome", {"id": id, "reward": value}).status in (200, 422)
                        assert client.post("/outcome", {"id": id, "reward": 10}).status == 200
                        answered += 1
    found = convert_decisions([tmp_path / "d.jsonl"], tmp_path / "log.csv")
    assert (found.rows, found.unreadable) == (answered, 0)
    assert answered > 200
    checked = here("check", "log.csv", "--action", "did", "--reward", "cost")
    assert checked.returncode == 0, checked.stderr


class Poisoned(Adviser):
    """Fails for every batch that holds a row of age 13, and says the whole row in its error."""

    def advise(self, asked):
        """Fail or advise."""
        for one in asked:
            for row in one.ask.rows:
                if row.get("age") == 13:
                    raise RuntimeError(f"cannot answer {row}")
        return super().advise(asked)


def test_a_batch_that_fails_fails_only_for_the_culprit_whose_cells_are_not_logged(policy, tmp_path, caplog):
    with served(policy, tmp_path, access_log=False) as client:
        client.service.adviser = Poisoned(policy)
        sent = [{"row": good_row(ward="secret-place", age=13.0 if j == 7 else 50.0)} for j in range(30)]

        async def all_at_once():
            return await asyncio.gather(*(client.asked("POST", "/recommend", json.dumps(one).encode()) for one in sent))

        statuses = [one.status for one in client.loop.run_until_complete(all_at_once())]
        assert statuses == [500 if j == 7 else 200 for j in range(30)]
        assert client.post("/recommend", {"rows": [sent[7]["row"]] * 500, "reasons": True}).status == 500
    told = server.JsonLines().format(caplog.records[0])
    assert "RuntimeError" in told
    assert "test_serve.py" in told  # the place
    assert "secret-place" not in caplog.text + told


@pytest.mark.parametrize("path", ["/policy", "/openapi.json", "/metrics", "/score"])
def test_mistakes_on_any_route_have_our_form_and_are_logged_without_their_message(
    policy, tmp_path, caplog, monkeypatch, path
):
    def fail(*_):
        raise KeyError("secret-place")

    with served(policy, tmp_path, access_log=False) as client:
        for name in ("kept", "current"):
            monkeypatch.setattr(client.service, name, fail)
        monkeypatch.setattr(client.service.metrics, "text", fail)
        answer = client.ask("POST" if path == "/score" else "GET", path, b"a", headers={"content_type": "text/csv"})
    assert (answer.status, set(answer.json())) == (500, {"error"})
    assert answer.headers["cache-control"] == "no-store"
    assert "KeyError" in caplog.text
    assert "secret-place" not in caplog.text


def test_what_fails_beside_all_requests_is_logged_without_its_message(policy, tmp_path, caplog):
    async def fail():
        raise ValueError("secret-place")

    with served(policy, tmp_path, access_log=False) as client:
        client.loop.run_until_complete(client.asked("GET", "/healthz"))
        task = client.loop.create_task(fail())
        client.loop.run_until_complete(asyncio.sleep(0.01))
        del task
        gc.collect()
    assert "beside all requests: ValueError" in caplog.text
    assert "secret-place" not in caplog.text


def test_every_answer_has_safe_headers(policy, tmp_path, monkeypatch):
    with served(policy, tmp_path, token=TOKEN, access_log=False) as client:
        key = {"authorization": f"Bearer {TOKEN}"}
        answers = [client.get(path, **key) for path in ("/", "/docs", "/policy", "/healthz", "/readyz", "/metrics")]
        answers += [client.get(path, **key) for path in ("/openapi.json", "/static/dom.js", "/nowhere", "/recommend")]
        answers += [client.get("/policy"), client.post("/recommend", {"row": good_row()}, **key)]
        answers += [client.post("/recommend", {"row": 3}, **key), client.ask("POST", "/score", b"a\n1\n", headers=key)]
        answers += [client.ask("POST", "/recommend", b"{}" * 1_000_000, headers=key)]
        monkeypatch.setattr(client.service, "read", lambda _: 1 / 0)
        answers += [client.post("/recommend", {"row": good_row()}, **key)]
    assert [one.status for one in answers] == [*[200] * 8, 404, 405, 401, 200, 422, 415, 413, 500]
    for one in answers:
        assert one.headers["cache-control"] == "no-store"
        assert one.headers["x-content-type-options"] == "nosniff"
        assert one.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors" in one.headers["content-security-policy"]
        assert one.headers["x-request-id"]


def test_large_requests_keep_nobody_waiting(policy, rows, tmp_path):
    """While 1,000 rows with reasons are answered 3 at a time, health is told in between, and small requests too.

    The slowest of some hundred answers may take 50 ms of processor time, and the median a tenth of that: the whole
    takes a fifth of a second without pauses.
    """
    told = replace(policy, usual=usual_values(policy.encoding, cases(400, 1)))
    large = json.dumps({"rows": (as_json(rows.slice(4)) * 4)[:1_000], "reasons": True}).encode()
    small = json.dumps({"row": good_row()}).encode()
    times = {"/healthz": [], "/recommend": []}

    async def ask_small(client):
        for path, spent in times.items():
            started = time.thread_time()
            method, body = ("POST", small) if path == "/recommend" else ("GET", b"")
            assert (await client.asked(method, path, body)).status == 200
            spent.append(time.thread_time() - started)  # of the event loop, with whatever came between

    async def run(client):
        waiting = [asyncio.ensure_future(client.asked("POST", "/recommend", large)) for _ in range(3)]
        while not all(one.done() for one in waiting):
            await ask_small(client)
            await asyncio.sleep(0.001)
        return [one.result() for one in waiting]

    with served(told, tmp_path, access_log=False) as client:
        alone = client.ask("POST", "/recommend", large).json()["recommendations"]
        answers = client.loop.run_until_complete(run(client))
    for answer in answers:
        found = answer.json()["recommendations"]
        assert [one["action"] for one in found] == [one["action"] for one in alone]
        assert len({one["id"] for one in found}) == 1_000
    assert len(times["/healthz"]) > 20
    for spent in times.values():
        assert max(spent) < 0.05
        assert sorted(spent)[len(spent) // 2] < 0.005


def test_a_wrong_row_of_a_large_request_is_named(client, rows):
    sent = as_json(rows.slice(4)) * 4
    sent[900] = sent[900] | {"dose": "many"}
    found = client.post("/recommend", {"rows": sent[:1_000], "reasons": True}).json()
    assert (found["row"], found["field"]) == (901, "dose")
    answer = client.post("/recommend", {"rows": sent[:300], "eligible": [["pill"]] * 2, "reasons": True})
    assert "2 lists for 300 rows" in answer.json()["error"]


def test_too_many_large_requests_are_told_to_come_again(policy, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("ponn.serving.turns.MOST_WAITING", 3)
    large = json.dumps({"rows": as_json(rows), "reasons": True}).encode()
    small = json.dumps({"row": good_row()}).encode()

    async def all_at_once(client):
        sent = [large] * 20 + [small] * 20
        return await asyncio.gather(*(client.asked("POST", "/recommend", one) for one in sent))

    with served(policy, tmp_path, access_log=False) as client:
        statuses = [one.status for one in client.loop.run_until_complete(all_at_once(client))]
        assert sorted(set(statuses[:20])) == [200, 503]
        assert statuses[:20].count(200) == 7
        assert set(statuses[20:]) == {200}
        assert client.ask("POST", "/recommend", large).status == 200


def test_the_pace_of_a_policy_is_learned():
    pace = Pace()
    assert pace.estimate(0, True) == 0
    assert pace.estimate(1_000, True) > 0.1  # nothing is known yet
    for rows, seconds in ((1, 0.002), (100, 0.004)):
        pace.learn(rows, True, seconds)
    assert pace.estimate(1, True) == 0.002
    assert pace.estimate(32, True) == 0.064  # in proportion, until some such were seen
    assert pace.estimate(127, True) == 0.004
    assert pace.rows_in(0.005, True) == 2
    assert pace.rows_in(0.0001, True) == 1
    for _ in range(30):
        pace.learn(1, True, 0.0001)
    assert pace.estimate(1, True) == pytest.approx(0.0001, rel=0.1)


def test_ten_thousand_malformed_bodies_are_all_refused(client, rows):
    """Good bodies with one to four random changes of bytes; those that are still good requests may be answered."""
    rng = random.Random(20_261_116)
    sent = [json.dumps({"rows": as_json(rows.slice(j, 2)), "eligible": ["pill", "wait"]}).encode() for j in range(20)]
    sent += [json.dumps({"id": "0123456789ab-0-00000000-0", "reward": 1.5}).encode()]
    statuses: dict[int, int] = {}
    pieces = [
        b"null",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"1e999",
        b"-",
        b"\\u0000",
        b"\xff",
        b"0" * 30,
        b"true",
    ]

    async def all_of_them():
        for number in range(10_000):
            body = bytearray(rng.choice(sent))
            for _ in range(rng.randint(1, 4)):
                start = rng.randrange(len(body))
                body[start : start + rng.choice([0, 1, 1, 5, 40])] = rng.choice([b"", *pieces, rng.randbytes(2)])
            path = "/outcome" if number % 5 == 0 else "/recommend"
            answer = await client.asked("POST", path, bytes(body))
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
            if answer.status == 200:
                json.loads(body)  # else it was malformed
            else:
                assert answer.json()["error"]

    client.loop.run_until_complete(all_of_them())
    assert set(statuses) <= {200, 400, 404, 422}
    assert statuses[400] > 5_000


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_refused(policy, tmp_path, declared):
    with served(policy, tmp_path, most_bytes=500) as client:
        body = json.dumps({"row": good_row()}).encode()
        assert client.ask("POST", "/recommend", body.ljust(500)).status == 200
        answer = client.ask("POST", "/recommend", body.ljust(501), declared=declared, pieces=3)
        assert answer.status == 413
        assert client.ask("POST", "/recommend", body, headers={"content_length": "9" * 5_000}).status == 413


def test_a_body_that_does_not_arrive_is_not_waited_for(policy, tmp_path):
    with served(policy, tmp_path, body_seconds=0.05) as client:
        assert client.ask("POST", "/recommend", None).status == 408
        assert client.ask("POST", "/score", None, headers={"content_type": "text/csv"}).status == 408


def test_other_types_are_refused_so_that_no_web_page_can_post_here(client):
    body = json.dumps({"row": good_row()}).encode()
    for given in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
        assert client.ask("POST", "/recommend", body, headers={"content_type": given}).status == 415
    assert (
        client.ask("POST", "/recommend", body, headers={"content_type": "Application/JSON; charset=utf-8"}).status
        == 200
    )


def test_without_the_token_only_health_and_page_are_open(policy, tmp_path):
    with served(policy, tmp_path, token=TOKEN) as client:
        for path in ("/policy", "/metrics", "/openapi.json", "/report", "/nowhere"):
            assert client.get(path).status == 401
        for wrong in ("", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"bearer {TOKEN}", "Bearer é"):
            answer = client.post("/recommend", {"row": good_row()}, authorization=wrong)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert client.post("/recommend", {"row": good_row()}, authorization=f"Bearer {TOKEN}").status == 200
        for path in ("/healthz", "/readyz", "/docs"):
            assert client.get(path).status == 200
        for path in ("/static/../policy", "/static//policy", "/healthz/", "/static/%2e%2e/policy"):
            assert client.get(path).status in (401, 404, 307)


def test_a_token_that_could_be_guessed_is_refused(tmp_path):
    path = tmp_path / "token"
    for text in ("", "short", "with space " * 3, "\x00" * 20):
        path.write_text(text)
        with pytest.raises(PonnError, match="16 printable"):
            server.read_token(path)
    path.write_text(f"{TOKEN}\n")
    assert server.read_token(path) == TOKEN
    with pytest.raises(PonnError, match="could not be read"):
        server.read_token(tmp_path / "nowhere")


def test_on_this_machine_the_server_answers_only_to_its_own_names(policy, tmp_path):
    """A web page whose name was made to lead to 127.0.0.1 must not reach a server that asks for no token."""
    hosts = server.allowed_hosts("127.0.0.1", ("clinic.example",))
    with served(policy, tmp_path, hosts=hosts) as client:
        for name in ("127.0.0.1:8000", "localhost", "[::1]:80", "Clinic.Example:443"):
            assert client.get("/policy", host=name).status == 200
        for name in ("evil.example", "", "127.0.0.1.evil.example"):
            assert client.get("/policy", host=name).status == 421
    assert server.allowed_hosts("0.0.0.0", ()) is None


@pytest.mark.parametrize(
    "path", ["../serve.py", "..%2fserve.py", "%2e%2e/serve.py", "/etc/passwd", "....//serve.py", "\x00"]
)
def test_no_path_leads_out_of_the_folder(client, path):
    answer = client.get(f"/static/{path}")
    assert answer.status == 404
    assert b"import" not in answer.body


def test_errors_of_the_framework_have_our_form(client):
    assert client.get("/nowhere").json() == {"error": "Not Found"}
    assert client.get("/recommend").status == 405
    assert client.get("/recommend").json() == {"error": "Method Not Allowed"}
    assert client.get("/report").status == 404
    assert "no decision log" in client.post("/outcome", {"id": "x", "reward": 1}).json()["error"]


# Eligible actions and draws ------------------------------------------------------------------------------


def test_only_eligible_actions_are_recommended(client, policy, rows):
    sent = as_json(rows.slice(0, 60))
    h = policy.predict_proba(rows.slice(0, 60))
    masks = np.array([[True, True, False], [False, True, True], [False, False, True]] * 20)
    eligible = [[action for action, one in zip(policy.actions, mask, strict=True) if one] for mask in masks]
    answer = client.post("/recommend", {"rows": sent, "eligible": eligible}).json()["recommendations"]
    restricted = h * masks / (h * masks).sum(axis=1, keepdims=True)
    for j, found in enumerate(answer):
        assert list(found["probabilities"].values()) == pytest.approx(restricted[j].tolist(), abs=1e-6)
        assert found["action"] == policy.actions[restricted[j].argmax()]
        rest = [a for a in range(3) if masks[j, a] and policy.actions[a] != found["action"]]
        assert found["runner_up"] == (policy.actions[max(rest, key=lambda a: h[j, a])] if rest else None)
    same = client.post("/recommend", {"rows": sent, "eligible": eligible[0]}).json()["recommendations"]
    assert [one["action"] for one in same[::3]] == [one["action"] for one in answer[::3]]


def test_where_the_policy_gives_eligible_actions_nothing_the_best_promise_counts(rows):
    policy = made_policy(greedy=True)
    adviser = Adviser(policy)
    h = policy.predict_proba(rows)
    worst = [policy.actions[a] for a in np.flatnonzero(h.sum(axis=0) < len(h))][:2]
    (found,) = adviser.advise([adviser.check(Ask(as_json(rows), eligible=worst))])
    X = policy.encoding.design(rows)
    places = [policy.actions.index(action) for action in worst]
    best = np.array(places)[policy.model.rewards(X)[:, places].argmax(axis=1)]
    assert [one["action"] for one in found.recommendations] == [policy.actions[a] for a in best]
    assert all(one["probability"] == 1 for one in found.recommendations)


def test_labels_that_are_equal_but_not_the_same_are_told_apart():
    adviser = Adviser(made_policy(labels=(0, 1, 2)))
    assert adviser.mask([1]).tolist() == [False, True, False]
    for wrong in (True, "1", 1.0, None):
        with pytest.raises(PonnError, match="there is no action"):
            adviser.mask([wrong])


def test_only_supported_actions_are_served_and_counted_where_that_is_asked(policy, rows, tmp_path):
    logging = policy.companions["logging"]
    rare = replace(logging, arrays={**logging.arrays, "c": logging.arrays["c"] + np.float32([0, -30, 0])})
    careful = replace(policy, companions={**policy.companions, "logging": rare})
    expected = careful.recommend(rows, supported_only=True).to_pylist()
    lost = careful.recommend(rows).column("supported").to_pylist().count(False)
    assert lost > 0
    with served(careful, tmp_path, mode=Mode(supported_only=True)) as client:
        found = client.post("/recommend", {"rows": as_json(rows)}).json()["recommendations"]
        told = client.get("/metrics").body.decode()
    assert [(one["action"], one["runner_up"]) for one in found] == [(x["action"], x["runner_up"]) for x in expected]
    assert all(one["supported"] for one in found)
    assert f"ponn_restricted_total {lost}" in told
    assert "ponn_fell_back_total 0" in told
    with pytest.raises(PonnError, match="no picture of current practice"):
        Adviser(replace(policy, companions={}), Mode(supported_only=True))


def test_explore_serves_the_mixture_it_says(policy, rows):
    """q = (1 - eps) [a is best] + eps [a is eligible and supported] / how many are; drawn as often as that.

    20,000 draws of one row: a share is off by more than 4.5 standard errors in less than 1e-5 of the seeds.
    """
    adviser = Adviser(policy, Mode("explore", 0.3))
    X = policy.encoding.design(rows)
    h, supported = policy.model.probabilities(X), policy.support(X)
    E = np.tile([True, True, False], (len(X), 1))
    q = adviser.serving(np.where(E, h, 0), E, supported)
    for j in range(len(X)):
        best = np.where(E[j], h[j], -1).argmax()
        tried = E[j] & supported[j] if (E[j] & supported[j]).any() else np.arange(3) == best
        for a in range(3):
            assert q[j, a] == pytest.approx(0.7 * (a == best) + 0.3 * tried[a] / tried.sum())
    j = int(np.flatnonzero(supported[:, :2].all(axis=1))[0])
    adviser.random = np.random.default_rng(3)
    checked = adviser.check(Ask([as_json(rows)[j]] * 1_000, eligible=["operate", "pill"]))
    found = [one for _ in range(20) for one in adviser.advise([checked])[0].recommendations]
    share = sum(one["served"] < 0.5 for one in found) / len(found)
    assert {round(one["served"], 12) for one in found} == {0.15, 0.85}
    assert abs(share - 0.15) < 4.5 * math.sqrt(0.15 * 0.85 / len(found))
    assert {one["action"] for one in found} == {"operate", "pill"}


def test_sample_serves_draws_from_h(policy, rows):
    """5,000 draws of one row; off by more than 4.5 standard errors in less than 1e-5 of the seeds."""
    adviser = Adviser(policy, Mode("sample"))
    adviser.random = np.random.default_rng(5)
    checked = adviser.check(Ask([as_json(rows)[9]] * 5_000))
    found = adviser.advise([checked])[0].recommendations
    for action, p in found[0]["probabilities"].items():
        mine = [one for one in found if one["action"] == action]
        assert abs(len(mine) / len(found) - p) <= 4.5 * math.sqrt(p * (1 - p) / len(found))
        assert all(one["served"] == p == one["probability"] for one in mine)


def test_an_action_of_probability_zero_is_never_drawn():
    q = np.array([[0.0, 1 / 3, 1 / 3, 1 / 3 - 1e-12, 0.0]])
    for u in (0.0, 1e-300, 0.5, np.nextafter(1, 0)):
        assert 1 <= drawn(q, np.array([u]))[0] <= 3


# The policy file -----------------------------------------------------------------------------------------


def changed_file(path, change):
    """The policy file with its description changed."""
    with zipfile.ZipFile(path) as archive:
        description, weights = json.loads(archive.read(JSON_NAME)), archive.read(WEIGHTS_NAME)
    change(description)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(JSON_NAME, json.dumps(description))
        archive.writestr(WEIGHTS_NAME, weights)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(provenance={}),
        lambda found: found["provenance"].update(reward={"range": [0], "minimize": False}),
        lambda found: found["provenance"].update(reward={"range": ["a", "b"], "minimize": False}),
        lambda found: found["provenance"].update(columns=None),
        lambda found: found["provenance"].update(worse=float("nan")),
        lambda found: found.update(settings=3),
        lambda found: found["provenance"].update(large=1 << 70),
        lambda found: found.update(actions=["1", 1, "2"]),
        lambda found: found.update(actions=[[1], [2], [3]]),
        lambda found: found["encoding"]["features"][0].update(name="dose"),
        lambda found: found["encoding"]["features"][0].update(scale=0.0),
        lambda found: found["encoding"]["features"][0].update(mean="x"),
        lambda found: found["encoding"]["features"][4].update(kept=[1, 2, 3, 4]),
    ],
    ids=range(13),
)
def test_a_policy_that_could_not_answer_is_refused_before_it_is_asked(policy, tmp_path, change):
    path = tmp_path / "policy.ponn"
    policy.save(path)
    served_adviser(path, Mode())
    changed_file(path, change)
    with pytest.raises(PonnError):
        served_adviser(path, Mode())


def wait_until(client, condition):
    async def wait():
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)

    client.loop.run_until_complete(wait())


def test_a_replaced_policy_is_taken_up_and_a_damaged_one_is_not(policy, tmp_path, caplog):
    other = made_policy(1)
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl") as client:
        path = tmp_path / "policy.ponn"
        served_by = set()

        async def keep_asking(stop):
            while not stop.is_set():
                answer = await client.asked("POST", "/recommend", json.dumps({"row": good_row()}).encode())
                assert answer.status == 200
                served_by.add(answer.json()["policy"])
                await asyncio.sleep(0)

        stop = asyncio.Event()
        asking = client.loop.create_task(keep_asking(stop))
        other.save(path)
        wait_until(client, lambda: other.digest in served_by)
        path.write_bytes(path.read_bytes()[:-200])
        wait_until(client, lambda: client.service.refused)
        assert "damaged" in client.service.refused
        assert "policy refused" in caplog.text
        ready = client.get("/readyz")
        assert ready.status == 200
        assert ready.json()["policy"] == other.digest
        assert "damaged" in ready.json()["refused"]
        told = client.get("/metrics").body.decode()
        assert 'ponn_policy_reloads_total{result="loaded"} 1\n' in told
        assert 'ponn_policy_reloads_total{result="refused"} 1\n' in told
        assert "ponn_policy_refused 1\n" in told
        path.unlink()
        wait_until(client, lambda: "no policy file" in client.service.refused)
        policy.save(path)
        wait_until(client, lambda: client.service.adviser.digest == policy.digest and not client.service.refused)
        client.loop.call_soon(stop.set)
        client.loop.run_until_complete(asking)
    assert served_by == {policy.digest, other.digest}
    lines = [json.loads(one) for file in tmp_path.glob("d.*.jsonl") for one in file.read_text().splitlines()]
    known = [one["policy"] for one in lines if one["kind"] == "policy"]
    assert known == [policy.digest, other.digest, policy.digest]
    assert {one["policy"] for one in lines if one["kind"] == "decision"} == {policy.digest, other.digest}


def test_a_worker_that_starts_with_a_damaged_file_waits_for_a_good_one(policy, tmp_path):
    (tmp_path / "policy.ponn").write_bytes(b"nothing")
    with served(tmp_path, tmp_path) as client:
        assert client.get("/healthz").status == 200
        assert client.get("/readyz").status == 503
        assert client.get("/policy").status == 503
        assert client.post("/recommend", {"row": good_row()}).status == 503
        assert client.get("/openapi.json").status == 200
        policy.save(tmp_path / "policy.ponn")
        wait_until(client, lambda: client.service.adviser)
        assert client.post("/recommend", {"row": good_row()}).status == 200


def test_the_look_out_for_a_better_policy_survives_whatever_a_file_does(policy, tmp_path, caplog, monkeypatch):
    """Folders, links to nowhere, unreadable and half written files, exceptions nobody foresaw; then a good one."""
    path, other = tmp_path / "policy.ponn", made_policy(1)

    def explode(*_):
        raise RecursionError("maximum recursion depth exceeded")

    with served(policy, tmp_path) as client:

        def refused(told):
            wait_until(client, lambda: told in client.service.refused)
            ready = client.get("/readyz")
            assert ready.status == 200
            assert told in ready.json()["refused"]
            assert "ponn_policy_refused 1\n" in client.get("/metrics").body.decode()
            assert client.post("/recommend", {"row": good_row()}).json()["policy"] == policy.digest

        path.unlink()
        path.mkdir()
        refused("There is no policy file")
        path.rmdir()
        path.symlink_to(path)
        path.unlink()
        path.write_bytes(b"")
        refused("is no zip")
        path.write_bytes(b"PK" * 40_000)
        content = (policy.save(tmp_path / "good.ponn"), (tmp_path / "good.ponn").read_bytes())[1]
        path.write_bytes(content[: len(content) // 2])
        refused("its end is missing")
        with monkeypatch.context() as patched:
            patched.setattr("ponn.serving.service.load_adviser", explode)
            path.write_bytes(content)
            refused("could not be loaded: RecursionError")
        with monkeypatch.context() as patched:
            patched.setattr("ponn.serving.service.Service.reload", explode)
            path.write_bytes(content + b" ")
            wait_until(client, lambda: "after a look" in caplog.text)
        other.save(path)
        wait_until(client, lambda: client.service.adviser.digest == other.digest)
        assert not client.service.refused
        assert client.get("/readyz").json()["refused"] is None
    assert "RecursionError" in caplog.text


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="everybody reads everything here")
def test_a_file_that_becomes_readable_is_taken_up(policy, tmp_path):
    path = tmp_path / "policy.ponn"
    with served(policy, tmp_path) as client:
        path.chmod(0)
        made_policy(1).save(path)
        path.chmod(0)
        wait_until(client, lambda: "could not be read" in client.service.refused)
        path.chmod(0o600)
        wait_until(client, lambda: client.service.adviser.digest != policy.digest)


def test_a_worker_that_starts_beside_a_refused_file_serves_the_last_good_one(policy, tmp_path):
    (tmp_path / "shared").mkdir()
    options = {"metrics": tmp_path / "shared"}
    with served(policy, tmp_path, **options):
        pass
    (tmp_path / "policy.ponn").write_bytes(b"nothing")
    with served(tmp_path, tmp_path, **options) as client:
        ready = client.get("/readyz")
        assert ready.status == 200
        assert ready.json()["policy"] == policy.digest
        assert "is no zip" in ready.json()["refused"]
        assert client.post("/recommend", {"row": good_row()}).json()["policy"] == policy.digest
        other = made_policy(1)
        other.save(tmp_path / "policy.ponn")
        wait_until(client, lambda: client.service.adviser.digest == other.digest)
    (tmp_path / "policy.ponn").unlink()
    with served(tmp_path, tmp_path, **options) as client:
        assert client.service.adviser.digest == other.digest
        assert "There is no policy file" in client.service.refused
    assert (tmp_path / "shared" / "last-good.ponn").stat().st_mode & 0o777 == 0o600


def test_a_worker_that_is_killed_beside_a_refused_file_is_replaced_by_one_that_answers(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    with started("p.ponn", "--workers", "2", cwd=tmp_path) as (process, url):
        wait_for(lambda: ask(url, "/readyz")[0] == 200)
        (tmp_path / "p.ponn").write_bytes(b"nothing")
        wait_for(lambda: json.loads(ask(url, "/readyz")[1])["refused"])
        killed = children_of(process.pid)
        for worker in killed:
            os.kill(worker, signal.SIGKILL)
        wait_for(lambda: len(set(children_of(process.pid)) - set(killed)) == 2)
        wait_for(lambda: answered(url))
        for _ in range(20):
            status, body = ask(url, "/readyz")
            assert status == 200
            assert json.loads(body)["policy"] == policy.digest
            assert "is no zip" in json.loads(body)["refused"]


def answered(url):
    with suppress(OSError):
        return ask(url, "/recommend", {"row": good_row()})[0] == 200
    return False


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def children_of(pid):
    """The workers of a server; the process that watches over semaphores is none."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


# What is told --------------------------------------------------------------------------------------------


def test_policy_describes_a_form(client, policy):
    found = client.get("/policy").json()
    assert found["digest"] == policy.digest
    assert found["reward"] == {"name": "cost", "range": policy.provenance["reward"]["range"], "minimize": True}
    assert found["mode"] == {"serve": "best", "explore": 0.0, "supported_only": False}
    features = {one["name"]: one for one in found["features"]}
    assert {name: one["kind"] for name, one in features.items()} == {
        **{"age": "number", "dose": "number", "smoker": "boolean", "seen": "date"},
        **{"town": "category", "ward": "category"},
    }
    assert features["dose"] == {
        **{"name": "dose", "kind": "number", "missing": False, "low": 1.0, "high": 5.0, "usual": 2.5},
        **{"levels": None, "values": [1.0, 2.5, 5.0], "whole": False},
    }
    assert sorted(features["town"]["levels"]) == list("abcdefgh")
    assert features["seen"]["low"].startswith("2020-01-")
    answer = client.post("/recommend", {"rows": found["examples"]})
    assert answer.status == 200
    assert all(one["notes"] == [] for one in answer.json()["recommendations"])


def test_the_access_log_holds_no_feature_values_unless_asked(policy, tmp_path, capsys):
    for asked in (False, True):
        with served(policy, tmp_path, log_features=asked) as client:
            answer = client.post("/recommend", {"row": good_row(ward="secret-place")})
            client.get("/healthz")
        first, second = (json.loads(one) for one in capsys.readouterr().err.splitlines())
        assert first["id"] == answer.json()["id"] == answer.headers["x-request-id"]
        assert (first["path"], first["method"], first["status"], first["rows"]) == ("/recommend", "POST", 200, 1)
        assert ("secret-place" in json.dumps(first)) is asked
        assert second["path"] == "/healthz"


def test_counters_survive_a_full_temporary_disk(tmp_path):
    """Under a limit on the size of files: what cannot be shared is counted by the process alone."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from ponn.serving.metrics import Metrics\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))\n"
        "mine = Metrics(Path(sys.argv[1])); mine.add('ponn_outcomes_total', 3); print(mine.text({}))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ponn_outcomes_total 3\n" in done.stdout
    assert list(tmp_path.iterdir()) == []
    other = Metrics(tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_blocks * 512 >= file.stat().st_size  # no hole that a full disk could not fill
    (tmp_path / "half.counts").write_bytes(b"x" * 40)
    other.add("ponn_outcomes_total", 2)
    assert "ponn_outcomes_total 2\n" in other.text({})


def test_counters_of_workers_add_up_and_survive_them(tmp_path):
    first, second = Metrics(tmp_path), Metrics(tmp_path)
    first.request("/recommend", 200, 0.0007)
    second.request("/recommend", 200, 3.0)
    second.request("/recommend", 418, 0.02)
    second.request("/very/long/path", 404, 0.02)
    second.add("ponn_recommendations_total", 7)
    del second
    told = first.text({"ponn_policy_refused": 0.0})
    for line in (
        'ponn_requests_total{route="/recommend",status="200"} 2',
        'ponn_requests_total{route="/recommend",status="0"} 1',
        'ponn_requests_total{route="other",status="404"} 1',
        'ponn_recommend_seconds_bucket{le="0.0005"} 0',
        'ponn_recommend_seconds_bucket{le="0.001"} 1',
        'ponn_recommend_seconds_bucket{le="1"} 2',
        'ponn_recommend_seconds_bucket{le="+Inf"} 3',
        "ponn_recommend_seconds_count 3",
        "ponn_recommendations_total 7",
        "ponn_policy_refused 0",
    ):
        assert f"\n{line}\n" in f"\n{told}"


def test_every_line_of_the_metrics_is_in_the_text_format(client):
    sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"\\\n]*"(,[a-z]+="[^"\\\n]*")*\})? [0-9.e+]+')
    lines = client.get("/metrics").body.decode().splitlines()
    assert all(line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line) for line in lines)
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_the_docs_ask_no_other_host(client):
    page = client.get("/docs")
    assert page.status == 200
    assert not re.search(rb"https?://|//[a-z]+\.", page.body)
    assert "default-src 'self'" in page.headers["content-security-policy"]


def test_a_file_is_scored_like_the_library_does(client, policy, rows, tmp_path):
    pacsv.write_csv(rows, tmp_path / "rows.csv")
    answer = client.ask("POST", "/score", (tmp_path / "rows.csv").read_bytes(), headers={"content_type": "text/csv"})
    assert answer.status == 200
    (tmp_path / "out.csv").write_bytes(answer.body)
    found = pacsv.read_csv(tmp_path / "out.csv")
    wanted = policy.recommend(tmp_path / "rows.csv")
    assert found.column_names == [*rows.column_names, *wanted.column_names]
    assert found.column("action").to_pylist() == wanted.column("action").to_pylist()
    np.testing.assert_allclose(found.column("probability"), wanted.column("probability"), atol=1e-6)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "empty"), (b"age,dose\n1,2\n", "lacks the columns"), (b"\xff\xfe\x00", ""), (b"a\n\x00\n", "")],
    ids=["empty", "columns", "bytes", "nul"],
)
def test_a_file_that_cannot_be_scored_is_refused(client, content, told):
    answer = client.ask("POST", "/score", content, headers={"content_type": "text/csv"})
    assert answer.status == 422
    assert told in answer.json()["error"]
    assert "/tmp" not in answer.json()["error"]


def test_schemathesis_finds_no_server_error(policy, tmp_path):
    """Requests made from the schema, and requests that break it: no 5xx, only declared statuses and bodies."""
    import jsonschema
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    limits = settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    statuses = []
    with served(policy, tmp_path, decisions=tmp_path / "d.jsonl", access_log=False) as client:

        def send(case):
            values = case.as_transport_kwargs(base_url="http://127.0.0.1")
            body = json.dumps(values["json"]) if "json" in values else values.get("data") or b""
            headers = {name.lower(): str(value) for name, value in values["headers"].items()}
            answer = client.ask(
                case.method, case.path, body.encode() if isinstance(body, str) else body, headers=headers
            )
            statuses.append(answer.status)
            assert answer.status < 500, (case.path, body)
            told = case.operation.definition.raw["responses"][str(answer.status)]["content"]
            assert answer.headers["content-type"].partition(";")[0] in told
            if "application/json" in told:
                jsonschema.validate(answer.json(), told["application/json"]["schema"])

        modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
        for found in schemathesis.openapi.from_dict(client.app.openapi()).get_all_operations():
            operation = found.ok()
            for mode in modes if operation.body else modes[:1]:
                limits(given(operation.as_strategy(generation_mode=mode))(lambda case: send(case)))()
    assert statuses.count(200) > 8
    assert statuses.count(422) > 8


# Real processes ------------------------------------------------------------------------------------------


@contextmanager
def started(*arguments, cwd):
    """A server in a process of its own, and its URL."""
    command = [*PONN, "serve", *arguments, "--port", "0"]
    with (cwd / "stderr").open("w") as told:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True, cwd=cwd)
    try:
        yield process, re.search(r"http://\S+", process.stdout.readline())[0]
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdout.close()


def ask(url, path, value=None):
    """Status and body."""
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_server_is_ready_soon_and_small(policy, tmp_path):
    """Processor time, because other work on the machine must not fail the test; the benchmark tells the clock's."""
    policy.save(tmp_path / "p.ponn")
    with started("p.ponn", cwd=tmp_path) as (process, url):
        status, body = ask(url, "/recommend", {"row": good_row()})
        used = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")
        peak = int(Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
        assert status == 200
        assert json.loads(body)["policy"] == policy.digest
        assert seconds < 2
        assert peak < 200e6
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    lines = [json.loads(line) for line in (tmp_path / "stderr").read_text().splitlines()]
    assert [line["path"] for line in lines] == ["/recommend"]


def test_the_server_imports_nothing_of_the_training_stack():
    heavy = "('torch', 'sklearn', 'pandas', 'scipy')"
    code = f"import ponn.serving.server, uvicorn, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_several_workers_answer_count_together_and_stop_in_order(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    with started("p.ponn", "--workers", "2", "--decisions", "d.jsonl", "--sample", cwd=tmp_path) as (process, url):
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("d.*.jsonl"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        answers = [ask(url, "/recommend", {"rows": [good_row()] * 3}) for _ in range(40)]
        assert {status for status, _ in answers} == {200}
        found = [one for _, body in answers for one in json.loads(body)["recommendations"]]
        outcomes = [ask(url, "/outcome", {"id": one["id"], "reward": 9.5})[0] for one in found[:60]]
        assert set(outcomes) == {200}  # whichever worker decided, and whichever is told
        assert ask(url, "/outcome", {"id": found[0]["id"][:-1] + "7", "reward": 1})[0] == 404
        told = ask(url, "/metrics")[1].decode()
        assert "ponn_recommendations_total 120\n" in told
        assert "ponn_outcomes_total 60\n" in told
        process.terminate()
        assert process.wait(30) == 0
    converted = convert_decisions([tmp_path / "d.jsonl"], tmp_path / "log.parquet")
    assert (converted.decisions, converted.rows, converted.torn) == (120, 60, 0)


def test_a_request_that_has_begun_is_answered_before_the_server_stops(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    with started("p.ponn", cwd=tmp_path) as (process, url):
        body = json.dumps({"row": good_row()}).encode()
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            head = "POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
            ask(url, "/healthz")  # the first request has arrived when a later one is answered
            process.terminate()
            time.sleep(0.3)
            connection.sendall(body[10:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("nowhere.ponn",), 1, "There is no policy file nowhere.ponn"),
        (("bad.ponn",), 1, "not a policy file, or is damaged"),
        (("p.ponn", "--sample", "--explore", "0.1"), 1, "cannot go together"),
        (("p.ponn", "--explore", "1.5"), 2, "Invalid value for '--explore'"),
        (("p.ponn", "--token-file", "bad.ponn"), 1, "at least 16 printable"),
        (("p.ponn", "--decisions", "no/folder/d.jsonl"), 1, "There is no folder no/folder"),
        (("p.ponn", "--report", "none.html"), 1, "There is no report none.html"),
        (("p.ponn", "--port", "{taken}"), 1, "Is another server running there?"),
        (("p.ponn", "--host", "nowhere.invalid"), 1, "cannot be used"),
    ],
    ids=lambda value: "-".join(value)[:30] if isinstance(value, tuple) else None,
)
def test_mistakes_are_told_without_traceback(policy, tmp_path, arguments, status, message, capsys, monkeypatch):
    from ponn.cli import main

    policy.save(tmp_path / "p.ponn")
    (tmp_path / "bad.ponn").write_text("bad")
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [word.format(taken=taken.getsockname()[1]) for word in arguments]
        monkeypatch.setattr(sys, "argv", ["ponn", "serve", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code == status
    assert message in capsys.readouterr().err


def test_a_missing_extra_is_named(tmp_path):
    code = "import sys; sys.modules['fastapi'] = None; from ponn.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "serve", "p"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "The server needs fastapi, which is not installed: pip install 'ponn-policy[serve]'" in done.stderr


# What the policy itself carries --------------------------------------------------------------------------


def test_reasons_are_those_of_the_library(policy, rows):
    told = replace(policy, usual=usual_values(policy.encoding, cases(400, 1)))
    part = rows.slice(4, 20)  # cells of before are refused or odd
    adviser = Adviser(told)
    silent = adviser.check(Ask(as_json(part.slice(0, 3))))
    _, found = adviser.advise([silent, adviser.check(Ask(as_json(part), reasons=True))])
    for one, reason in zip(found.recommendations, told.reasons(part), strict=True):
        assert [line["feature"] for line in one["reasons"]["features"]] == [line.feature for line in reason.features]
        for line, expected in zip(one["reasons"]["features"], reason.features, strict=True):
            assert line["effect"] == pytest.approx(expected.effect, abs=1e-5)
            assert line["value"] == expected.value
    assert all(one["reasons"] is None for one in adviser.advise([silent])[0].recommendations)


def test_the_policys_own_rules_are_kept(policy, rows):
    careful = replace(policy, eligibility=Eligibility("open", ["operate if age >= 40", "pill if ward == 'north'"]))
    adviser = Adviser(careful)
    sent = [row | {"open": "pill|wait|operate"} for row in as_json(rows.slice(4, 60))]
    (found,) = adviser.advise([adviser.check(Ask(sent))])
    for row, one in zip(sent, found.recommendations, strict=True):
        assert (row["age"] or 0) < 40 or one["action"] != "operate"
        assert row["ward"] != "north" or one["action"] != "pill"
    (limited,) = adviser.advise([adviser.check(Ask([good_row(age=30.0, ward="south", open="pill")]))])
    assert limited.recommendations[0]["action"] == "pill"
    assert limited.recommendations[0]["runner_up"] is None
    with pytest.raises(AskError, match="No action is eligible"):
        adviser.check(Ask([good_row(open="pill")]))
    with pytest.raises(AskError, match="lack the column 'open'"):
        adviser.check(Ask([good_row()]))


class Numbered(NamedTuple):
    """Stands for a request with one row."""

    number: float
    ask: Ask = Ask([{}])


class Counted:
    """Stands for an adviser: answers every request with its own number, and remembers who was answered together."""

    def __init__(self):
        self.groups, self.pace = [], Pace()

    def advise(self, asked):
        """The requests themselves."""
        self.groups.append([one.number for one in asked])
        return self.groups[-1]


def test_requests_that_arrive_one_turn_after_another_are_answered_together():
    async def arrive(together, adviser, number):
        for _ in range(int(2 * number)):
            await asyncio.sleep(0)
        return await together.advise(adviser, adviser.pace, Numbered(number))

    async def all_of(turns):
        together, adviser = Together(), Counted()
        answers = await asyncio.gather(*(arrive(together, adviser, number) for number in turns))
        return answers, adviser.groups

    answers, groups = asyncio.run(all_of([0, 0, 1, 9]))
    assert answers == [0, 0, 1, 9]
    assert groups[0][:2] == [0, 0]
    assert groups[-1] == [9]  # who comes much later is not waited for
    _, groups = asyncio.run(all_of([0.5 * number for number in range(40)]))
    assert sum(map(len, groups)) == 40
    assert max(map(len, groups)) <= MOST_TURNS + 1  # and nobody waits for ever
    assert len(groups[0]) > 5


def test_refusals_wait_where_there_are_many_and_answers_do_not(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")

    async def ask(gate, path, body):
        said = []
        messages = [{"type": "http.request", "body": body}]

        async def receive():
            return messages.pop()

        async def send(message):
            said.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "client": None}
        started = time.monotonic()
        await gate(scope | {"headers": [(b"content-type", b"application/json")]}, receive, send)
        return said[0]["status"], time.monotonic() - started

    async def flood():
        app = server.create_app(Options(tmp_path / "p.ponn", access_log=False, slow_refusals=True))
        gate = app.build_middleware_stack()
        async with app.router.lifespan_context(app):
            asked = [ask(gate, "/recommend", b"no JSON") for _ in range(2 * REFUSED_AT_ONCE + 1)]
            refused = await asyncio.gather(*asked)
            return refused, await ask(gate, "/recommend", json.dumps({"row": {}}).encode())

    refused, (status, seconds) = asyncio.run(flood())
    assert {one for one, _ in refused} == {400}
    late = sum(took >= REFUSED_LATE for _, took in refused)
    assert 1 <= late <= REFUSED_AT_ONCE + 1  # the second may end in between
    assert status == 200
    assert seconds < REFUSED_LATE
