"""`/score` and hostile files: a limit is told, nothing is left, and the rest of the server does not notice."""

import asyncio
import os
import stat
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.csv as pacsv
import pytest
from test_serve import good_row

from ponn.serving import service, uploads
from served import cases, made_policy, served

CSV = {"content_type": "text/csv"}


@pytest.fixture
def client(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with served(made_policy(), tmp_path, access_log=False) as found:
        yield found


@pytest.fixture
def rows(tmp_path):
    pacsv.write_csv(cases(50, 3), tmp_path / "rows.csv")
    return (tmp_path / "rows.csv").read_bytes()


def score(client, content, **more):
    return client.ask("POST", "/score", content, headers=CSV, **more)


def nothing_left(client):
    """Is the folder gone, which a thread removes?"""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        client.loop.run_until_complete(asyncio.sleep(0.01))
        if not os.listdir(tempfile.gettempdir()) and client.service.uploads == 0:
            return True
    return False


@pytest.mark.parametrize("more", [{}, {"pieces": 30, "declared": False}], ids=["whole", "chunked"])
def test_a_header_of_commas_is_refused_before_anything_is_made_of_it(client, more):
    started = time.monotonic()
    answer = score(client, b"," * 1_000_000 + b"\n", **more)
    assert (answer.status, answer.json()["error"][:31]) == (413, "The file has 1,000,001 columns ")
    assert time.monotonic() - started < 5
    assert nothing_left(client)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SCORE_MEMORY", 90 << 20, "takes more than 94 MB of memory"),
        ("SCORE_SECONDS", 0.01, "takes longer than 0.01 seconds"),
        ("SCORE_DISK", 4_000, "writes more than 0 MB"),
    ],
)
def test_a_limit_that_is_reached_is_told_and_the_server_goes_on(client, rows, monkeypatch, name, value, told):
    assert score(client, rows).status == 200
    monkeypatch.setattr(service, name, value)
    answer = score(client, rows + b",,,,,\n" * 500_000)
    assert answer.status == 413
    assert told in answer.json()["error"]
    assert client.post("/recommend", {"row": good_row()}).status == 200
    monkeypatch.undo()
    assert score(client, rows).status == 200


def test_a_body_past_the_limit_is_cut_off_however_it_comes(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with served(made_policy(), tmp_path, access_log=False, most_upload=len(rows)) as client:
        assert score(client, rows).status == 200
        assert score(client, rows + b"\n").status == 413
        assert score(client, rows + b"\n", declared=False, pieces=9).status == 413
        assert nothing_left(client)


def test_uploads_are_private_and_gone_when_the_answer_ends(client, rows, monkeypatch):
    seen = []
    finished = service.LastingFile.__init__

    def look(self, uploaded, *arguments, **more):
        found = [uploaded.path, *uploaded.path.iterdir()]
        seen.append({path.name.partition("-")[0]: stat.S_IMODE(path.stat().st_mode) for path in found})
        finished(self, uploaded, *arguments, **more)

    monkeypatch.setattr(service.LastingFile, "__init__", look)
    assert score(client, rows).status == 200
    (modes,) = seen
    assert modes.pop("ponn") == 0o700
    assert modes[uploads.OUT] == 0o600
    assert nothing_left(client)


def ask_and(client, content, send):
    """A request whose answer goes to `send`."""
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/score", "query_string": b""}
    scope |= {"headers": [(b"content-type", b"text/csv"), (b"host", b"localhost")], "client": None}
    messages = [{"type": "http.request", "body": content}]

    async def receive():
        return messages.pop() if messages else await asyncio.Event().wait()

    return client.app(scope, receive, send)


def test_nothing_is_left_where_the_reader_goes_away_or_is_cut_off(client, rows):
    async def broken(message):
        if message["type"] == "http.response.body":
            raise OSError("the reader is gone")

    client.loop.run_until_complete(ask_and(client, rows, broken))
    assert nothing_left(client)

    async def stalled(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def cut_off():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask_and(client, rows, stalled), 3)

    client.loop.run_until_complete(cut_off())
    assert nothing_left(client)


def test_scoring_ends_when_its_client_leaves(client, rows, monkeypatch):
    async def leave():
        messages = [{"type": "http.request", "body": rows + b",,,,,\n" * 5_000_000}]

        async def receive():
            if messages:
                return messages.pop()
            await asyncio.sleep(0.3)
            return {"type": "http.disconnect"}

        request = service.Request(
            {"type": "http", "method": "POST", "headers": [(b"content-type", b"text/csv")]}, receive
        )
        with pytest.raises(service.RefusedError, match="client left"):
            await client.service.score(request)

    started = time.monotonic()
    client.loop.run_until_complete(leave())
    assert time.monotonic() - started < 2
    assert not client.service.room.calls
    assert nothing_left(client)


def test_who_comes_while_too_much_is_there_is_told_to_come_again(client, rows, monkeypatch):
    monkeypatch.setattr(service, "SCORE_WAITING", 3)

    async def crowd():
        asked = [client.asked("POST", "/score", rows, headers=CSV) for _ in range(8)]
        return await asyncio.gather(*asked)

    answers = client.loop.run_until_complete(crowd())
    assert sorted(one.status for one in answers) == [200] * 3 + [503] * 5
    assert {one.headers.get("retry-after") for one in answers if one.status == 503} == {"5"}
    assert nothing_left(client)


def test_a_full_temporary_disk_is_told(client, rows, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        assert score(client, rows).status == 503
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "mkdtemp", full)
        assert "disk is full" in score(client, rows).json()["error"]
    assert score(client, rows).status == 200
    assert nothing_left(client)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_what_a_killed_server_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "temporary" / "ponn-left"
    left.mkdir(parents=True)
    (left / ".lock").touch()
    (left / uploads.ROWS).write_text("name\nJones\n")
    with served(made_policy(), tmp_path, access_log=False):
        assert not left.exists()
