"""The studio: from a table to a policy in the browser. Local only.

route                           what
GET  /studio                    the page
GET  /studio/options            methods, the folder, the largest upload
POST /studio/files?name=        upload: the file is the body
GET  /studio/files[/NAME]       files; the columns of one, with a guess of their roles
POST /studio/check              what `ponn check` says
POST /studio/jobs               start to learn, when its turn comes; GET lists all jobs
GET  /studio/jobs/ID            one job; POST .../restart, .../cancel
GET  /studio/jobs/ID/report     and .../policy to download, .../about and POST .../recommend, .../score to try it
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ponn.errors import PonnError
from ponn.methods import DEFAULT_METHOD, METHODS
from ponn.processes import Allowed, Room, launcher_of
from ponn.serving.messages import (
    Body,
    JsonRoute,
    Patience,
    RefusedError,
    header,
    refusal_json,
    respond,
    to_json,
    while_there,
)
from ponn.serving.server import LOOPBACK, PAGE, bound_socket, create_app
from ponn.serving.service import Options, Service
from ponn.serving.studio.inspection import check_upload, describe_upload
from ponn.serving.studio.openapi import with_studio
from ponn.serving.studio.project import DONE, Job, NotThereError, Order, Project, Reading, share_of_memory

LARGEST_ASK = 1 << 20  # bytes of a request that is no upload
SMALL = ("/studio/check", "/studio/jobs")  # routes whose whole body is read before anything else is done
SLOTS = 2  # tables that are read at once
PATIENCE = 20.0  # seconds that a table waits to be read
STALLED = 30.0  # seconds without a byte after which an upload is given up
# Reading a plain file of 500 MB takes 1.9 GB, 4 bytes for each of its own, and `check` 22 s; there is room beyond that.
READING_MEMORY, PER_BYTE, READING_SECONDS = 512 << 20, 6, 120.0
# A report is one file with its scripts inside. It may run them, but knows nothing of the studio and reaches nobody.
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "sandbox allow-scripts allow-popups allow-modals; default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'self'"
    )
}


def run_studio(
    folder: Path, port: int, largest: int, tell: Callable[[str], None] = print, *, memory: int | None = None
) -> None:
    """Run the studio on this machine until a signal says stop; what is being learned then is shown as interrupted.

    port: 0 takes a free one. largest: bytes of an upload. tell: is told the URL. memory: bytes that learning may take.
    """
    import uvicorn

    from ponn.serving.connections import Connection

    listening, project = bound_socket("127.0.0.1", port), Project(folder, memory)  # which may begin to learn what waits
    tell(f"http://127.0.0.1:{listening.getsockname()[1]}/studio")
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it has stopped in order
        signal.signal(number, lambda *_: None)
    launcher_of(check_upload.__module__)  # which takes a second to be ready
    app = studio_app(project, largest)
    config = uvicorn.Config(
        app,
        http=partial(Connection, seconds=app.state.service.options.head_seconds),  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run([listening])


def studio_app(project: Project, largest: int) -> FastAPI:
    """The server's application without a policy of its own, with the studio's routes."""
    app = create_app(Options(policy=None, hosts=frozenset(LOOPBACK), access_log=False))
    app.router.lifespan_context = closing(project, app.router.lifespan_context)
    own: Service = app.state.service
    app.add_middleware(Guard, patience=own.patience)
    app.exception_handler(RequestValidationError)(told_invalid)
    add_pages(app)
    add_files(app, project, largest)
    add_jobs(app, project)
    add_trials(app, project)
    described = app.openapi
    app.openapi = lambda: with_studio(described())  # type: ignore[method-assign]
    return app


def closing(what: Project | Room, life: Any) -> Any:
    """The application's life, at whose end this is closed."""

    @asynccontextmanager
    async def whole_life(app: FastAPI) -> AsyncIterator[None]:
        async with life(app):
            yield
        await asyncio.to_thread(what.close)

    return whole_life


# Who may ask, and what they are told ---------------------------------------------------------------------


class Guard:
    """Only the studio's own page may change something, and only uploads may be long."""

    def __init__(self, app: ASGIApp, patience: Patience) -> None:
        self.app, self.patience = app, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer why not."""
        try:
            if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
                refuse_strangers(scope)
                if scope["path"] in SMALL:
                    body = Body(scope, receive, LARGEST_ASK, self.patience)
                    receive = once_more(await body.whole(), receive)
        except PonnError as error:
            status, told = refusal_json(error)
            await respond(send, status, to_json(told))
            return
        await self.app(scope, receive, send)


def refuse_strangers(scope: Scope) -> None:
    """Refuse what a page of another site asks for."""
    host, origin, site = (header(scope, name).decode("latin-1") for name in (b"host", b"origin", b"sec-fetch-site"))
    if origin not in ("", f"http://{host}") or site not in ("", "same-origin", "none"):
        raise RefusedError(403, "A page of another site asked for this, so it was refused.")


def once_more(body: bytes, receive: Receive) -> Receive:
    """A way to receive a body that was read before, and then what comes after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received


async def told_invalid(request: Request, error: Exception) -> JSONResponse:
    """A request whose parts have wrong names or types: which, and why."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"error": f"{place or 'The request'}: {first['msg']}.", "field": place or None}, 422)


def plain(value: Any) -> Response:
    """An answer in JSON; numbers that JSON has no word for are null."""
    return JSONResponse(json.loads(json.dumps(value, default=str), parse_constant=lambda _: None))


async def chunks_of(request: Request) -> AsyncIterator[bytes]:
    """The body of an upload as it comes; an error where it stops coming."""
    patience, loop = Patience(STALLED), asyncio.get_running_loop()
    more = True
    while more:
        message = await patience.message(request.receive, loop.time() + STALLED)
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "The client left before the upload was complete.")
        more = message.get("more_body", False)
        yield message.get("body", b"")


# Routes --------------------------------------------------------------------------------------------------


def add_pages(app: FastAPI) -> None:
    """The page itself, also at the address that a policy's page has."""

    async def to_studio(_: Request) -> Response:
        return RedirectResponse("/studio")

    app.router.routes.insert(0, Route("/", to_studio))

    @app.get("/studio", include_in_schema=False)
    def page() -> Response:
        return FileResponse(PAGE / "studio.html")


def add_files(app: FastAPI, project: Project, largest: int) -> None:
    """Uploads, their columns, and `check`."""
    room, allowed = Room(SLOTS, PATIENCE), Allowed(reading_memory(largest), READING_SECONDS)

    async def apart(request: Request, function: Callable[..., Any], name: str, *more: Any) -> Any:
        path = await asyncio.to_thread(project.file, name)
        reading = room.run(function, str(path), *more, allowed=allowed, what=f"Reading {name}")
        return await while_there(request.receive, reading)

    app.router.lifespan_context = closing(room, app.router.lifespan_context)

    @app.get("/studio/options")
    def options() -> Response:
        methods = [{"name": name, "about": one.about} for name, one in METHODS.items()]
        folder = str(project.files_folder.parent.resolve())
        return plain({"methods": methods, "default": DEFAULT_METHOD, "largest": largest, "folder": folder})

    @app.get("/studio/files")
    def files() -> Response:
        return plain([{"name": one.name, "bytes": one.stat().st_size} for one in project.files()])

    @app.post("/studio/files")
    async def upload(request: Request, name: str) -> Response:
        announced = header(request.scope, b"content-length")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > largest):
            raise project.too_large(name, largest)
        kept = await project.add(name, chunks_of(request), largest)
        return plain({"name": kept.name, "bytes": kept.stat().st_size})

    @app.get("/studio/files/{name}")
    async def columns(request: Request, name: str) -> Response:
        return JSONResponse({"name": name} | await apart(request, describe_upload, name))

    @app.post("/studio/check")
    async def check(request: Request, file: str, columns: Reading) -> Response:
        return JSONResponse(await apart(request, check_upload, file, columns.keywords))


def reading_memory(largest: int) -> int:
    """Bytes that reading a file may take: enough for the largest upload, if this machine has twice that."""
    return min(READING_MEMORY + PER_BYTE * largest, share_of_memory(1 / SLOTS))


def add_jobs(app: FastAPI, project: Project) -> None:
    """Learning."""

    def told(job: Job) -> Response:
        return plain(job.as_json() | {"ahead": project.ahead(job), "trouble": project.trouble(job)})

    @app.post("/studio/jobs")
    def start(order: Order) -> Response:
        return told(project.start(order))

    @app.get("/studio/jobs")
    def jobs() -> Response:
        return plain([job.as_json() for job in project.jobs()])

    @app.get("/studio/jobs/{id}")
    def job(id: str) -> Response:
        return told(project.job(id))

    @app.post("/studio/jobs/{id}/restart")
    def restart(id: str) -> Response:
        return told(project.restart(id))

    @app.post("/studio/jobs/{id}/cancel")
    def cancel(id: str) -> Response:
        return told(project.cancel(id))

    @app.get("/studio/jobs/{id}/report")
    def report(id: str) -> Response:
        return FileResponse(made(project, id, "report.html"), headers=REPORT_HEADERS)

    @app.get("/studio/jobs/{id}/policy")
    def policy(id: str) -> Response:
        name = project.job(id).order.file.partition(".")[0] + ".ponn"
        return FileResponse(made(project, id, "policy.ponn"), media_type="application/octet-stream", filename=name)


def add_trials(app: FastAPI, project: Project) -> None:
    """Trying a policy that was learned: what the server does for its policy, for that of a job."""

    own: Service = app.state.service

    async def service(id: str) -> Service:
        found = await asyncio.to_thread(policy_service, project, id)
        found.room = own.room
        return found

    async def recommend(scope: Scope, body: bytes) -> bytes:
        return await (await service(scope["path_params"]["id"])).recommend(scope, body)

    asking = JsonRoute(recommend, own.options.most_bytes, own.patience)
    app.router.routes.append(Route("/studio/jobs/{id}/recommend", asking, methods=["POST"]))

    @app.get("/studio/jobs/{id}/about")
    async def about(id: str, request: Request) -> Response:
        return await (await service(id)).policy(request)

    @app.post("/studio/jobs/{id}/score")
    async def score(id: str, request: Request) -> Response:
        return await (await service(id)).score(request)


def policy_service(project: Project, id: str) -> Service:
    """What answers for the policy of a job."""
    path = made(project, id, "policy.ponn")
    found = os.stat(path)
    service = service_of(path, (found.st_mtime_ns, found.st_size, found.st_ino))
    if service.adviser is None:
        raise DamagedError(f"The policy of this job cannot be used: {service.refused}")
    return service


class DamagedError(PonnError):
    """A file of the studio that is not as it was written."""

    status = 409  # of HTTP


@lru_cache(maxsize=8)
def service_of(policy: Path, _: tuple[int, int, int]) -> Service:
    """What answers for a policy file as it is now."""
    return Service(Options(policy, access_log=False))


def made(project: Project, id: str, name: str) -> Path:
    """A file that a finished job left."""
    job = project.job(id)
    path = project.folder(job) / name
    if job.state != DONE or not path.is_file():
        raise NotThereError(f"This job has no {name}: it is {job.state}.")
    return path
