"""The decision log of a server: what was served to whom with which probability, and how it turned out.

Each worker appends JSON lines to a file of its own, one per decision or outcome. A line is on disk before anybody is
told of it; requests that come together share one write and one fsync. A server that starts opens new files, so that a
line torn by a crash can only be the last of its file.

    kind       what the line holds
    policy     digest, columns, features (name → kind) and actions of the policy that decides from here on
    decision   id, time, policy (digest), features, eligible, action, probability (with which it was drawn)
    outcome    id (of the decision), time, reward

An id says where its line is (file, byte), so that any worker can look it up, also after a restart.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import PonnError, listing, one_line
from ponn.log.profile import BOOLEAN, DATE, NUMBER
from ponn.policy.policy import Policy
from ponn.tables.files import writing

ID = re.compile(r"([0-9a-f]{12})-([0-9a-f]{1,12})-([0-9a-f]{8})-([0-9]{1,7})")
TAG = "[0-9a-f]" * 12
LONGEST_LINE = 1 << 26  # bytes; lines are far shorter, but a file of something else may have no end of line
BATCH_ROWS = 65_536


def worker_file(path: Path, tag: str) -> Path:
    """The file of one worker: decisions.jsonl → decisions.<tag>.jsonl."""
    return path.with_name(f"{path.stem}.{tag}{path.suffix}")


def worker_files(path: Path) -> list[Path]:
    """The files of all workers, past and present."""
    return sorted(path.parent.glob(f"{glob_escape(path.stem)}.{TAG}{glob_escape(path.suffix)}"))


def glob_escape(name: str) -> str:
    """A name in which nothing stands for something else."""
    return re.sub(r"([*?[])", r"[\1]", name)


def line(**values: Any) -> bytes:
    """One line of a decision log."""
    return json.dumps(values, allow_nan=False).encode() + b"\n"


def policy_line(policy: Policy, digest: str) -> bytes:
    """What must be known of a policy to make a log of its decisions."""
    columns = policy.provenance["columns"]
    return line(
        kind="policy",
        time=time.time(),
        policy=digest,
        columns={"action": columns["action"], "reward": columns["reward"]},
        minimize=policy.provenance["reward"]["minimize"],
        features={one.name: one.kind for one in policy.encoding.features},
        actions=list(policy.actions),
    )


# Writing -------------------------------------------------------------------------------------------------


class DecisionLog:
    """The decision log of one worker; only its event loop may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first = b""  # the line that every file begins with: which policy decides
        self.tag, self.end, self.file = "", 0, -1
        self.waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self.committing: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, "decisions")

    def open(self, first: bytes) -> None:
        """Begin a new file; it and its name are on disk when this returns."""
        self.close_file()
        self.tag, self.first, self.end = os.urandom(6).hex(), first, len(first)
        path = worker_file(self.path, self.tag)
        try:
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            write_durably(self.file, first)
            sync_folder(path.parent)
        except OSError as error:
            self.close_file()  # what is in it is not to be counted on
            raise PonnError(f"The decision log {path} could not be begun: {one_line(error)}.") from error

    def close_file(self) -> None:
        """Let go of the present file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    async def close(self) -> None:
        """Wait for what is still being written."""
        if self.committing:
            await self.committing
        self.thread.shutdown()
        self.close_file()

    def next_id(self) -> str:
        """The id of a request whose first line will be the next one; nothing may be awaited before `append`."""
        return f"{self.tag}-{self.end:x}-{os.urandom(4).hex()}"

    async def append(self, lines: bytes) -> None:
        """Write lines; returns when they are on disk, or raises OSError when they may not be."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((lines, future))
        self.end += len(lines)
        if self.committing is None or self.committing.done():
            self.committing = asyncio.create_task(self.commit())
        await future

    async def commit(self) -> None:
        """Write what is waiting, all at once, until nothing is; after a failure go on in a new file."""
        loop = asyncio.get_running_loop()
        while self.waiting:
            batch, self.waiting = self.waiting, []
            try:
                await loop.run_in_executor(self.thread, write_durably, self.file, b"".join(data for data, _ in batch))
            except OSError as error:
                batch += self.waiting  # their ids point into the file that failed
                self.waiting = []
                settle(batch, error)
                with contextlib.suppress(PonnError):  # the next write tries again
                    self.open(self.first)
            else:
                settle(batch, None)


def settle(batch: Sequence[tuple[bytes, "asyncio.Future[None]"]], error: OSError | None) -> None:
    """Tell those who wait."""
    for _, future in batch:
        if not future.done():  # a client may have left
            future.set_result(None) if error is None else future.set_exception(error)


def write_durably(file: int, data: bytes) -> None:
    """Write all of it, and have it on disk."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fdatasync(file) if hasattr(os, "fdatasync") else os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Have the names of new files on disk."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_decision(path: Path, id: str) -> dict[str, Any] | None:
    """The decision of this id, from whichever worker's file, or None."""
    found = ID.fullmatch(id)
    if not found:
        return None
    tag, offset, _, row = found.groups()
    try:
        with worker_file(path, tag).open("rb") as file:
            file.seek(int(offset, 16))
            for _ in range(int(row)):
                if not file.readline(LONGEST_LINE).endswith(b"\n"):
                    return None
            decision = json.loads(file.readline(LONGEST_LINE))
    except (OSError, ValueError):
        return None
    fits = isinstance(decision, dict) and decision.get("kind") == "decision" and decision.get("id") == id
    return decision if fits else None


# From decision logs to a log -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Converted:
    """What became of decision logs."""

    decisions: int
    rows: int  # decisions with an outcome, which were written
    without_outcome: int
    replaced: int  # outcomes that a later one of the same id replaced
    unknown: int  # outcomes of decisions that are in none of the files
    torn: int  # files whose last line was cut off by a crash
    action: str
    reward: str
    propensity: str
    minimize: bool

    @property
    def flags(self) -> str:
        """The options with which the log is learned from."""
        found = f"--action {quoted(self.action)} --reward {quoted(self.reward)} --propensity {quoted(self.propensity)}"
        return found + (" --minimize" if self.minimize else "")


def quoted(name: str) -> str:
    """A name as a shell wants it."""
    import shlex

    return shlex.quote(name)


@dataclass(frozen=True)
class Outcomes:
    """A first look at the files: the policies that decided, and how decisions turned out."""

    policies: dict[str, dict[str, Any]]  # digest → its line
    rewards: dict[str, tuple[float, float]]  # id → (time, reward)
    replaced: int
    torn: int


def convert_decisions(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    propensity: str = "propensity",
    keep: Sequence[str] = (),
) -> Converted:
    """Make of decision logs a log that `learn` takes, with the probability of each served action as its propensity.

    paths: as given to the server, or the files of single workers. Decisions without an outcome are left out and
    counted; of several outcomes of a decision the last counts. keep: "id", "time" as columns of their own.
    """
    files = [file for path in paths for file in files_of(Path(path))]
    found = first_look(files)
    layout = layout_of(found.policies, propensity, keep)
    count: Counter[str] = Counter()
    with writing(Path(out), layout.schema) as write:
        for batch in batches(files, found.rewards, count):
            write(layout.table(batch, found.rewards))
    return Converted(
        decisions=count["decisions"],
        rows=count["rows"],
        without_outcome=count["decisions"] - count["rows"],
        replaced=found.replaced,
        unknown=len(found.rewards) - count["rows"],
        torn=found.torn,
        action=layout.action,
        reward=layout.reward,
        propensity=propensity,
        minimize=layout.minimize,
    )


def files_of(path: Path) -> list[Path]:
    """The files that a name given to the server stands for, or the file itself."""
    if path.is_file():
        return [path]
    found = worker_files(path)
    if not found:
        raise PonnError(
            f"There is no decision log {path}, nor a file {worker_file(path, '<worker>').name} beside it. Give the "
            "name that `ponn serve --decisions` was given, or the files themselves."
        )
    return found


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file; an incomplete last one was never acknowledged and is passed over."""
    try:
        with file.open("rb") as lines:
            for number, text in enumerate(iter(lambda: lines.readline(LONGEST_LINE), b""), start=1):
                if text.endswith(b"\n"):
                    yield parsed(file, number, text)
                elif len(text) == LONGEST_LINE:
                    raise wrong_line(file, number, "it has no end")
    except OSError as error:
        raise PonnError(f"{file} could not be read: {one_line(error)}.") from error


REQUIRED = {
    "policy": {"policy": str, "columns": dict, "features": dict, "actions": list, "minimize": bool},
    "decision": {"id": str, "time": float, "policy": str, "features": dict, "probability": float},
    "outcome": {"id": str, "time": float, "reward": float},
}


def parsed(file: Path, number: int, text: bytes) -> dict[str, Any]:
    """One line, if it is one of a decision log."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong_line(file, number, one_line(error)) from error
    wanted = REQUIRED.get(str(found.get("kind"))) if isinstance(found, dict) else None
    if wanted is None:
        raise wrong_line(file, number, "it is of no known kind")
    wrong = [name for name, kind in wanted.items() if not isinstance(found.get(name), kind)]
    if wrong or (found["kind"] == "decision" and "action" not in found):
        raise wrong_line(file, number, f"it lacks {listing(wrong or ['action'])}")
    return found


def wrong_line(file: Path, number: int, reason: str) -> PonnError:
    """What to say of a line that no server wrote."""
    return PonnError(f"{file}, line {number}: not a line of a decision log ({reason}). Was the file changed?")


def first_look(files: Sequence[Path]) -> Outcomes:
    """Policies and outcomes of all files."""
    policies: dict[str, dict[str, Any]] = {}
    rewards: dict[str, tuple[float, float]] = {}
    replaced = 0
    for file in files:
        for one in read_lines(file):
            if one["kind"] == "policy":
                policies[one["policy"]] = one
            elif one["kind"] == "outcome":
                replaced += one["id"] in rewards
                rewards[one["id"]] = max(rewards.get(one["id"], (-math.inf, 0.0)), (one["time"], one["reward"]))
    return Outcomes(policies, rewards, replaced, sum(map(is_torn, files)))


def is_torn(file: Path) -> bool:
    """Does the file end in the middle of a line?"""
    with file.open("rb") as end:
        size = end.seek(0, os.SEEK_END)
        end.seek(max(0, size - 1))
        return end.read(1) not in (b"\n", b"")


def batches(files: Sequence[Path], rewards: Mapping[str, Any], count: "Counter[str]") -> Iterator[list[dict[str, Any]]]:
    """Decisions that have an outcome, some at a time; counts all."""
    batch: list[dict[str, Any]] = []
    for file in files:
        for one in read_lines(file):
            if one["kind"] != "decision":
                continue
            count["decisions"] += 1
            if one["id"] in rewards:
                count["rows"] += 1
                batch.append(one)
            if len(batch) == BATCH_ROWS:
                yield batch
                batch = []
    yield batch


ARROW = {NUMBER: pa.float64(), BOOLEAN: pa.bool_(), DATE: pa.timestamp("us")}
KEPT = {"id": pa.string(), "time": pa.timestamp("us")}


@dataclass(frozen=True)
class Layout:
    """The columns of the log that is made: features, action, reward, propensity, and what is kept."""

    features: Mapping[str, str]  # name → kind
    action: str
    labels: pa.DataType
    reward: str
    propensity: str
    keep: tuple[str, ...]
    minimize: bool

    @property
    def schema(self) -> pa.Schema:
        """Names and types, in order."""
        made = [(name, ARROW.get(kind, pa.string())) for name, kind in self.features.items()]
        made += [(self.action, self.labels), (self.reward, pa.float64()), (self.propensity, pa.float64())]
        return pa.schema(made + [(name, KEPT[name]) for name in self.keep])

    def table(self, batch: Sequence[Mapping[str, Any]], rewards: Mapping[str, tuple[float, float]]) -> pa.Table:
        """Decisions with their outcomes."""
        columns = [[one["features"].get(name) for one in batch] for name in self.features]
        columns += [[one["action"] for one in batch], [rewards[one["id"]][1] for one in batch]]
        columns += [[one["probability"] for one in batch]]
        kept = {"id": [one["id"] for one in batch], "time": [int(one["time"] * 1e6) for one in batch]}
        columns += [kept[name] for name in self.keep]
        schema = self.schema
        return pa.table(list(map(column_of, columns, schema)), schema)


def layout_of(policies: Mapping[str, Mapping[str, Any]], propensity: str, keep: Sequence[str]) -> Layout:
    """The columns of a log of these policies, which must agree about them."""
    if not policies:
        raise PonnError("The decision logs name no policy; are these files that `ponn serve --decisions` wrote?")
    features: dict[str, str] = {}
    for one in policies.values():
        changed = [name for name, kind in one["features"].items() if features.setdefault(name, kind) != kind]
        if changed:
            raise PonnError(f"Feature {changed[0]!r} is of different kinds in two policies; convert their files apart.")
    last = list(policies.values())[-1]
    if any((one["columns"], one["minimize"]) != (last["columns"], last["minimize"]) for one in policies.values()):
        raise PonnError("The policies that decided have different action or reward columns; convert their files apart.")
    action, reward = last["columns"]["action"], last["columns"]["reward"]
    labels = pa.array([label for one in policies.values() for label in one["actions"]]).type
    found = Layout(features, action, labels, reward, propensity, tuple(keep), last["minimize"])
    twice = [name for name, times in Counter(found.schema.names).items() if times > 1]
    if twice:
        raise PonnError(f"There would be two columns {twice[0]!r}: give another --propensity-name, or do not keep it.")
    return found


def column_of(values: list[Any], field: pa.Field) -> pa.Array:
    """Cells as JSON had them, in the type of their column."""
    try:
        if pa.types.is_timestamp(field.type) and any(isinstance(value, str) for value in values):
            return pc.cast(pa.array(values, pa.string()), field.type)
        if pa.types.is_boolean(field.type):
            values = [None if value is None else bool(value) for value in values]  # 0 and 1 may stand for them
        return pa.array(values, field.type)
    except pa.ArrowException as error:
        raise PonnError(f"Column {field.name!r} of the decision log: {one_line(error)}.") from error
