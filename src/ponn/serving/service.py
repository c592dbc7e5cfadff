"""What one process of the server holds and answers: the policy, the decision log, the counters, the access log.

Every answer of /recommend is made by `advice.py`, when it is its turn (`turns.py`); here decisions are written before
they are told, and a replaced policy file is taken up.
"""

import asyncio
import logging
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from ponn.errors import PonnError, one_line
from ponn.policy.batches import one_blas_thread
from ponn.policy.policy import Policy
from ponn.processes import Allowed, CrowdedError, Room
from ponn.serving.advice import Advice, Adviser, Ask, AskError, Mode, load_adviser, read_ask
from ponn.serving.journal import DecisionLog, Journal, OutcomeLog, is_decision, line, policy_line
from ponn.serving.messages import (
    Body,
    Patience,
    RefusedError,
    from_json,
    note_mistake,
    to_json,
    wanted_type,
    while_there,
)
from ponn.serving.metrics import Metrics
from ponn.serving.rows import kind_in_words, shown
from ponn.serving.turns import AT_ONCE, PIECE, Beside, Pace, Together
from ponn.serving.uploads import OUT, ROWS, score_upload
from ponn.settings import SERVED_BYTES, SERVED_ROWS
from ponn.storage import PrivateFolder, replacing

INLINE = 1 << 15  # bytes; longer requests are read in a thread: their cells alone would take some milliseconds
REFUSE, FLAG = "refuse", "flag"  # what becomes of outcomes outside the range of training
LONGEST_ID = 80  # characters of an id that an answer repeats
ACCESS_SECONDS = 0.1  # that a line of the access log waits for others
SCORE_SLOTS = 1  # files that a process of the server scores at once
SCORE_WAITING = 8  # files that are here at once: those that are scored, wait for that, come in or go out
SCORE_PATIENCE = 10.0  # seconds that a file waits for its turn; then its sender is told to come again
SCORE_MEMORY = 384 << 20  # bytes for one: a plain file of the largest size takes 270 MB, 90 of them before it begins
SCORE_SECONDS = 60.0  # for one: a plain file of the largest size takes 4 s on a free core
SCORE_DISK = 1 << 30  # bytes of what comes out: short rows become four times as long
ACCESS_FIELDS = ("time", "event", "id", "method", "path", "status", "ms", "rows", "client", "features")
log = logging.getLogger("ponn.serve")


@dataclass(frozen=True)
class Options:
    """How a policy is served; can be sent to another process."""

    policy: Path | None  # None: nothing to recommend with, as where only other routes are wanted
    mode: Mode = field(default_factory=Mode)
    token: str | None = None
    decisions: Path | None = None
    outcomes: str = FLAG  # what becomes of those outside the range of training
    report: Path | None = None
    hosts: frozenset[str] | None = None  # names under which the server may be asked; None: any
    public: frozenset[str] = frozenset({"/", "/docs", "/healthz", "/readyz", "/favicon.ico"})  # want no token
    most_bytes: int = SERVED_BYTES  # of a request
    most_rows: int = SERVED_ROWS  # of a request
    most_upload: int = 1 << 26  # bytes of a file for /score
    head_seconds: float = 10.0  # for the head of a request to arrive
    body_seconds: float = 10.0  # for its body to arrive
    stalled_seconds: float = 10.0  # in which whoever is answered must read a part of the answer
    poll_seconds: float = 0.5  # between two looks at the policy file
    slow_refusals: bool = False  # do refusals wait where there are many of them?
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


class Answer:
    """The answer to a request, as far as it is made: rows as JSON without ids, and what the decision log holds."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.logged: list[bytes] = []
        self.advice: list[Advice] = []

    def add(self, digest: str, ask: Ask, advice: Advice, logged: bool) -> None:
        """Recommendations for the next rows."""
        self.told += map(to_json, advice.recommendations)
        if logged:
            self.logged += decision_rests(digest, ask, advice)
        self.advice.append(advice)

    def as_json(self, digest: str, number: str, ids: Iterable[str]) -> bytes:
        """The whole answer."""
        rows = b",".join(b'{"id":"%b",%b' % (id.encode(), one[1:]) for id, one in zip(ids, self.told, strict=True))
        return b'{"policy":"%b","id":"%b","recommendations":[%b]}' % (digest.encode(), number.encode(), rows)


def decision_rests(digest: str, ask: Ask, advice: Advice) -> list[bytes]:
    """What lines of the decision log hold beside kind and id."""
    now, eligible = time.time(), ask.eligible or [None]
    per_row = eligible if isinstance(eligible[0], list) else [ask.eligible] * len(ask.rows)
    return [
        to_json(
            {"time": now, "policy": digest, "features": row, "eligible": can}
            | {"action": one["action"], "probability": one["served"]}
        )
        for row, can, one in zip(ask.rows, per_row, advice.recommendations, strict=True)
    ]


class Service:
    """The policy that answers now, the decision log and the counters of one process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics(options.metrics)
        self.decisions = DecisionLog(options.decisions) if options.decisions else None
        self.outcomes = OutcomeLog(options.decisions) if options.decisions else None
        self.adviser: Adviser | None = None
        self.together, self.access = Together(), AccessLog()
        self.beside = Beside(lambda: self.together.answered)
        self.paces: WeakKeyDictionary[Adviser, Pace] = WeakKeyDictionary()
        self.made: dict[str, tuple[Any, bytes]] = {}  # answers that stay as they are while something else does
        self.patience = Patience(options.body_seconds)
        self.room, self.uploads = Room(SCORE_SLOTS, SCORE_PATIENCE), 0
        self.refused = ""  # why the policy file that is there now is not used
        self.signature = signature(options.policy)
        if options.policy and not self.load(options.policy):
            self.adviser = kept_adviser(options)

    def load(self, path: Path) -> bool:
        """Take up the policy file; one that is refused, for whatever reason, leaves everything as it was."""
        try:
            self.adviser = served_and_kept(path, self.options)
        except Exception as error:  # nothing that a file may hold must end the look-out for a better one
            self.refused = why_refused(path, error)
            log.error("policy refused: %s", self.refused, exc_info=not isinstance(error, PonnError))
            return False
        self.refused = ""
        return True

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
                try:
                    await self.reload(self.options.policy)
                except Exception:  # the policy was taken up, or refused, but not all that follows was done
                    log.exception("after a look at %s", self.options.policy)
            before = now

    async def reload(self, path: Path) -> None:
        """Replace the policy; requests that have begun are answered by the one they began with."""
        if not await asyncio.to_thread(self.load, path):
            self.metrics.add('ponn_policy_reloads_total{result="refused"}')
            return
        self.metrics.add('ponn_policy_reloads_total{result="loaded"}')
        adviser = self.current()
        log.info("policy loaded: %s", adviser.digest)
        if self.decisions and self.outcomes:
            first = policy_line(adviser.policy, adviser.digest)
            self.decisions.first = self.outcomes.first = first
            with suppress(OSError):  # then it is the first line that is written when one can be written again
                await self.decisions.append(first)

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """From the start of a worker to its end."""
        asyncio.get_running_loop().set_exception_handler(note_mistake)
        self.begin_journals()
        await asyncio.to_thread(lambda: PrivateFolder().close())  # and with it goes what killed processes left
        watching = asyncio.create_task(self.watch())
        with one_blas_thread():
            yield
        watching.cancel()
        self.room.close()
        self.access.flush()
        self.beside.close()
        for journal in (self.decisions, self.outcomes):
            if journal:
                await journal.close()

    def begin_journals(self) -> None:
        """Begin the decision log; where that fails, it is tried again and the server is not ready until then."""
        if self.decisions and self.outcomes:
            first = policy_line(self.adviser.policy, self.adviser.digest) if self.adviser else b""
            self.outcomes.first = first
            try:
                self.decisions.start(first)
            except OSError as error:
                log.error("the decision log cannot be begun, which is tried again: %s", one_line(error))

    def pace(self, adviser: Adviser) -> Pace:
        """How fast a policy answers."""
        return self.paces.setdefault(adviser, Pace())

    # The routes ------------------------------------------------------------------------------------------

    async def recommend(self, scope: Scope, body: bytes) -> bytes:
        """POST /recommend."""
        adviser = self.current()
        ask = self.read(body) if len(body) <= INLINE else None
        if ask and self.pace(adviser).estimate(len(ask.rows), ask.reasons) <= AT_ONCE:
            ask, answer = ask, await self.answer_at_once(adviser, ask)
        else:
            ask, answer = await self.beside.finish(self.in_pieces(adviser, ask or body))
        scope["rows"] = len(ask.rows)
        if self.options.log_features:
            scope["features"] = (ask.rows,)
        for advice in answer.advice:
            self.count(advice)
        if self.decisions:
            return await self.record(scope, self.decisions, adviser, answer)
        number = scope["request_id"]
        return answer.as_json(adviser.digest, number, (f"{number}-{j}" for j in range(len(ask.rows))))

    def count(self, advice: Advice) -> None:
        """Keep count of what was answered."""
        self.metrics.add("ponn_recommendations_total", len(advice.recommendations))
        self.metrics.add("ponn_unsupported_total", advice.unsupported)
        self.metrics.add("ponn_restricted_total", advice.restricted)
        self.metrics.add("ponn_fell_back_total", advice.fell_back)
        self.metrics.add("ponn_surprised_total", advice.surprised)

    def read(self, body: bytes) -> Ask:
        """What is asked, if it is not too much."""
        ask = read_ask(from_json(body))
        if len(ask.rows) > self.options.most_rows:
            raise RefusedError(
                413, f"The request has {len(ask.rows):,} rows; at most {self.options.most_rows:,} at once."
            )
        return ask

    async def answer_at_once(self, adviser: Adviser, ask: Ask) -> Answer:
        """The answer to a small request, made together with others."""
        answer = Answer()
        advice = await self.together.advise(adviser, self.pace(adviser), adviser.check(ask))
        answer.add(adviser.digest, ask, advice, self.decisions is not None)
        return answer

    def in_pieces(self, adviser: Adviser, asked: Ask | bytes) -> Generator[None, None, tuple[Ask, Answer]]:
        """The answer to a large request, with pauses."""
        ask = self.read(asked) if isinstance(asked, bytes) else asked
        yield
        checked, pace, answer = adviser.check(ask), self.pace(adviser), Answer()
        start = 0
        while start < len(ask.rows):
            yield
            part = checked.part(start, start + pace.rows_in(PIECE, ask.reasons))
            (advice,) = pace.measured(adviser, [part])
            answer.add(adviser.digest, part.ask, advice, self.decisions is not None)
            start += len(part.ask.rows)
        return ask, answer

    async def record(self, scope: Scope, decisions: DecisionLog, adviser: Adviser, answer: Answer) -> bytes:
        """Write the decisions of a request; the answer when they are on disk."""
        number = scope["request_id"] = decisions.request_id()
        ids, lines = decisions.decided(number, answer.logged)
        await self.written(decisions, lines)
        self.metrics.add("ponn_decisions_total", len(ids))
        return answer.as_json(adviser.digest, number, ids)

    async def written(self, journal: Journal, lines: bytes) -> None:
        """Write to the decision log, or refuse the request."""
        was_well = journal.failure is None
        try:
            await journal.append(lines)
        except OSError as error:
            if was_well:  # said once, not for everyone who is refused
                log.error("decision log: %s", one_line(error))
            raise RefusedError(
                503, "The decision log cannot be written, so nothing is served. Try again later."
            ) from error

    async def outcome(self, _: Scope, body: bytes) -> bytes:
        """POST /outcome."""
        number, reward = read_outcome(from_json(body))
        if not self.decisions or not self.outcomes:
            raise RefusedError(
                404, "This server keeps no decision log; it would have to be started with --decisions FILE."
            )
        note = self.outside_note(reward)
        if note and self.options.outcomes == REFUSE:
            raise AskError("reward", f"{reward:g} is {note}", "a number within that range")
        if not await asyncio.to_thread(is_decision, self.decisions.path, number):
            raise RefusedError(404, f"There is no decision {number[:LONGEST_ID]!r} in the decision log.")
        told = line(kind="outcome", id=number, time=time.time(), reward=reward, outside=bool(note))
        await self.written(self.outcomes, told)
        self.metrics.add("ponn_outcomes_total")
        return to_json({"id": number, "reward": reward, "notes": [note] if note else []})

    def outside_note(self, reward: float) -> str:
        """What to say of an outcome outside the range of training, empty for others."""
        if self.adviser is None:
            return ""
        low, high = self.adviser.about["reward"]["range"]
        return "" if low <= reward <= high else f"outside the range of training, {low:g} to {high:g}"

    def kept(self, name: str, of: Any, make: Callable[[], bytes]) -> bytes:
        """An answer that was made before, or is made now because it is of something else."""
        before = self.made.get(name)
        if before is None or before[0] != of:
            before = self.made[name] = (of, make())
        return before[1]

    async def policy(self, _: Request) -> Response:
        """GET /policy."""
        adviser = self.current()
        more = {"report": self.options.report is not None}
        told = await asyncio.to_thread(self.kept, "policy", adviser, lambda: to_json(adviser.about | more))
        return Response(told, media_type="application/json")

    async def ready(self, _: Request) -> Response:
        """GET /readyz."""
        failures = [one.failure for one in (self.decisions, self.outcomes) if one and one.failure]
        ready = self.adviser is not None and not failures
        told = {"ready": ready, "policy": self.adviser.digest if self.adviser else None}
        told |= {"refused": self.refused or None, "decision_log": one_line(failures[0]) if failures else None}
        return JSONResponse(told, 200 if ready else 503)

    async def show_metrics(self, _: Request) -> Response:
        """GET /metrics."""
        digest = self.adviser.digest if self.adviser else ""
        gauges = {f'ponn_policy_loaded{{digest="{digest}"}}': float(bool(digest))}
        gauges |= {"ponn_policy_refused": float(bool(self.refused))}
        if self.decisions and self.outcomes:
            well = self.decisions.failure is None and self.outcomes.failure is None
            gauges |= {"ponn_decision_log_writable": float(well)}
        return PlainTextResponse(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def report(self, _: Request) -> Response:
        """GET /report."""
        if not self.options.report or not self.options.report.is_file():
            raise RefusedError(404, "This server was given no report; start it with --report FILE.")
        return FileResponse(self.options.report, media_type="text/html")

    async def score(self, request: Request) -> Response:
        """POST /score: a CSV file with rows in, the same rows with recommendations out."""
        wanted_type(request.scope, b"text/csv")
        adviser, uploaded = self.current(), self.uploaded()
        try:
            await save_upload(request, uploaded.path / ROWS, self.options, self.patience)
            await while_there(request.receive, self.scored(adviser.policy, uploaded.path))
            return LastingFile(uploaded, OUT, media_type="text/csv", filename="recommendations.csv")
        except BaseException:
            uploaded.close()
            raise

    async def scored(self, policy: Policy, folder: Path) -> None:
        """Score the file in a folder, in a process of its own."""
        limits = Allowed(SCORE_MEMORY, SCORE_SECONDS, SCORE_DISK)
        await self.room.run(score_upload, policy, str(folder), allowed=limits, what="Scoring the file")

    def uploaded(self) -> "Uploaded":
        """A folder for a file that comes in, if there is room for one more."""
        if self.uploads >= SCORE_WAITING:
            raise CrowdedError(f"{self.uploads} files are being scored or wait for that. Try again soon.", 5)
        return Uploaded(self)


class Uploaded:
    """A private folder for one upload and what comes of it, counted by the service that it takes room of."""

    def __init__(self, service: Service) -> None:
        try:
            self.folder = PrivateFolder()
        except OSError as error:
            raise no_room_on_disk(error) from error
        self.path, self.service, self.closed = self.folder.path, service, False
        service.uploads += 1

    def close(self) -> None:
        """Remove the folder soon, in a thread, because large files take their time; later calls do nothing."""
        if not self.closed:
            self.closed = True
            self.service.uploads -= 1
            asyncio.get_running_loop().run_in_executor(None, self.folder.close)


class LastingFile(FileResponse):
    """A file of an upload's folder, which is removed when the answer ends: sent, cut off, or asked for by nobody."""

    def __init__(self, uploaded: Uploaded, name: str, **more: Any) -> None:
        super().__init__(uploaded.path / name, **more)
        self.uploaded = uploaded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.uploaded.close()


def no_room_on_disk(error: OSError) -> RefusedError:
    """What to say where a file that came in cannot be kept."""
    log.error("upload: %s", one_line(error))
    return RefusedError(503, "The file cannot be kept while it is scored: this server's temporary disk is full.")


def served_adviser(path: Path, mode: Mode) -> Adviser:
    """The policy file, if what it says of itself can be sent."""
    found = load_adviser(path, mode)
    try:
        to_json(found.about)
    except TypeError as error:  # a number that no reader of JSON would take
        raise PonnError(f"{path} cannot be served: {one_line(error)}.") from error
    return found


def why_refused(path: Path, error: Exception) -> str:
    """Why a policy file is not used."""
    return str(error) if isinstance(error, PonnError) else f"{path} could not be loaded: {type(error).__name__}."


def signature(path: Path | None) -> tuple[int, ...] | None:
    """What changes when a file is replaced, or gets other rights."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino) if found else None


# The last good policy: a copy in the folder that the workers share, for one that starts beside a file that is refused.
LAST_GOOD = "last-good.ponn"


def served_and_kept(path: Path, options: Options) -> Adviser:
    """The policy file, of which a copy is kept."""
    before = signature(path)
    found = served_adviser(path, options.mode)
    if options.metrics is not None:
        keep_copy(path, before, options.metrics)
    return found


def keep_copy(path: Path, before: tuple[int, ...] | None, folder: Path) -> None:
    """Keep the file that was found to be good, unless it is another one by now; without room there is no copy."""
    try:
        with path.open("rb") as file, replacing(folder / LAST_GOOD, private=True) as copy:
            shutil.copyfileobj(file, copy)
            if signature(path) != before:
                raise OSError(f"{path} is being replaced")  # the copy of before stays
    except (OSError, PonnError) as error:
        log.warning("no copy of the policy is kept: %s", one_line(error))


def kept_adviser(options: Options) -> Adviser | None:
    """The last good policy, where a copy is kept."""
    copy = options.metrics and options.metrics / LAST_GOOD
    if not copy or not copy.is_file():
        return None
    try:
        found = served_adviser(copy, options.mode)
    except Exception as error:
        log.error("the copy of the last good policy is refused: %s", why_refused(copy, error))
        return None
    log.warning("policy %s is served, the last good one", found.digest)
    return found


def read_outcome(body: Any) -> tuple[str, float]:
    """Id and reward of an outcome from its JSON."""
    if not isinstance(body, dict) or set(body) != {"id", "reward"}:
        raise AskError("body", "it is something else", 'an object {"id": ..., "reward": ...} and nothing more')
    number, reward = body["id"], body["reward"]
    if not isinstance(number, str):
        raise AskError("id", f"it is {kind_in_words(number)}", "the id of a recommendation, a text")
    if not isinstance(reward, int | float):
        raise AskError("reward", f"it is {kind_in_words(reward)}", "a number, true or false")
    if not abs(reward) <= sys.float_info.max:  # not so for NaN
        raise AskError("reward", f"{shown(reward)} is not a finite number", "a number, true or false")
    return number, float(reward)


async def save_upload(request: Request, path: Path, options: Options, patience: Patience) -> None:
    """Write the body of a request to a file, unless it is too long or too slow."""
    body = Body(request.scope, request.receive, options.most_upload, patience)
    try:
        with path.open("wb") as file:
            while body.more:
                file.write(await body.chunk())
    except OSError as error:
        raise no_room_on_disk(error) from error
    if body.left == body.most:
        raise RefusedError(422, "The body is empty; expected a CSV file with a header and one row per case.")
