"""The policy server: an ASGI application, and the processes that run it. Imports no training stack.

Every answer of /recommend is made by `advice.py`; this file is about HTTP: who may ask, how much at once, what is
logged and counted, and how a replaced policy file is taken up. The two routes that are posted to often are plain ASGI
callables that the gate goes to straight away, because FastAPI's way to a function costs as much as a recommendation.
"""

import asyncio
import gc
import hmac
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ponn import __version__
from ponn.advice import Advice, Adviser, Ask, AskError, Checked, Mode, load_adviser, read_ask
from ponn.decisions import DecisionLog, find_decision, line, policy_line
from ponn.errors import PonnError, one_line
from ponn.interface import described_paths
from ponn.metrics import Metrics
from ponn.rows import RowError, kind_in_words
from ponn.scoring import one_blas_thread, write_recommendations
from ponn.settings import SERVED_BYTES, SERVED_ROWS
from ponn.streams import open_stream

PAGE = Path(__file__).parent / "page"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
INLINE = 1 << 16  # bytes; longer requests are answered in a thread, so that short ones do not wait for them
YOUNG = 10_000  # objects between two looks for garbage; requests leave none in cycles
ACCESS_SECONDS = 0.1  # that a line of the access log waits for others
SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'self'"),
    (b"referrer-policy", b"no-referrer"),
]
log = logging.getLogger("ponn.serve")


@dataclass(frozen=True)
class Options:
    """How a policy is served; can be sent to another process."""

    policy: Path | None  # None: nothing to recommend with, as where only other routes are wanted
    mode: Mode = field(default_factory=Mode)
    token: str | None = None
    decisions: Path | None = None
    report: Path | None = None
    hosts: frozenset[str] | None = None  # names under which the server may be asked; None: any
    public: frozenset[str] = frozenset({"/", "/docs", "/healthz", "/readyz", "/favicon.ico"})  # want no token
    most_bytes: int = SERVED_BYTES  # of a request
    most_rows: int = SERVED_ROWS  # of a request
    most_upload: int = 1 << 26  # bytes of a file for /score
    body_seconds: float = 10.0  # for a request to arrive
    poll_seconds: float = 0.5  # between two looks at the policy file
    access_log: bool = True
    log_features: bool = False
    metrics: Path | None = None  # folder in which workers share their counters


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


class AccessLog:
    """JSON lines on standard error, some at a time: a line each would cost as much as the recommendation."""

    def __init__(self) -> None:
        self.waiting: list[Mapping[str, Any]] = []

    def write(self, told: Mapping[str, Any]) -> None:
        """Write a line soon."""
        if not self.waiting:
            asyncio.get_running_loop().call_later(ACCESS_SECONDS, self.flush)
        self.waiting.append(told)

    def flush(self) -> None:
        """Write what there is."""
        waiting, self.waiting = self.waiting, []
        if waiting:
            sys.stderr.write("".join([f"{to_json(told).decode()}\n" for told in waiting]))
            sys.stderr.flush()


class Together:
    """Requests that arrive together are answered together: most of the cost of one row is not the row's."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Adviser, Checked, asyncio.Future[Advice]]] = []

    def advise(self, adviser: Adviser, checked: Checked) -> "asyncio.Future[Advice]":
        """The answer to a request, as soon as those that have arrived with it were read."""
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_soon(self.answer)
        future: asyncio.Future[Advice] = loop.create_future()
        self.waiting.append((adviser, checked, future))
        return future

    def answer(self) -> None:
        """Answer all that wait; a policy that was just replaced answers those that began with it."""
        waiting, self.waiting = self.waiting, []
        for adviser in dict.fromkeys(one for one, _, _ in waiting):
            asked = [(checked, future) for one, checked, future in waiting if one is adviser and not future.done()]
            try:
                found = adviser.advise([checked for checked, _ in asked]) if asked else []
            except Exception as error:
                for _, future in asked:
                    future.set_exception(error)
                continue
            for (_, future), advice in zip(asked, found, strict=True):
                future.set_result(advice)


# What a worker holds -------------------------------------------------------------------------------------


class Service:
    """The policy that answers now, the decision log and the counters of one process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics(options.metrics)
        self.decisions = DecisionLog(options.decisions) if options.decisions else None
        self.adviser: Adviser | None = None
        self.together, self.access = Together(), AccessLog()
        self.refused = ""  # why the policy file that is there now is not used
        self.signature = signature(options.policy)
        if options.policy:
            with suppress(PonnError):
                self.load(options.policy)

    def load(self, path: Path) -> None:
        """Take up the policy file; one that is refused leaves everything as it was."""
        try:
            self.adviser = served_adviser(path, self.options.mode)
            self.refused = ""
        except PonnError as error:
            self.refused = str(error)
            log.error("policy refused: %s", error)
            raise

    def current(self) -> Adviser:
        """The policy that answers."""
        if self.adviser is None:
            raise RefusedError(503, f"There is no policy to recommend with. {self.refused}".strip())
        return self.adviser

    async def watch(self) -> None:
        """Look at the policy file now and then; one that changed, and is no longer being written, is taken up."""
        before = self.signature
        while self.options.policy:
            await asyncio.sleep(self.options.poll_seconds)
            now = signature(self.options.policy)
            if now == before and now != self.signature:
                self.signature = now
                await self.reload(self.options.policy)
            before = now

    async def reload(self, path: Path) -> None:
        """Replace the policy; requests that have begun are answered by the one they began with."""
        try:
            await asyncio.to_thread(self.load, path)
        except PonnError:
            self.metrics.add('ponn_policy_reloads_total{result="refused"}')
            return
        self.metrics.add('ponn_policy_reloads_total{result="loaded"}')
        adviser = self.current()
        log.info("policy loaded: %s", adviser.digest)
        if self.decisions:
            self.decisions.first = policy_line(adviser.policy, adviser.digest)
            with suppress(OSError):  # then a new file was begun, with this line
                await self.decisions.append(self.decisions.first)

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """From the start of a worker to its end."""
        if self.decisions:
            self.decisions.open(policy_line(self.adviser.policy, self.adviser.digest) if self.adviser else b"")
        watching = asyncio.create_task(self.watch())
        with one_blas_thread():
            yield
        watching.cancel()
        self.access.flush()
        if self.decisions:
            await self.decisions.close()

    # The routes ------------------------------------------------------------------------------------------

    async def recommend(self, scope: Scope, body: bytes) -> bytes:
        """POST /recommend."""
        adviser = self.current()
        if len(body) <= INLINE:
            checked = self.check(adviser, body)
            ask, advice = checked.ask, await self.together.advise(adviser, checked)
        else:
            ask, advice = await asyncio.to_thread(self.advise, adviser, body)
        scope["rows"] = len(ask.rows)
        if self.options.log_features:
            scope["features"] = ask.rows
        self.count(advice)
        if self.decisions:
            scope["request_id"] = await self.record(self.decisions, adviser, ask, advice)
        number = scope["request_id"]
        found = [{"id": f"{number}-{j}", **one} for j, one in enumerate(advice.recommendations)]
        return to_json({"policy": adviser.digest, "id": number, "recommendations": found})

    def advise(self, adviser: Adviser, body: bytes) -> tuple[Ask, Advice]:
        """What is asked, and the answer, to it alone."""
        checked = self.check(adviser, body)
        return checked.ask, adviser.advise([checked])[0]

    def check(self, adviser: Adviser, body: bytes) -> Checked:
        """What is asked, if it can be answered."""
        ask = read_ask(from_json(body))
        if len(ask.rows) > self.options.most_rows:
            raise RefusedError(
                413, f"The request has {len(ask.rows):,} rows; at most {self.options.most_rows:,} at once."
            )
        return adviser.check(ask)

    def count(self, advice: Advice) -> None:
        """Keep count of what was answered."""
        self.metrics.add("ponn_recommendations_total", len(advice.recommendations))
        self.metrics.add("ponn_unsupported_total", advice.unsupported)
        self.metrics.add("ponn_restricted_total", advice.restricted)
        self.metrics.add("ponn_fell_back_total", advice.fell_back)
        self.metrics.add("ponn_surprised_total", advice.surprised)

    async def record(self, decisions: DecisionLog, adviser: Adviser, ask: Ask, advice: Advice) -> str:
        """Write the decisions of a request; its id when they are on disk."""
        number, now = decisions.next_id(), time.time()
        eligible = ask.eligible or [None]
        per_row = eligible if isinstance(eligible[0], list) else [ask.eligible] * len(ask.rows)
        lines = [
            line(
                kind="decision",
                id=f"{number}-{j}",
                time=now,
                policy=adviser.digest,
                features=row,
                eligible=per_row[j],
                action=advice.recommendations[j]["action"],
                probability=advice.recommendations[j]["served"],
            )
            for j, row in enumerate(ask.rows)
        ]
        await self.written(decisions, b"".join(lines))
        self.metrics.add("ponn_decisions_total", len(lines))
        return number

    async def written(self, decisions: DecisionLog, lines: bytes) -> None:
        """Write to the decision log, or refuse the request."""
        try:
            await decisions.append(lines)
        except OSError as error:
            log.error("decision log: %s", one_line(error))
            raise RefusedError(
                503, "The decision log cannot be written, so nothing is served. Try again later."
            ) from error

    async def outcome(self, _: Scope, body: bytes) -> bytes:
        """POST /outcome."""
        number, reward = read_outcome(from_json(body))
        if not self.decisions:
            raise RefusedError(
                404, "This server keeps no decision log; it would have to be started with --decisions FILE."
            )
        if await asyncio.to_thread(find_decision, self.decisions.path, number) is None:
            raise RefusedError(404, f"There is no decision {number[:80]!r} in the decision log.")
        await self.written(self.decisions, line(kind="outcome", id=number, time=time.time(), reward=reward))
        self.metrics.add("ponn_outcomes_total")
        return to_json({"id": number, "reward": reward, "notes": self.outcome_notes(reward)})

    def outcome_notes(self, reward: float) -> list[str]:
        """What is odd about an outcome."""
        if self.adviser is None:
            return []
        low, high = self.adviser.about["reward"]["range"]
        return [] if low <= reward <= high else [f"outside the range of training, {low:g} to {high:g}"]

    async def policy(self, _: Request) -> Response:
        """GET /policy."""
        told = self.current().about | {"report": self.options.report is not None}
        return Response(to_json(told), media_type="application/json")

    async def ready(self, _: Request) -> Response:
        """GET /readyz."""
        told = {"ready": self.adviser is not None, "policy": self.adviser.digest if self.adviser else None}
        return JSONResponse(told | {"refused": self.refused or None}, 200 if self.adviser else 503)

    async def show_metrics(self, _: Request) -> Response:
        """GET /metrics."""
        digest = self.adviser.digest if self.adviser else ""
        gauges = {f'ponn_policy_loaded{{digest="{digest}"}}': float(bool(digest))}
        gauges |= {"ponn_policy_refused": float(bool(self.refused))}
        return PlainTextResponse(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def report(self, _: Request) -> Response:
        """GET /report."""
        if not self.options.report or not self.options.report.is_file():
            raise RefusedError(404, "This server was given no report; start it with --report FILE.")
        return FileResponse(self.options.report, media_type="text/html")

    async def score(self, request: Request) -> Response:
        """POST /score: a CSV file with rows in, the same rows with recommendations out."""
        wanted_type(request.scope, b"text/csv")
        adviser = self.current()
        folder = Path(tempfile.mkdtemp(prefix="ponn-"))
        try:
            await save_upload(request, folder / "rows.csv", self.options)
            await asyncio.to_thread(score_file, adviser, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return FileResponse(
            folder / "out.csv",
            media_type="text/csv",
            filename="recommendations.csv",
            background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
        )


def served_adviser(path: Path, mode: Mode) -> Adviser:
    """The policy file, if what it says of itself can be sent."""
    found = load_adviser(path, mode)
    try:
        to_json(found.about)
    except TypeError as error:  # a number that no reader of JSON would take
        raise PonnError(f"{path} cannot be served: {one_line(error)}.") from error
    return found


def signature(path: Path | None) -> tuple[int, int, int] | None:
    """What changes when a file is replaced."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found else None


def read_outcome(body: Any) -> tuple[str, float]:
    """Id and reward of an outcome from its JSON."""
    if not isinstance(body, dict) or set(body) != {"id", "reward"}:
        raise AskError("body", "it is something else", 'an object {"id": ..., "reward": ...} and nothing more')
    number, reward = body["id"], body["reward"]
    if not isinstance(number, str):
        raise AskError("id", f"it is {kind_in_words(number)}", "the id of a recommendation, a text")
    if not isinstance(reward, int | float):
        raise AskError("reward", f"it is {kind_in_words(reward)}", "a number, true or false")
    return number, float(reward)


async def save_upload(request: Request, path: Path, options: Options) -> None:
    """Write the body of a request to a file, unless it is too long or too slow."""
    body = Body(request.scope, request.receive, options.most_upload, options.body_seconds)
    with path.open("wb") as file:
        while body.more:
            file.write(await body.chunk())
    if body.left == body.most:
        raise RefusedError(422, "The body is empty; expected a CSV file with a header and one row per case.")


def score_file(adviser: Adviser, folder: Path) -> None:
    """Recommendations for rows.csv, its columns kept, in out.csv. Nothing is drawn and nothing is logged."""
    rows = folder / "rows.csv"
    try:
        keep = open_stream(rows).schema.names
        write_recommendations(adviser.policy, rows, folder / "out.csv", keep=keep, threads=1)
    except PonnError as error:
        raise RefusedError(422, str(error).replace(str(rows), "The file")) from error


# HTTP ----------------------------------------------------------------------------------------------------


def from_json(body: bytes) -> Any:
    """The value of a JSON body."""
    try:
        return orjson.loads(body)
    except ValueError as error:
        raise RefusedError(400, f"The body is not JSON: {one_line(error)}.") from error


def to_json(value: Any) -> bytes:
    """A value as JSON."""
    return orjson.dumps(value)


def header(scope: Scope, name: bytes) -> bytes:
    """A header of a request, empty where it is absent."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def wanted_type(scope: Scope, wanted: bytes) -> None:
    """Only the declared type: a browser sends it to other sites only after asking, so no other page can post here."""
    found = header(scope, b"content-type").partition(b";")[0].strip().lower()
    if found != wanted:
        told = found.decode("latin-1")[:80] or "not given"
        raise RefusedError(415, f"The Content-Type is {told}; expected {wanted.decode()}.")


class Body:
    """The body of a request as it arrives: at most so many bytes, in so many seconds."""

    def __init__(self, scope: Scope, receive: Receive, most: int, seconds: float) -> None:
        self.receive, self.most, self.left, self.seconds = receive, most, most, seconds
        self.deadline = asyncio.get_running_loop().time() + seconds
        self.more = True
        declared = header(scope, b"content-length")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > most):
            raise self.too_large()

    def too_large(self) -> RefusedError:
        """What to say of a body over the limit."""
        return RefusedError(413, f"The body is larger than {self.most:,} bytes.")

    async def chunk(self) -> bytes:
        """The next piece."""
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.receive()
        except TimeoutError as error:
            raise RefusedError(408, f"The body did not arrive within {self.seconds:g} seconds.") from error
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


class JsonRoute:
    """A route that takes JSON and answers JSON, as a plain ASGI application."""

    def __init__(self, answer: Callable[[Scope, bytes], Awaitable[bytes]], options: Options) -> None:
        self.answer, self.most, self.seconds = answer, options.most_bytes, options.body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            wanted_type(scope, b"application/json")
            body = await Body(scope, receive, self.most, self.seconds).whole()
            status, content = 200, await self.answer(scope, body)
        except PonnError as error:
            status, told = refusal_json(error)
            content = to_json(told)
        except Exception:
            log.exception("a request could not be answered")
            status, content = 500, to_json({"error": "The server made a mistake; its log says more."})
        await respond(send, status, content)


async def respond(send: Send, status: int, content: bytes, *more: tuple[bytes, bytes]) -> None:
    """Send a JSON answer."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class Gate:
    """What every request passes: the names it may use for this server, the token, the access log, the counters."""

    def __init__(self, app: ASGIApp, service: Service, often: Mapping[str, ASGIApp]) -> None:
        self.app, self.service, self.options = app, service, service.options
        self.often = often  # routes that are posted to often: path → application
        self.token = None if self.options.token is None else f"Bearer {self.options.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        scope["request_id"] = os.urandom(12).hex()

        async def passed_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", scope["request_id"].encode())]
                message["headers"] += () if scope["path"] in self.often else SAFE_HEADERS
            await send(message)

        try:
            refused = self.refused(scope)
            if refused:
                more = [(b"www-authenticate", b"Bearer")] if refused.status == 401 else []
                await respond(passed_on, refused.status, to_json({"error": str(refused)}), *more)
            else:
                often = self.often.get(scope["path"]) if scope["method"] == "POST" else None
                await (often or self.app)(scope, receive, passed_on)
        finally:
            self.note(scope, status, time.perf_counter() - started)

    def refused(self, scope: Scope) -> RefusedError | None:
        """Why a request may not pass."""
        if self.options.hosts is not None and host_of(scope) not in self.options.hosts:
            return RefusedError(
                421, "This server does not answer to that name; it would have to be started with --allow-host."
            )
        if self.token is None or scope["path"] in self.options.public or scope["path"].startswith("/static/"):
            return None
        if hmac.compare_digest(header(scope, b"authorization"), self.token):
            return None
        return RefusedError(401, "This server wants a token: send the header Authorization: Bearer TOKEN.")

    def note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request and write its line of the access log; without feature values unless asked for."""
        self.service.metrics.request(scope["path"], status, seconds)
        if self.options.access_log:
            told = {
                "time": time.time(),
                "event": "request",
                "id": scope["request_id"],
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round(1e3 * seconds, 3),
                "rows": scope.get("rows"),
                "client": (scope.get("client") or (None,))[0],
            }
            self.service.access.write(told | {"features": scope["features"]} if "features" in scope else told)


def host_of(scope: Scope) -> str:
    """The name by which the server was asked, without the port."""
    name = header(scope, b"host").decode("latin-1").lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


# The application -----------------------------------------------------------------------------------------


def create_app(options: Options) -> FastAPI:
    """The application that serves a policy. `app.state.service` holds what it runs on; routes may be added."""
    service = Service(options)
    app = FastAPI(title="ponn", version=__version__, docs_url=None, redoc_url=None, lifespan=service.running)
    app.state.service = service
    often = {"/recommend": JsonRoute(service.recommend, options), "/outcome": JsonRoute(service.outcome, options)}
    stack = app.build_middleware_stack
    app.build_middleware_stack = lambda: Gate(stack(), service, often)  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, told_as_json)
    app.add_exception_handler(PonnError, refused_as_json)
    app.router.routes += [
        *(Route(path, one, methods=["POST"]) for path, one in often.items()),
        Route("/score", service.score, methods=["POST"]),
        Route("/policy", service.policy),
        Route("/healthz", healthy),
        Route("/readyz", service.ready),
        Route("/metrics", service.show_metrics),
        Route("/report", service.report),
        Route("/docs", partial(page_file, "docs.html")),
        Route("/", partial(page_file, "index.html")),
    ]
    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False))
    app.openapi = partial(openapi, app, service)  # type: ignore[method-assign]
    return app


def openapi(app: FastAPI, service: Service) -> dict[str, Any]:
    """The description of all routes, with the fields of the policy that answers now."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    about = service.adviser.about if service.adviser else None
    found["paths"] = described_paths(about, service.options.token is not None) | found.get("paths", {})
    if service.options.token:
        found.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found


async def healthy(_: Request) -> Response:
    """GET /healthz."""
    return JSONResponse({"alive": True})


async def page_file(name: str, _: Request) -> Response:
    """A page of the package."""
    if not (PAGE / name).is_file():
        raise RefusedError(404, "There is no such page.")
    return FileResponse(PAGE / name, media_type="text/html")


async def told_as_json(_: Request, error: Exception) -> Response:
    """Answers of the framework (no such path, no such method) in our form."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def refused_as_json(_: Request, error: Exception) -> Response:
    """Refusals of routes that are functions."""
    assert isinstance(error, PonnError)
    status, told = refusal_json(error)
    return JSONResponse(told, status)


# Processes -----------------------------------------------------------------------------------------------


class JsonLines(logging.Formatter):
    """Log records as JSON lines, like the access log."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told = {"time": record.created, "event": "log", "level": record.levelname.lower(), "told": record.getMessage()}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def worker_app(options: Options) -> FastAPI:
    """The application of one process, whose messages go to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, level in (("ponn.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    app = create_app(options)
    gc.freeze()  # what is there now stays: no need to look at it again and again for garbage
    gc.set_threshold(YOUNG)
    return app


def serve(
    options: Options,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    workers: int = 1,
    allow_hosts: tuple[str, ...] = (),
    tell: Callable[[str], None] = print,
) -> None:
    """Serve a policy until a signal says stop; requests that have begun are answered first.

    port: 0 takes a free one. allow_hosts: further names under which the server may be asked, as behind a proxy.
    tell: is told the URL.
    """
    if options.policy:
        served_adviser(options.policy, options.mode)  # so that what is wrong with it is told at once
    check_files(options)
    listening = bound_socket(host, port)
    options = replace(options, hosts=allowed_hosts(host, allow_hosts))
    told_host = f"[{host}]" if ":" in host else host
    tell(f"http://{told_host}:{listening.getsockname()[1]}")
    with tempfile.TemporaryDirectory(prefix="ponn-") as folder:
        run_workers(replace(options, metrics=Path(folder)), listening, workers)


def check_files(options: Options) -> None:
    """Files that were named are there, or can be made."""
    if options.report and not options.report.is_file():
        raise PonnError(f"There is no report {options.report}.")
    if options.decisions and not options.decisions.parent.is_dir():
        raise PonnError(f"There is no folder {options.decisions.parent} for the decision log.")
    if options.decisions and not os.access(options.decisions.parent, os.W_OK):
        raise PonnError(f"The folder {options.decisions.parent} for the decision log cannot be written to.")


def allowed_hosts(host: str, more: tuple[str, ...]) -> frozenset[str] | None:
    """Names under which the server may be asked: on this machine only its own, so that no web page can reach it."""
    if host not in LOOPBACK and not more:
        return None
    return frozenset({*LOOPBACK, host.lower(), *(name.lower() for name in more)})


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens, or an error that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Said to be TCP: else asyncio leaves small packets waiting for each other, 40 ms for every answer.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name != "nt":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not those of a server that just stopped
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        found.close()
        hint = "Is another server running there? Choose another with --port, or --port 0 for any that is free."
        raise PonnError(f"The address {host}, port {port}, cannot be used: {one_line(error)}. {hint}") from error
    found.set_inheritable(True)
    return found


def run_workers(options: Options, listening: socket.socket, workers: int) -> None:
    """Run the processes until they are told to stop."""
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    config = uvicorn.Config(
        partial(worker_app, options),
        factory=True,
        workers=workers,
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=20,
        limit_concurrency=4_096,
    )
    if workers > 1:
        Multiprocess(config, [listening]).run()
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it has stopped in order
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run([listening])


def read_token(path: Path) -> str:
    """The token of a file, which must be long enough not to be guessed."""
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PonnError(f"The token file {path} could not be read: {one_line(error)}.") from error
    if len(token) < 16 or not token.isprintable() or " " in token:
        raise PonnError(
            f"The token file {path} must hold one line of at least 16 printable characters without spaces; "
            "`openssl rand -hex 32` makes a good one."
        )
    return token


def mode_of(sample: bool, explore: float | None, supported_only: bool = False) -> Mode:
    """How actions are chosen, from the command line's flags."""
    if sample and explore is not None:
        raise PonnError("--sample and --explore cannot go together: choose one.")
    if explore is not None:
        return Mode("explore", explore, supported_only)
    return Mode("sample" if sample else "best", supported_only=supported_only)
