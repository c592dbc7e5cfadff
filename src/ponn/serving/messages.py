"""HTTP messages: bodies that come in, within limits of size and time, and JSON that goes out."""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import orjson
from starlette.types import Message, Receive, Scope, Send

from ponn.errors import PonnError, one_line
from ponn.serving.advice import AskError
from ponn.serving.rows import RowError

SAFE_HEADERS = [  # of every answer
    (b"cache-control", b"no-store"),  # what is answered is about a patient, and what is not is small
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'self'"),
    (b"referrer-policy", b"no-referrer"),
]
PLACES = 12  # calls that a line about a mistake of ours names
LOOKS = 8  # at those who wait for a body, in the time that it may take
log = logging.getLogger("ponn.serve")
Found = TypeVar("Found")


class RefusedError(PonnError):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status


def refusal_json(error: PonnError) -> tuple[int, dict[str, Any]]:
    """Status and body of an answer to a request that is at fault."""
    if isinstance(error, RowError):
        found = {"row": error.row, "field": error.field, "reason": error.reason, "expected": error.expected}
        return 422, {"error": str(error), **found}
    if isinstance(error, AskError):
        found = {"row": None, "field": error.field, "reason": error.reason, "expected": error.expected}
        return 422, {"error": str(error), **found}
    return getattr(error, "status", 422), {"error": str(error)}


def from_json(body: bytes) -> Any:
    """The value of a JSON body."""
    try:
        return orjson.loads(body)
    except ValueError as error:
        raise RefusedError(400, f"The body is not JSON: {one_line(error)}.") from error


def to_json(value: Any, option: int | None = None) -> bytes:
    """A value as JSON."""
    return orjson.dumps(value, option=option)


def header(scope: Scope, name: bytes) -> bytes:
    """A header of a request, empty where it is absent."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return b""


def wanted_type(scope: Scope, wanted: bytes) -> None:
    """Only the declared type: a browser sends it to other sites only after asking, so no other page can post here."""
    found = header(scope, b"content-type").partition(b";")[0].strip().lower()
    if found != wanted:
        told = found.decode("latin-1")[:80] or "not given"
        raise RefusedError(415, f"The Content-Type is {told}; expected {wanted.decode()}.")


class Patience:
    """How long bodies are waited for: one look at all that are under way now and then, instead of a timer for each."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.waiting: dict[asyncio.Task[Any], float] = {}  # who waits for a body → until when
        self.late: set[asyncio.Task[Any]] = set()
        self.looking = False

    async def message(self, receive: Receive, until: float) -> Message:
        """The next message of a request; refused where it does not come in time."""
        task = asyncio.current_task()
        assert task
        self.waiting[task] = until
        if not self.looking:
            self.look()
        try:
            return await receive()
        except asyncio.CancelledError as error:
            if task not in self.late or task.uncancel():
                raise
            raise RefusedError(408, f"The body did not arrive within {self.seconds:g} seconds.") from error
        finally:
            self.late.discard(task)
            del self.waiting[task]

    def look(self) -> None:
        """End the wait of those whose time is over; look again as long as somebody waits."""
        loop = asyncio.get_running_loop()
        for task, until in self.waiting.items():
            if loop.time() >= until and task not in self.late:
                self.late.add(task)
                task.cancel()
        self.looking = bool(self.waiting)
        if self.looking:
            loop.call_later(self.seconds / LOOKS, self.look)


class Body:
    """The body of a request as it arrives: at most so many bytes, in time."""

    def __init__(self, scope: Scope, receive: Receive, most: int, patience: Patience) -> None:
        self.receive, self.most, self.left, self.patience = receive, most, most, patience
        self.until = asyncio.get_running_loop().time() + patience.seconds
        self.more = True
        declared = header(scope, b"content-length")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > most):
            raise self.too_large()

    def too_large(self) -> RefusedError:
        """What to say of a body over the limit."""
        return RefusedError(413, f"The body is larger than {self.most:,} bytes.")

    async def chunk(self) -> bytes:
        """The next piece."""
        message = await self.patience.message(self.receive, self.until)
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "The client left.")
        found: bytes = message.get("body", b"")
        self.more = message.get("more_body", False)
        self.left -= len(found)
        if self.left < 0:
            raise self.too_large()
        return found

    async def whole(self) -> bytes:
        """All of it."""
        found = await self.chunk()
        while self.more:
            found += await self.chunk()
        return found


async def while_there(receive: Receive, work: Coroutine[Any, Any, Found]) -> Found:
    """The result of work for a request whose body was read; the work is stopped when the client leaves."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(client_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise RefusedError(400, "The client left.")
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def client_left(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class JsonRoute:
    """A route that takes JSON and answers JSON, as a plain ASGI application."""

    def __init__(self, answer: Callable[[Scope, bytes], Awaitable[bytes]], most: int, patience: Patience) -> None:
        self.answer, self.most, self.patience = answer, most, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await respond(send, *await self.answered(scope, receive))

    async def answered(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        """Status and content of the answer."""
        try:
            wanted_type(scope, b"application/json")
            return 200, await self.answer(scope, await Body(scope, receive, self.most, self.patience).whole())
        except PonnError as error:
            status, told = refusal_json(error)
            return status, to_json(told)
        except Exception as error:
            log.error("a request could not be answered: %s", mistake(error))
            return 500, MISTAKE


MISTAKE = to_json({"error": "The server made a mistake; its log says more."})


def mistake(error: BaseException) -> str:
    """Which mistake was made where, and not a word of its message: that may repeat a cell of somebody's row."""
    calls = traceback.extract_tb(error.__traceback__)[-PLACES:]
    return " < ".join([type(error).__name__, *(f"{one.filename}:{one.lineno} {one.name}" for one in reversed(calls))])


def note_mistake(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a mistake in what nobody waits for."""
    error = context.get("exception")
    log.error("beside all requests: %s", mistake(error) if error else str(context.get("message"))[:80])


async def respond(send: Send, status: int, content: bytes, *more: tuple[bytes, bytes]) -> None:
    """Send a JSON answer."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *more, *SAFE_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
