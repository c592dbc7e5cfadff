"""The policy server: the application with its routes, and the processes that run it. Imports no training stack.

What is answered is in `service.py`, who may ask in `gate.py`, how bodies come in and answers go out in `messages.py`.
"""

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from ponn import __version__
from ponn.errors import PonnError, one_line
from ponn.serving.advice import Mode
from ponn.serving.gate import Gate
from ponn.serving.messages import MISTAKE, JsonRoute, RefusedError, mistake, refusal_json, to_json
from ponn.serving.openapi import described_paths
from ponn.serving.service import Options, Service, served_and_kept
from ponn.serving.turns import Refusals
from ponn.storage import PrivateFolder

PAGE = Path(__file__).parent / "page"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SWITCH_SECONDS = 0.001  # that a thread with a piece of a large request may keep the event loop from computing
YOUNG = 10_000  # objects between two looks for garbage; requests leave none in cycles


def create_app(options: Options) -> FastAPI:
    """The application that serves a policy. `app.state.service` holds what it runs on; routes may be added."""
    service = Service(options)
    titles = {"title": "ponn", "version": __version__}
    app = FastAPI(**titles, docs_url=None, redoc_url=None, openapi_url=None, lifespan=service.running)  # type: ignore[arg-type]
    app.state.service = service
    answers = {"/recommend": service.recommend, "/outcome": service.outcome}
    often = {path: JsonRoute(one, options.most_bytes, service.patience) for path, one in answers.items()}
    stack = app.build_middleware_stack
    app.build_middleware_stack = lambda: Gate(stack(), service, often)  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, told_as_json)
    app.add_exception_handler(PonnError, refused_as_json)
    app.add_exception_handler(Exception, mistake_as_json)
    app.router.routes += [
        *(Route(path, one, methods=["POST"]) for path, one in often.items()),
        Route("/score", service.score, methods=["POST"]),
        Route("/policy", service.policy),
        Route("/openapi.json", partial(openapi_json, app, service)),
        Route("/healthz", healthy),
        Route("/readyz", service.ready),
        Route("/metrics", service.show_metrics),
        Route("/report", service.report),
        Route("/favicon.ico", partial(page_file, "icon.svg", media_type="image/svg+xml")),
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


async def openapi_json(app: FastAPI, service: Service, _: Request) -> Response:
    """GET /openapi.json: made once for a policy, in a thread, as a policy may have thousands of features."""
    made_of = (service.adviser, len(app.routes))
    told = await asyncio.to_thread(service.kept, "openapi", made_of, lambda: to_json(app.openapi()))
    return Response(told, media_type="application/json")


async def healthy(_: Request) -> Response:
    """GET /healthz."""
    return JSONResponse({"alive": True})


async def page_file(name: str, _: Request, media_type: str = "text/html") -> Response:
    """A page of the package, or a picture."""
    if not (PAGE / name).is_file():
        raise RefusedError(404, "There is no such page.")
    return FileResponse(PAGE / name, media_type=media_type)


async def told_as_json(_: Request, error: Exception) -> Response:
    """Answers of the framework (no such path, no such method) in our form."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def refused_as_json(_: Request, error: Exception) -> Response:
    """Refusals of routes that are functions."""
    assert isinstance(error, PonnError)
    status, told = refusal_json(error)
    return JSONResponse(told, status, getattr(error, "headers", None))  # when to come again, where it says so


async def mistake_as_json(_: Request, __: Exception) -> Response:
    """A mistake of ours; `Gate` logs it."""
    return Response(MISTAKE, 500, media_type="application/json")


# Processes -----------------------------------------------------------------------------------------------


class JsonLines(logging.Formatter):
    """Log records as JSON lines, like the access log."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told = {"time": record.created, "event": "log", "level": record.levelname.lower(), "told": record.getMessage()}
        if record.exc_info and record.exc_info[1]:
            told["mistake"] = mistake(record.exc_info[1])
        return json.dumps(told)


def worker_app(options: Options, workers: int = 1) -> FastAPI:
    """The application of one process, whose messages go to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, level in (("ponn.serve", logging.INFO), ("uvicorn.error", logging.WARNING), ("asyncio", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    if workers > 1 and hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the process that started this one tells it when to stop
    sys.setswitchinterval(SWITCH_SECONDS)
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
    with PrivateFolder() as folder:
        options = replace(options, hosts=allowed_hosts(host, allow_hosts), metrics=folder)
        if options.policy:
            served_and_kept(options.policy, options)  # so that what is wrong with it is told at once
        check_files(options)
        listening = bound_socket(host, port)
        told_host = f"[{host}]" if ":" in host else host
        tell(f"http://{told_host}:{listening.getsockname()[1]}")
        run_workers(options, listening, workers)


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

    from ponn.serving.connections import Connection

    allow_many_files()
    config = uvicorn.Config(
        partial(worker_app, options, workers),
        http=partial(  # type: ignore[arg-type]
            Connection,
            seconds=options.head_seconds,
            stalled=options.stalled_seconds,
            refusals=Refusals() if options.slow_refusals else None,
        ),
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
    )
    if workers > 1:
        supervisor = Multiprocess(config, [listening])
        on_hang_up(lambda: supervisor.signal_queue.append(signal.SIGTERM))  # where uvicorn would begin anew
        supervisor.run()
        return
    server = uvicorn.Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it has stopped in order
        signal.signal(number, lambda *_: None)
    on_hang_up(lambda: setattr(server, "should_exit", True))
    server.run([listening])


def on_hang_up(stop: Callable[[], None]) -> None:
    """Stop in order when the terminal is closed; unless told not to mind, as by nohup."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: stop())


def allow_many_files() -> None:
    """As many open connections as the system lets us have."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
