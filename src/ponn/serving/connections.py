"""Connections that do not wait for ever, and are not kept busy: who is slow to ask, or to read the answer, is cut off.

uvicorn limits how long a connection rests between two requests, but neither how long the first one may take to begin,
nor how long a head may take to arrive, nor how long an answer may wait to be read: with one byte a minute, a few
thousand connections would keep everyone else out. Nor does it limit how many headers a head has, or into how many
pieces a body is cut: reading each costs as much as a hundred bytes of others. Bodies have limits of their own
(`messages.Patience`). The parser is always h11, whose limits of size hold for everything but the body.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ponn.serving.messages import SAFE_HEADERS
from ponn.serving.turns import Refusals

MOST_CONNECTIONS = 4_096  # of one process
SPARE_FILES = 64  # open files for other things
LARGEST_HEAD = 1 << 14  # bytes
MOST_HEADERS = 100  # browsers behind proxies send some 30
AT_ONCE = 1 << 13  # bytes that are parsed in one go: a millisecond or two in the worst case
SMALL, MOST_SMALL = 64, 256  # bytes: so many smaller chunks may a body have, beyond that one for each whole one
READ = 1 << 18  # bytes of an answer that must be read in the time given: 200 kbit/s where that is ten seconds


def refusal(status: bytes, told: bytes) -> bytes:
    """An answer to somebody whose request cannot be read."""
    body = b'{"error": "%b"}' % told
    headers = [(b"connection", b"close"), (b"content-type", b"application/json"), *SAFE_HEADERS]
    lines = b"".join(b"%b: %b\r\n" % one for one in headers)
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, lines, len(body), body)


TOO_LATE = refusal(b"408 Request Timeout", b"The head of the request took too long to arrive.")
TOO_MANY_HEADERS = refusal(b"431 Request Header Fields Too Large", b"The request has too many or too large headers.")
NO_HTTP = refusal(b"400 Bad Request", b"This is not HTTP, or more than this server reads of it.")
FULL = refusal(b"503 Service Unavailable", b"Too many connections are open. Try again later.")


class Parser(h11.Connection):
    """h11's parser, which reads no body that is cut into crumbs."""

    small = 0  # chunks so far, less the whole ones

    def next_event(self) -> Any:
        """The next event; a body of crumbs is refused like anything else that is not as it should be."""
        event = super().next_event()
        if isinstance(event, h11.Data):
            self.small = max(0, self.small + (1 if len(event.data) < SMALL else -1))
            if self.small > MOST_SMALL:
                raise h11.RemoteProtocolError("the chunks are too small")
        elif isinstance(event, h11.Request):
            self.small = 0
            if len(event.headers) > MOST_HEADERS:  # of a request that came behind another one
                raise h11.RemoteProtocolError("there are too many headers")
        return event


class Connection(H11Protocol):
    """uvicorn's connection, with at most so many seconds from its start, or a request's first byte, to a whole head.

    stalled: seconds in which a part of the answer must be read. refusals: how long refusals wait; None: not at all.
    """

    def __init__(
        self, *arguments: Any, seconds: float, stalled: float = 10.0, refusals: Refusals | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.conn = Parser(h11.SERVER, self.config.h11_max_incomplete_event_size or LARGEST_HEAD)
        self.seconds, self.stalled = seconds, stalled
        self.refusals, self.refused = refusals, False
        self.timer: asyncio.TimerHandle | None = None
        self.begun = False  # was there a byte?
        self.lines = 0  # of the head that arrives
        self.unread: list[bytes] = []  # that arrived, but were not parsed yet
        self.reader: asyncio.TimerHandle | None = None  # looks whether the answer is read
        self.resumed = 0  # how often there was room for more of the answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            self.refuse(FULL)
            return
        self.timer = self.loop.call_later(self.seconds, self.cut_off)

    def data_received(self, data: bytes) -> None:
        """Some bytes; most often a whole request, so that no timer is needed and nothing has to be cut."""
        if self.refused:
            return
        self.begun = True
        if len(data) > AT_ONCE or self.unread:
            busy = bool(self.unread)
            self.unread += [data[start : start + AT_ONCE] for start in range(0, len(data), AT_ONCE)]
            self.transport.pause_reading() if busy else self.parse_next()
        else:
            self.parse(data)

    def parse_next(self) -> None:
        """Parse one piece of what arrived; the next one when others had their turn. Meanwhile no more is read."""
        if self.transport.is_closing() or self.refused:
            self.unread.clear()
            return
        self.parse(self.unread[0])
        del self.unread[:1]
        if self.unread:
            self.transport.pause_reading()
            self.loop.call_soon(self.parse_next)
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def parse(self, data: bytes) -> None:
        """Some bytes, not too many."""
        if self.wants_head() and self.too_many_headers(data):
            self.refuse(TOO_MANY_HEADERS)
            return
        super().data_received(data)
        if not self.wants_head():
            self.lines = 0
            self.forget()
        elif self.timer is None:
            self.timer = self.loop.call_later(self.seconds, self.cut_off)

    def too_many_headers(self, data: bytes) -> bool:
        """Does the head have too many lines?"""
        end = data.find(b"\r\n\r\n")
        self.lines += data.count(b"\n", 0, len(data) if end < 0 else end)
        return self.lines > MOST_HEADERS

    def send_400_response(self, msg: str) -> None:
        """Tell somebody whose request cannot be read, unless an answer has begun."""
        self.refuse(NO_HTTP)

    def refuse(self, told: bytes) -> None:
        """Say no and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whoever works for it, or waits for its body, is told
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        if seconds := 0.0 if self.refusals is None else self.refusals.wait():
            self.refused = True  # what arrives from here on is not looked at
            self.forget()
            self.loop.call_later(seconds, self.say_no, told)
        else:
            self.say_no(told)

    def say_no(self, told: bytes) -> None:
        """Answer a refusal and close."""
        if not self.transport.is_closing():
            self.transport.write(told)
            self.close()

    def close(self) -> None:
        """No more requests; what was answered may still be read, for a while."""
        self.transport.close()
        self.watch_reader()

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody is there any more."""
        self.forget()
        if self.reader is not None:
            self.reader.cancel()
        self.unread.clear()
        super().connection_lost(error)

    def wants_head(self) -> bool:
        """Is there no request that is being answered?"""
        return self.cycle is None or self.cycle.response_complete

    def forget(self) -> None:
        """No need to watch."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def cut_off(self) -> None:
        """The time is over. Who never said a word is not answered: browsers open connections in advance."""
        self.timer = None
        if self.wants_head() and not self.transport.is_closing():
            if self.begun and self.cycle is None:  # else an answer was sent before, and what is late is for nobody
                self.transport.write(TOO_LATE)
            self.close()

    # Answers that nobody reads ---------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """There is more of an answer than the network takes."""
        super().pause_writing()
        self.watch_reader()

    def resume_writing(self) -> None:
        """The network takes more."""
        super().resume_writing()
        self.resumed += 1

    def on_response_complete(self) -> None:
        """The whole answer is handed over, which does not mean that it is read."""
        super().on_response_complete()
        self.watch_reader()

    def watch_reader(self) -> None:
        """Look in a while whether somebody reads."""
        if self.reader is None and (unsent := self.transport.get_write_buffer_size()):
            self.reader = self.loop.call_later(self.stalled, self.look_at_reader, unsent, self.resumed)

    def look_at_reader(self, unsent: int, resumed: int) -> None:
        """Cut off who has read too little; else look again as long as something is unsent."""
        self.reader = None
        if self.transport.get_write_buffer_size() > unsent - READ and self.resumed == resumed:
            self.transport.abort()
        else:
            self.watch_reader()


def most_connections() -> int:
    """How many connections a process may have, as far as it may have open files."""
    try:
        import resource
    except ImportError:  # on Windows
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, files - SPARE_FILES))
