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

import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from ponn.methods import DEFAULT_METHOD, METHODS
from ponn.serving.messages import JsonRoute
from ponn.serving.server import LOOPBACK, PAGE, bound_socket, create_app
from ponn.serving.service import Options, Service
from ponn.serving.studio.guesses import column_lines, guess_roles
from ponn.serving.studio.project import DONE, Job, NotThereError, Order, Project, Reading
from ponn.tables.table import read_table

LARGEST_ASK = 1 << 20  # bytes of a request that is no upload
# A report is one file with its scripts inside. It may run them, but knows nothing of the studio and reaches nobody.
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "sandbox allow-scripts allow-popups allow-modals; default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'self'"
    )
}
Next = Callable[[Request], Awaitable[Response]]


def run_studio(folder: Path, port: int, largest: int, tell: Callable[[str], None] = print) -> None:
    """Run the studio on this machine until a signal says stop; what is being learned then is shown as interrupted.

    port: 0 takes a free one. largest: bytes of an upload. tell: is told the URL.
    """
    import uvicorn

    from ponn.serving.connections import Connection

    listening, project = bound_socket("127.0.0.1", port), Project(folder)  # which may begin to learn what waits
    tell(f"http://127.0.0.1:{listening.getsockname()[1]}/studio")
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it has stopped in order
        signal.signal(number, lambda *_: None)
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
    app.middleware("http")(guarded)
    app.exception_handler(RequestValidationError)(told_invalid)
    add_pages(app)
    add_files(app, project, largest)
    add_jobs(app, project)
    add_trials(app, project)
    return app


def closing(project: Project, life: Any) -> Any:
    """The application's life, at whose end the project is closed."""

    @asynccontextmanager
    async def whole_life(app: FastAPI) -> AsyncIterator[None]:
        async with life(app):
            yield
        project.close()

    return whole_life


# Who may ask, and what they are told ---------------------------------------------------------------------


async def guarded(request: Request, answer: Next) -> Response:
    """Only the studio's own page may change something: a page of another site is refused."""
    if request.method in ("GET", "HEAD"):
        return await answer(request)
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if origin not in (None, f"http://{host}") or site not in ("same-origin", "none"):
        return JSONResponse({"error": "A page of another site asked for this, so it was refused."}, 403)
    long = request.headers.get("content-length", "0")
    if request.url.path in ("/studio/check", "/studio/jobs") and not (long.isdigit() and int(long) <= LARGEST_ASK):
        return JSONResponse({"error": f"The request is larger than {LARGEST_ASK:,} bytes."}, 413)
    return await answer(request)


async def told_invalid(request: Request, error: Exception) -> JSONResponse:
    """A request whose parts have wrong names or types: which, and why."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"error": f"{place or 'The request'}: {first['msg']}.", "field": place or None}, 422)


def plain(value: Any) -> Response:
    """An answer in JSON; numbers that JSON has no word for are null."""
    return JSONResponse(json.loads(json.dumps(value, default=str), parse_constant=lambda _: None))


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
        announced = request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > largest:
            raise project.too_large(name, largest)
        kept = await project.add(name, request.stream(), largest)
        return plain({"name": kept.name, "bytes": kept.stat().st_size})

    @app.get("/studio/files/{name}")
    def columns(name: str) -> Response:
        table = read_table(project.file(name)).table
        lines = column_lines(table)
        guess = asdict(guess_roles(table, lines))
        return plain({"name": name, "rows": len(table), "columns": [asdict(one) for one in lines], "guess": guess})

    @app.post("/studio/check")
    def check(file: str, columns: Reading) -> Response:
        from ponn.evaluation.readiness import check as look_at

        return plain(look_at(project.file(file), **columns.keywords).as_json())


def add_jobs(app: FastAPI, project: Project) -> None:
    """Learning."""

    def told(job: Job) -> Response:
        return plain(job.as_json() | {"ahead": project.ahead(job)})

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

    def service(id: str) -> Service:
        return service_of(made(project, id, "policy.ponn"))

    async def recommend(scope: Scope, body: bytes) -> bytes:
        return await service(scope["path_params"]["id"]).recommend(scope, body)

    own: Service = app.state.service
    asking = JsonRoute(recommend, own.options.most_bytes, own.patience)
    app.router.routes.append(Route("/studio/jobs/{id}/recommend", asking, methods=["POST"]))

    @app.get("/studio/jobs/{id}/about")
    async def about(id: str, request: Request) -> Response:
        return await service(id).policy(request)

    @app.post("/studio/jobs/{id}/score")
    async def score(id: str, request: Request) -> Response:
        return await service(id).score(request)


@lru_cache(maxsize=8)
def service_of(policy: Path) -> Service:
    """What answers for a policy. That of a finished job never changes."""
    return Service(Options(policy, access_log=False))


def made(project: Project, id: str, name: str) -> Path:
    """A file that a finished job left."""
    job = project.job(id)
    path = project.folder(job) / name
    if job.state != DONE or not path.is_file():
        raise NotThereError(f"This job has no {name}: it is {job.state}.")
    return path
