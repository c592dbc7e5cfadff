"""Connections over loopback: whoever is slow to say what is wanted is cut off, everyone else is answered."""

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import uvicorn
from starlette.background import BackgroundTask
from starlette.responses import FileResponse
from starlette.routing import Route

from ponn.serving import connections
from ponn.serving.connections import FULL, NO_HTTP, TOO_LATE, TOO_MANY_HEADERS, Connection
from ponn.serving.server import bound_socket, create_app
from ponn.serving.service import Options

SECONDS = 0.4  # a head may take; a step of a slow client takes a tenth
ASKED = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def connected(change=lambda app: None):
    """A server without a policy, and a way to open connections to it."""
    listening = bound_socket("127.0.0.1", 0)
    app = create_app(Options(None, access_log=False))
    change(app)
    http = partial(Connection, seconds=SECONDS, stalled=SECONDS)
    config = uvicorn.Config(app, http=http, log_config=None, lifespan="on", ws="none")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve([listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    opened = []

    async def connect():
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        opened.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in opened:
            writer.close()
        server.should_exit = True
        await running


async def drip(writer, data):
    """One byte after the other, for ever or until nobody is there."""
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(SECONDS / 10)


async def left(reader):
    """Everything that still comes, which must end long before the slow client does.

    Who writes to a connection that is closed meets a reset, which is an end too.
    """
    found = b""
    async with asyncio.timeout(20 * SECONDS):
        try:
            while piece := await reader.read(1_000):
                found += piece
        except ConnectionResetError:
            pass
    return found


async def answer(reader):
    """One answer, its body known to be short."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


def test_silence_is_cut_off():
    async def run():
        async with connected() as connect:
            reader, _ = await connect()
            started = time.monotonic()
            assert await left(reader) == b""
            assert time.monotonic() - started > 0.9 * SECONDS

    asyncio.run(run())


def test_a_head_that_trickles_in_is_cut_off_while_others_are_answered():
    async def run():
        async with connected() as connect:
            reader, writer = await connect()
            slow = asyncio.create_task(drip(writer, b"GET /healthz HTTP/1.1\r\nhost: " + b"x" * 1_000))
            other_reader, other = await connect()
            other.write(ASKED)
            assert (await answer(other_reader)).startswith(b"HTTP/1.1 200")
            assert await left(reader) == TOO_LATE
            slow.cancel()

    asyncio.run(run())


def test_a_head_in_two_pieces_is_answered_and_a_later_one_is_cut_off():
    async def run():
        async with connected() as connect:
            reader, writer = await connect()
            for piece in (ASKED[:9], ASKED[9:]):
                writer.write(piece)
                await asyncio.sleep(SECONDS / 10)
            assert (await answer(reader)).endswith(b'{"alive":true}')
            await asyncio.sleep(1.5 * SECONDS)  # rests between two requests: uvicorn's own limit, much longer
            writer.write(ASKED)
            assert (await answer(reader)).endswith(b'{"alive":true}')
            slow = asyncio.create_task(drip(writer, ASKED[:-2] + b"x: " + b"x" * 1_000))
            assert await left(reader) == b""
            slow.cancel()

    asyncio.run(run())


def test_a_body_that_nobody_wants_is_cut_off_too():
    async def run():
        async with connected() as connect:
            reader, writer = await connect()
            writer.write(ASKED[:-2] + b"content-length: 1000\r\n\r\n")
            assert (await answer(reader)).endswith(b'{"alive":true}')
            slow = asyncio.create_task(drip(writer, b"x" * 1_000))
            assert await left(reader) == b""
            slow.cancel()

    asyncio.run(run())


# What cannot be read, and who does not read ---------------------------------------------------------------


def said_to(*pieces):
    """What the server says to these bytes."""

    async def run():
        async with connected() as connect:
            reader, writer = await connect()
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)
            return await left(reader)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ((b"no http at all\r\n\r\n",), NO_HTTP),
        ((ASKED[:-2] + b"a: b\r\n" * 200 + b"\r\n",), TOO_MANY_HEADERS),
        ((ASKED[:-2], *[b"a: b\r\n" * 30] * 4), TOO_MANY_HEADERS),
        ((ASKED[:-2] + b"a: " + b"b" * 40_000 + b"\r\n\r\n",), NO_HTTP),
        ((ASKED[:-2] + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",), NO_HTTP),
        ((b"GET /healthz HTTP/1.1\r\n\r\n",), NO_HTTP),
    ],
    ids=["no http", "headers", "headers in pieces", "long header", "two lengths", "no host"],
)
def test_what_cannot_be_read_is_told_so_with_safe_headers(pieces, told):
    assert said_to(*pieces) == told
    assert b"\r\ncache-control: no-store\r\n" in told
    assert b"\r\nx-content-type-options: nosniff\r\n" in told


CHUNKED = (
    b"POST /recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def test_a_body_of_crumbs_is_refused_and_keeps_nobody_waiting():
    """A quarter of a megabyte in chunks of one byte took more than a second of the event loop."""

    async def run():
        async with connected() as connect:
            reader, writer = await connect()
            started = time.thread_time()
            writer.write(CHUNKED + b"1\r\nx\r\n" * 50_000)
            assert await left(reader) == NO_HTTP
            assert time.thread_time() - started < 0.5

    asyncio.run(run())


def test_a_body_in_chunks_of_some_size_is_read():
    async def run():
        async with connected() as connect:
            reader, writer = await connect()
            writer.write(CHUNKED + b"64\r\n" + b"x" * 100 + b"\r\n")
            for _ in range(3_000):
                writer.write(b"64\r\n" + b"x" * 100 + b"\r\n")
            writer.write(b"0\r\n\r\n")
            return await answer(reader)

    assert b"There is no policy" in asyncio.run(run())  # so it was read to its end


def test_a_chunked_body_past_the_limit_is_stopped_on_every_route():
    async def run(path, kind):
        async with connected() as connect:
            reader, writer = await connect()
            head = CHUNKED.replace(b"/recommend", path).replace(b"application/json", kind)
            writer.write(head)
            sent = asyncio.create_task(pour(writer))
            found = await asyncio.wait_for(reader.read(12), 20)
            sent.cancel()
            return found

    async def pour(writer):
        piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        while True:
            writer.write(piece)
            await writer.drain()

    for path, kind, status in (
        (b"/recommend", b"application/json", b"413"),
        (b"/outcome", b"application/json", b"413"),
        (b"/healthz", b"application/json", b"405"),
        (b"/nowhere", b"application/json", b"404"),
    ):
        assert asyncio.run(run(path, kind)) == b"HTTP/1.1 " + status


def test_too_many_connections_are_refused_while_those_that_are_open_go_on(monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)

    async def run():
        async with connected() as connect:
            opened = [await connect() for _ in range(3)]
            await asyncio.sleep(0.02)
            reader, _ = await connect()
            assert await left(reader) == FULL
            for reader, writer in opened:
                writer.write(ASKED)
                assert (await answer(reader)).startswith(b"HTTP/1.1 200")

    asyncio.run(run())


def large_answer(tmp_path, size, gone):
    """Add a route that sends a file and removes it when it was sent."""
    path = tmp_path / "large"

    async def send(_):
        path.write_bytes(b"x" * size)
        return FileResponse(path, background=BackgroundTask(gone, path))

    return lambda app: app.router.routes.insert(0, Route("/large", send))


@pytest.mark.parametrize("size", [100_000, 30_000_000])  # fits into buffers, or not
def test_who_does_not_read_an_answer_is_cut_off_and_its_file_removed(tmp_path, size, monkeypatch):
    monkeypatch.setattr(connections, "READ", 1 << 14)

    async def run():
        removed = asyncio.Event()

        def gone(path):
            path.unlink()
            loop.call_soon_threadsafe(removed.set)

        loop = asyncio.get_running_loop()
        async with connected(large_answer(tmp_path, size, gone)) as connect:
            _reader, writer = await connect()
            writer.transport.pause_reading()
            writer.write(ASKED.replace(b"/healthz", b"/large"))
            await asyncio.wait_for(removed.wait(), 20 * SECONDS)
            assert not (tmp_path / "large").exists()

    asyncio.run(run())


def test_who_reads_slowly_but_reads_gets_the_whole_answer(tmp_path, monkeypatch):
    size = 12_000_000
    monkeypatch.setattr(connections, "READ", 1 << 14)

    async def run():
        async with connected(large_answer(tmp_path, size, Path.unlink)) as connect:
            reader, writer = await connect()
            writer.write(ASKED.replace(b"/healthz", b"/large"))
            got = 0
            started = time.monotonic()
            while got < size:
                got += len(await reader.read(400_000))
                await asyncio.sleep(SECONDS / 20)
            assert time.monotonic() - started > SECONDS

    asyncio.run(run())
