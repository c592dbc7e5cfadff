"""What every request passes: the names it may use for this server, the token, the access log, the counters.

The two routes that are posted to often are gone to straight from here, because FastAPI's way to a function costs as
much as a recommendation.
"""

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Mapping
from functools import lru_cache

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ponn.serving.messages import MISTAKE, SAFE_HEADERS, JsonRoute, RefusedError, header, mistake, respond, to_json
from ponn.serving.service import Service
from ponn.serving.turns import Refusals

log = logging.getLogger("ponn.serve")


class Gate:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, service: Service, often: Mapping[str, JsonRoute]) -> None:
        self.app, self.service, self.options = app, service, service.options
        self.often = often  # routes that are posted to often: path → route
        self.refusals = Refusals() if service.options.slow_refusals else None
        self.token = None if self.options.token is None else f"Bearer {self.options.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["request_id"] = os.urandom(12).hex()
        started, scope["status"] = time.perf_counter(), 500
        often = self.often.get(scope["path"]) if scope["method"] == "POST" else None
        refused = self.refused(scope)
        try:
            if refused:
                more = [(b"www-authenticate", b"Bearer")] if refused.status == 401 else []
                await respond(self.watched(scope, send), refused.status, to_json({"error": str(refused)}), *more)
            elif often:
                scope["status"], content = await often.answered(scope, receive)
                await self.hold_up(scope["status"])
                await respond(send, scope["status"], content, (b"x-request-id", scope["request_id"].encode()))
            else:
                await self.app(scope, receive, self.watched(scope, send))
        except Exception as error:
            log.error("a request could not be answered: %s", mistake(error))
            if "begun" not in scope:  # else uvicorn closes the connection, so that nobody takes half for the whole
                await respond(self.watched(scope, send), 500, MISTAKE)
        finally:
            self.note(scope, time.perf_counter() - started)

    def watched(self, scope: Scope, send: Send) -> Send:
        """A way to send by which the status of the answer is noted, and which adds headers."""

        async def passed_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self.hold_up(message["status"])
                scope["status"], scope["begun"] = message["status"], True
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                safe = [(name, value) for name, value in SAFE_HEADERS if name not in names]
                message["headers"] = [*given, (b"x-request-id", scope["request_id"].encode()), *safe]
            await send(message)

        return passed_on

    async def hold_up(self, status: int) -> None:
        """Wait before a refusal where there are many."""
        if self.refusals is not None and 400 <= status < 500 and (seconds := self.refusals.wait()):
            await asyncio.sleep(seconds)

    def refused(self, scope: Scope) -> RefusedError | None:
        """Why a request may not pass."""
        if self.options.hosts is not None and without_port(header(scope, b"host")) not in self.options.hosts:
            return RefusedError(
                421, "This server does not answer to that name; it would have to be started with --allow-host."
            )
        if self.token is None or scope["path"] in self.options.public or scope["path"].startswith("/static/"):
            return None
        if hmac.compare_digest(header(scope, b"authorization"), self.token):
            return None
        return RefusedError(401, "This server wants a token: send the header Authorization: Bearer TOKEN.")

    def note(self, scope: Scope, seconds: float) -> None:
        """Count a request and write its line of the access log; without feature values unless asked for."""
        path, status = scope["path"], scope["status"]
        self.service.metrics.request(path, status, seconds)
        if self.options.access_log:
            client, rows, ms = (scope.get("client") or (None,))[0], scope.get("rows"), round(1e3 * seconds, 3)
            asked = (scope["request_id"], scope["method"], path, status, ms, rows, client)
            self.service.access.write(time.time(), "request", *asked, *scope.get("features", ()))


@lru_cache(maxsize=64)  # most ask by the same name
def without_port(host: bytes) -> str:
    """The name by which the server was asked, without the port."""
    name = host.decode("latin-1").lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
