"""What one process of the server holds and answers: the policy, the decision log, the counters, the access log.

Every answer of /recommend is made by `advice.py`; here requests that arrive together are answered together, decisions
are written before they are told, and a replaced policy file is taken up.
"""

import asyncio
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import Scope

from ponn.errors import PonnError, one_line
from ponn.policy.batches import one_blas_thread, write_recommendations
from ponn.serving.advice import Advice, Adviser, Ask, AskError, Checked, Mode, load_adviser, read_ask
from ponn.serving.decisions import DecisionLog, find_decision, line, policy_line
from ponn.serving.messages import Body, Patience, RefusedError, from_json, to_json, wanted_type
from ponn.serving.metrics import Metrics
from ponn.serving.rows import kind_in_words
from ponn.settings import SERVED_BYTES, SERVED_ROWS
from ponn.tables.streams import open_stream

INLINE = 1 << 16  # bytes; longer requests are answered in a thread, so that short ones do not wait for them
MOST_TURNS = 16  # of the loop that a request waits for others
ACCESS_SECONDS = 0.1  # that a line of the access log waits for others
ACCESS_FIELDS = ("time", "event", "id", "method", "path", "status", "ms", "rows", "client", "features")
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
    head_seconds: float = 10.0  # for the head of a request to arrive
    body_seconds: float = 10.0  # for its body to arrive
    poll_seconds: float = 0.5  # between two looks at the policy file
    access_log: bool = True
    log_features: bool = False
    metrics: Path | None = None  # folder in which workers share their counters


class AccessLog:
    """JSON lines on standard error, some at a time: a line each would cost as much as the recommendation."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, ...]] = []

    def write(self, *values: Any) -> None:
        """Write a line with these fields soon; what comes last may be left out."""
        if not self.waiting:
            asyncio.get_running_loop().call_later(ACCESS_SECONDS, self.flush)
        self.waiting.append(values)

    def flush(self) -> None:
        """Write what there is."""
        waiting, self.waiting = self.waiting, []
        if waiting:
            lines = [to_json(dict(zip(ACCESS_FIELDS, one, strict=False)), orjson.OPT_APPEND_NEWLINE) for one in waiting]
            sys.stderr.write(b"".join(lines).decode())
            sys.stderr.flush()


class Together:
    """Requests that arrive together are answered together: most of the cost of one row is not the row's."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Adviser, Checked, asyncio.Future[Advice]]] = []

    def advise(self, adviser: Adviser, checked: Checked) -> "asyncio.Future[Advice]":
        """The answer to a request, as soon as those that have arrived with it were read."""
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_soon(self.gather, 0, 0)
        future: asyncio.Future[Advice] = loop.create_future()
        self.waiting.append((adviser, checked, future))
        return future

    def gather(self, seen: int, turn: int) -> None:
        """Wait another turn of the loop, some microseconds, as long as requests keep coming; then answer all."""
        if len(self.waiting) > seen and turn < MOST_TURNS:
            asyncio.get_running_loop().call_soon(self.gather, len(self.waiting), turn + 1)
        else:
            self.answer()

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


class Service:
    """The policy that answers now, the decision log and the counters of one process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics(options.metrics)
        self.decisions = DecisionLog(options.decisions) if options.decisions else None
        self.adviser: Adviser | None = None
        self.together, self.access = Together(), AccessLog()
        self.patience = Patience(options.body_seconds)
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
            scope["features"] = (ask.rows,)
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
            await save_upload(request, folder / "rows.csv", self.options, self.patience)
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


async def save_upload(request: Request, path: Path, options: Options, patience: Patience) -> None:
    """Write the body of a request to a file, unless it is too long or too slow."""
    body = Body(request.scope, request.receive, options.most_upload, patience)
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
