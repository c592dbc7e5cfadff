"""Connections that do not wait for ever: whoever opens one and is slow to say what is wanted is cut off.

uvicorn limits how long a connection rests between two requests, but neither how long the first one may take to begin
nor how long a head may take to arrive: with one byte a minute, a few thousand connections would keep everyone else out.
Bodies have limits of their own (`messages.Patience`).
"""

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as Protocol

TOLD = b'{"error": "The head of the request took too long to arrive."}'
TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(TOLD), TOLD)
)


class Connection(Protocol):
    """uvicorn's connection, with at most so many seconds from its start, or a request's first byte, to a whole head."""

    def __init__(self, *arguments: Any, seconds: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.seconds = seconds
        self.timer: asyncio.TimerHandle | None = None
        self.begun = False  # was there a byte?

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there."""
        super().connection_made(transport)
        self.timer = self.loop.call_later(self.seconds, self.cut_off)

    def data_received(self, data: bytes) -> None:
        """Some bytes; most often a whole request, so that no timer is needed."""
        self.begun = True
        super().data_received(data)
        if not self.wants_head():
            self.forget()
        elif self.timer is None:
            self.timer = self.loop.call_later(self.seconds, self.cut_off)

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody is there any more."""
        self.forget()
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
            self.transport.close()
