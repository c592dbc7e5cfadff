"""The studio: from a table to a policy in the browser. Local only.

    route                           what
    GET  /studio                    the page
    GET  /studio/options            methods, the folder, the largest upload
    POST /studio/files?name=        upload: the file is the body
    GET  /studio/files[/NAME]       files; the columns of one, with a guess of their roles
    POST /studio/check              what `ponn check` says
    POST /studio/jobs               start to learn; GET lists all jobs
    GET  /studio/jobs/ID            one job; POST .../restart, .../cancel
    GET  /studio/jobs/ID/report     and .../policy to download, .../about and POST .../recommend, .../score to try it
"""

import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from ponn.advice import Adviser, load_adviser, read_ask
from ponn.errors import PonnError
from ponn.guesses import column_lines, guess_roles
from ponn.project import DONE, Busy, Columns, NotThere, Order, Project, TooLarge
from ponn.scoring import write_recommendations
from ponn.settings import DEFAULT_METHOD, METHODS
from ponn.table import read_table

PAGE = Path(__file__).parent / "page"
LOCAL = ("127.0.0.1", "localhost", "[::1]")
STATUS = {NotThere: 404, Busy: 409, TooLarge: 413}
LARGEST_ASK = 1_000_000  # bytes of a request other than an upload
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# A report is one file with its scripts inside. It may run them, but knows nothing of the studio and reaches nobody.
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "sandbox allow-scripts allow-popups allow-modals; default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'self'"
    )
}

Next = Callable[[Request], Awaitable[Response]]


def studio_app(project: Project, largest: int) -> FastAPI:
    """The studio over a project folder; uploads may have `largest` bytes."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        project.close()

    app = FastAPI(title="ponn studio", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    app.middleware("http")(guarded)
    app.exception_handler(PonnError)(told)
    app.exception_handler(RequestValidationError)(told_invalid)
    app.mount("/static", StaticFiles(directory=PAGE))
    add_pages(app)
    add_files(app, project, largest)
    add_jobs(app, project)
    add_trials(app, project)
    return app


# Who may ask, and what they are told ---------------------------------------------------------------------


async def guarded(request: Request, answer: Next) -> Response:
    """Only this machine's own pages may ask: another name for this address, or another site's page, is refused."""
    refusal = outsider(request)
    found = JSONResponse({"error": refusal}, 403) if refusal else await answer(request)
    for name, value in HEADERS.items():
        found.headers.setdefault(name, value)
    return found


def outsider(request: Request) -> str:
    """Why a request does not come from this machine's own page; empty if it does."""
    host = request.headers.get("host", "")
    if host.rpartition(":")[0] not in LOCAL and host not in LOCAL:
        return f"The studio answers only under {' or '.join(LOCAL[:2])}, not under {host[:100]!r}."
    if request.method in ("GET", "HEAD"):
        return ""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    if origin not in (None, f"http://{host}") or site not in ("same-origin", "none"):
        return "Another site's page asked for this, so it was refused."
    return ""


async def told(request: Request, error: Exception) -> JSONResponse:
    """A user's mistake in words."""
    return JSONResponse({"error": str(error)}, STATUS.get(type(error), 400))


async def told_invalid(request: Request, error: Exception) -> JSONResponse:
    """A request whose parts have wrong names or types: which, and why."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"error": f"{place or 'The request'}: {first['msg']}.", "field": place or None}, 422)


def plain(value: Any) -> Response:
    """An answer in JSON; numbers that JSON has no word for are null."""
    sound = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    return JSONResponse(sound)


# Routes --------------------------------------------------------------------------------------------------


def add_pages(app: FastAPI) -> None:
    """The page itself."""

    @app.get("/")
    def start() -> Response:
        return RedirectResponse("/studio")

    @app.get("/studio")
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
    def check(file: str, columns: Columns) -> Response:
        from ponn.readiness import check as look_at

        return plain(look_at(project.file(file), **asdict(columns)).as_json())


def add_jobs(app: FastAPI, project: Project) -> None:
    """Learning."""

    @app.post("/studio/jobs")
    def start(order: Order) -> Response:
        return plain(project.start(order).as_json())

    @app.get("/studio/jobs")
    def jobs() -> Response:
        return plain([job.as_json() for job in project.jobs()])

    @app.get("/studio/jobs/{id}")
    def job(id: str) -> Response:
        return plain(project.job(id).as_json())

    @app.post("/studio/jobs/{id}/restart")
    def restart(id: str) -> Response:
        return plain(project.restart(id).as_json())

    @app.post("/studio/jobs/{id}/cancel")
    def cancel(id: str) -> Response:
        return plain(project.cancel(id).as_json())

    @app.get("/studio/jobs/{id}/report")
    def report(id: str) -> Response:
        return FileResponse(made(project, id, "report.html"), headers=REPORT_HEADERS)

    @app.get("/studio/jobs/{id}/policy")
    def policy(id: str) -> Response:
        path = made(project, id, "policy.ponn")
        return FileResponse(path, media_type="application/octet-stream", filename=f"{stem(project, id)}.ponn")


def add_trials(app: FastAPI, project: Project) -> None:
    """Trying a policy that was learned."""

    @app.get("/studio/jobs/{id}/about")
    def about(id: str) -> Response:
        return plain(adviser(made(project, id, "policy.ponn")).about)

    @app.post("/studio/jobs/{id}/recommend")
    async def recommend(id: str, request: Request) -> Response:
        asked = read_ask(await sent_json(request))
        found = adviser(made(project, id, "policy.ponn"))
        return plain({"policy": found.digest, "recommendations": found.advise(asked).recommendations})

    @app.post("/studio/jobs/{id}/score")
    async def score(id: str, request: Request) -> Response:
        policy = adviser(made(project, id, "policy.ponn")).policy
        with tempfile.TemporaryDirectory() as folder:
            rows, advice = Path(folder, "rows.csv"), Path(folder, "advice.csv")
            rows.write_bytes(await request.body())
            write_recommendations(policy, rows, advice)
            return Response(advice.read_bytes(), media_type="text/csv")


def made(project: Project, id: str, name: str) -> Path:
    """A file that a finished job left."""
    job = project.job(id)
    path = project.folder(job) / name
    if job.state != DONE or not path.is_file():
        raise NotThere(f"This job has no {name}: it is {job.state}.")
    return path


def stem(project: Project, id: str) -> str:
    """A name for a job's policy: the file it was learned from."""
    return project.job(id).order.file.partition(".")[0]


@lru_cache(maxsize=8)
def adviser(path: Path) -> Adviser:
    """The policy of a finished job, which never changes."""
    return load_adviser(path)


async def sent_json(request: Request) -> Any:
    """The body of a request as JSON."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_ASK:
            raise TooLarge(f"The request is larger than {LARGEST_ASK:,} bytes.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PonnError(f"The request is not JSON: {error}.") from error
