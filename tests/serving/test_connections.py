"""Connections over loopback: whoever is slow to say what is wanted is cut off, everyone else is answered."""

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial

import uvicorn

from ponn.serving.connections import TOO_LATE, Connection
from ponn.serving.server import bound_socket, create_app
from ponn.serving.service import Options

SECONDS = 0.4  # a head may take; a step of a slow client takes a tenth
ASKED = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def connected():
    """A server without a policy, and a way to open connections to it."""
    listening = bound_socket("127.0.0.1", 0)
    app = create_app(Options(None, access_log=False))
    config = uvicorn.Config(app, http=partial(Connection, seconds=SECONDS), log_config=None, lifespan="on", ws="none")
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
