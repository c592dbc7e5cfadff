"""From the decision logs of a server to a log that can be learned from.

`journal.py` writes the files. Their lines:

    kind       what the line holds
    policy     digest, columns, features (name → kind) and actions of the policy that decides from here on
    decision   id, time, policy (digest), features, eligible, action, probability (with which it was drawn)
    outcome    id (of the decision), time, reward, outside (of the range of training)

Of several outcomes of a decision the one that arrived last counts: the order is that of the lines of the one file that
all outcomes go to. Version 0.1 wrote them into the files of single workers, with the clock's time as their only order;
they come before all others. A line that cannot be read is named, counted and passed over.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import PonnError, one_line
from ponn.log.profile import BOOLEAN, CATEGORY, DATE, NUMBER
from ponn.serving.journal import OUTCOMES, outcomes_file, worker_file, worker_files
from ponn.tables.files import writing

LONGEST_LINE = 1 << 26  # bytes; lines are far shorter, but a file of something else may have no end of line
MOST_NAMED = 20  # lines that cannot be read and are named; all are counted
BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Unreadable:
    """A line that is not what a server writes."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


@dataclass
class Damage:
    """Lines that cannot be read: the first ones by name, all by number."""

    named: list[Unreadable] = field(default_factory=list)
    count: int = 0

    def add(self, file: Path, number: int, reason: str) -> None:
        """Count a line."""
        self.count += 1
        if self.count <= MOST_NAMED:
            self.named.append(Unreadable(str(file), number, reason))


@dataclass(frozen=True)
class Converted:
    """What became of decision logs."""

    decisions: int
    rows: int  # decisions with an outcome, which were written
    without_outcome: int
    replaced: int  # outcomes that a later one of the same id replaced
    outside: int  # outcomes that count though they are outside the range of training
    unknown: int  # outcomes of decisions that are in none of the files
    repeated: int  # decisions that the files hold a second time
    torn: int  # files whose last line was cut off by a crash
    unreadable: int  # lines that were passed over
    unreadable_lines: tuple[Unreadable, ...]  # the first of them
    action: str
    reward: str
    propensity: str
    minimize: bool
    quoted: int = 0  # cells and names in CSV that got an apostrophe, because a spreadsheet would execute them

    @property
    def flags(self) -> str:
        """The options with which the log is learned from."""
        found = f"--action {quoted(self.action)} --reward {quoted(self.reward)} --propensity {quoted(self.propensity)}"
        return found + (" --minimize" if self.minimize else "")


def quoted(name: str) -> str:
    """A name as a shell wants it."""
    import shlex

    return shlex.quote(name)


class Arrival(NamedTuple):
    """When an outcome arrived: by its place among all, or, from version 0.1, before those by the clock."""

    counted: bool
    moment: float


class Told(NamedTuple):
    """One outcome that a server was told; a tuple, because there may be many."""

    arrival: Arrival
    id: str
    time: float
    reward: float
    outside: bool


@dataclass(frozen=True)
class Outcomes:
    """A first look at the files: the policies that decided, and how decisions turned out."""

    policies: dict[str, dict[str, Any]]  # digest → its line
    rewards: dict[str, float]  # id → the reward that counts
    history: list[Told]  # all outcomes, in the order in which they arrived
    outside: int
    torn: int


def convert_decisions(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    propensity: str = "propensity",
    keep: Sequence[str] = (),
    strict: bool = False,
    history: str | os.PathLike[str] | None = None,
    formulas: bool = False,
) -> Converted:
    """Make of decision logs a log that `learn` takes, with the probability of each served action as its propensity.

    paths: as given to the server, or the files of single workers. Decisions without an outcome are left out and
    counted; of several outcomes of a decision the last that arrived counts. Lines that cannot be read are passed over
    and counted. keep: "id", "time" as columns of their own. strict: refuse where there are such lines. history: a file
    for all outcomes, also those that were replaced. formulas: write texts into CSV as they are, also where a
    spreadsheet would execute them.
    """
    files = list(dict.fromkeys(file for path in paths for file in files_of(Path(path))))
    damage, count = Damage(), Counter[str]()
    found = first_look(files, damage)
    layout = layout_of(found.policies, propensity, keep)
    if strict:
        check_convertible(files, layout, found.rewards, damage)
    with writing(Path(out), layout.schema, private=True, formulas=formulas) as write:
        for batch in batches(files, found.rewards, count):
            table = layout.table(batch, found.rewards, damage)
            count["rows"] += len(table)
            write(table)
    if history is not None:
        write_history(Path(history), found)
    return Converted(
        decisions=count["decisions"],
        rows=count["rows"],
        without_outcome=count["decisions"] - count["with outcome"],
        replaced=len(found.history) - len(found.rewards),
        outside=found.outside,
        unknown=len(found.rewards) - count["with outcome"],
        repeated=count["repeated"],
        torn=found.torn,
        unreadable=damage.count,
        unreadable_lines=tuple(damage.named),
        action=layout.action,
        reward=layout.reward,
        propensity=propensity,
        minimize=layout.minimize,
        quoted=write.quoted,
    )


def check_convertible(files: Sequence[Path], layout: "Layout", rewards: Mapping[str, float], damage: Damage) -> None:
    """Raise PonnError where a line cannot be read."""
    for batch in batches(files, rewards, Counter()):
        layout.table(batch, rewards, damage)
    if damage.count:
        told = "; ".join(map(str, damage.named[:3]))
        raise PonnError(
            f"{damage.count:,} lines of the decision log cannot be read: {told}. Were the files changed? Without "
            "--strict such lines are passed over and counted."
        )


def files_of(path: Path) -> list[Path]:
    """The files that a name given to the server stands for, or the file itself, with the outcomes beside it."""
    if path.is_file():
        beside = path.with_name(f"{Path(path.stem).stem}.{OUTCOMES}{path.suffix}")
        return [path, beside] if path in worker_files(original(path)) and beside.is_file() else [path]
    found = worker_files(path)
    if not found:
        raise PonnError(
            f"There is no decision log {path}, nor a file {worker_file(path, '<worker>').name} beside it. Give the "
            "name that `ponn serve --decisions` was given, or the files themselves."
        )
    return [*found, outcomes_file(path)] if outcomes_file(path).is_file() else found


def original(path: Path) -> Path:
    """The name given to the server, from that of a worker's file."""
    return path.with_name(f"{Path(path.stem).stem}{path.suffix}")


# Reading -------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One line of a file, and where it stands."""

    file: Path
    number: int
    values: dict[str, Any]


def read_lines(file: Path, damage: Damage) -> Iterator[Line]:
    """The lines of a file that can be read; an incomplete last one was never acknowledged and is passed over."""
    try:
        with file.open("rb") as lines:
            for number, text in enumerate(whole_lines(lines), start=1):
                try:
                    if text.strip():
                        yield Line(file, number, parsed(text))
                except ValueError as error:
                    damage.add(file, number, one_line(error))
    except OSError as error:
        raise PonnError(f"{file} could not be read: {one_line(error)}.") from error


def whole_lines(lines: Any) -> Iterator[bytes]:
    """The complete lines of a file, of one that is too long only the beginning."""
    while text := lines.readline(LONGEST_LINE):
        end = text
        while not end.endswith(b"\n"):
            end = lines.readline(LONGEST_LINE)
            if not end:
                return
        yield text


Fits = Callable[[Any], bool]


def is_finite(value: Any) -> bool:
    """A number that a column can hold; true and false are none."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(float(value))
    except OverflowError:
        return False


def is_text(value: Any) -> bool:
    """A text that a file can hold: half a surrogate pair can be written in JSON, but is none."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def are_kinds(value: Any) -> bool:
    """The kind of each feature."""
    known = (NUMBER, BOOLEAN, DATE, CATEGORY)
    return isinstance(value, dict) and all(is_text(name) and kind in known for name, kind in value.items())


def are_columns(value: Any) -> bool:
    """The names of action and reward."""
    return isinstance(value, dict) and all(is_text(value.get(name)) for name in ("action", "reward"))


def are_labels(value: Any) -> bool:
    """Labels of actions, all of one type."""
    return isinstance(value, list) and len({*map(type, value)} & {str, int, float, bool}) == 1 == len(
        {*map(type, value)}
    )


REQUIRED: dict[str, dict[str, Fits]] = {
    "policy": {
        "policy": is_text,
        "columns": are_columns,
        "features": are_kinds,
        "actions": are_labels,
        "minimize": lambda value: isinstance(value, bool),
    },
    "decision": {
        "id": is_text,
        "time": is_finite,
        "policy": is_text,
        "features": lambda value: isinstance(value, dict),
        "action": lambda value: isinstance(value, str | int | float),
        "probability": lambda value: is_finite(value) and 0 < value <= 1,
    },
    "outcome": {"id": is_text, "time": is_finite, "reward": is_finite},
}


def parsed(text: bytes) -> dict[str, Any]:
    """One line, if it is one of a decision log; ValueError says why it is none, without a value of it."""
    if len(text) >= LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE:,} bytes")
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not text in UTF-8") from error
    wanted = REQUIRED.get(str(found.get("kind"))) if isinstance(found, dict) else None
    if wanted is None:
        raise ValueError("it is of no known kind")
    for name, fits in wanted.items():
        if name not in found:
            raise ValueError(f"it lacks {name!r}")
        if not fits(found[name]):
            raise ValueError(f"its {name!r} cannot be one")
    return found


def first_look(files: Sequence[Path], damage: Damage) -> Outcomes:
    """Policies and outcomes of all files."""
    policies: dict[str, dict[str, Any]] = {}
    arrived: list[Told] = []
    for file in files:
        counted = Path(file.stem).suffix == f".{OUTCOMES}"
        for _, _, one in read_lines(file, damage):
            if one["kind"] == "policy":
                policies[one["policy"]] = one
            elif one["kind"] == "outcome":
                when = Arrival(counted, len(arrived) if counted else float(one["time"]))
                arrived.append(Told(when, one["id"], one["time"], float(one["reward"]), one.get("outside") is True))
    arrived.sort(key=lambda one: one.arrival)
    last = {one.id: one for one in arrived}
    rewards = {id: one.reward for id, one in last.items()}
    return Outcomes(policies, rewards, arrived, sum(one.outside for one in last.values()), sum(map(is_torn, files)))


def is_torn(file: Path) -> bool:
    """Does the file end in the middle of a line?"""
    with file.open("rb") as end:
        size = end.seek(0, os.SEEK_END)
        end.seek(max(0, size - 1))
        return end.read(1) not in (b"\n", b"")


def batches(files: Sequence[Path], rewards: Mapping[str, Any], count: "Counter[str]") -> Iterator[list[Line]]:
    """Decisions that have an outcome, some at a time; counts all."""
    batch: list[Line] = []
    seen: set[str] = set()
    for file in files:
        for one in read_lines(file, Damage()):  # the first look has named what cannot be read
            if one.values["kind"] != "decision":
                continue
            id = one.values["id"]
            count["repeated" if id in seen else "decisions"] += 1
            if id in rewards and id not in seen:
                seen.add(id)
                count["with outcome"] += 1
                batch.append(one)
            if len(batch) == BATCH_ROWS:
                yield batch
                batch = []
    yield batch


HISTORY = pa.schema(
    {
        **{"id": pa.string(), "arrival": pa.int64(), "time": pa.timestamp("us")},
        **{"reward": pa.float64(), "outside": pa.bool_(), "counts": pa.bool_()},
    }
)


def write_history(path: Path, found: Outcomes) -> None:
    """All outcomes in the order in which they arrived, and whether they count."""
    last = {one.id: place for place, one in enumerate(found.history)}
    columns: dict[str, list[Any]] = {
        "id": [one.id for one in found.history],
        "arrival": list(range(1, len(found.history) + 1)),
        "time": [microseconds(one.time) for one in found.history],
        "reward": [one.reward for one in found.history],
        "outside": [one.outside for one in found.history],
        "counts": [last[one.id] == place for place, one in enumerate(found.history)],
    }
    with writing(path, HISTORY, private=True) as write:
        write(pa.table(columns, HISTORY))


def microseconds(time: float) -> int:
    """Seconds since 1970 as a column of times has them; a clock that was far off is brought to its end."""
    return round(max(-FAR_TIME, min(float(time), FAR_TIME)) * 1e6)


FAR_TIME = 9.2e12  # seconds, about what 64 bits hold of microseconds


# The log that is made ------------------------------------------------------------------------------------


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

    def table(self, batch: Sequence[Line], rewards: Mapping[str, float], damage: Damage) -> pa.Table:
        """Decisions with their outcomes; where a cell is none of its column, its line is passed over and counted."""
        try:
            return self.made([one.values for one in batch], rewards)
        except UnfitError:
            fitting = [one.values for one in batch if self.fits(one, rewards, damage)]
        return self.made(fitting, rewards)

    def fits(self, one: Line, rewards: Mapping[str, float], damage: Damage) -> bool:
        """Can the cells of this line be what their columns hold?"""
        try:
            self.made([one.values], rewards)
        except UnfitError as error:
            damage.add(one.file, one.number, str(error))
            return False
        return True

    def made(self, batch: Sequence[Mapping[str, Any]], rewards: Mapping[str, float]) -> pa.Table:
        """Decisions with their outcomes, whose cells all fit."""
        columns = [[one["features"].get(name) for one in batch] for name in self.features]
        columns += [[one["action"] for one in batch], [rewards[one["id"]] for one in batch]]
        columns += [[one["probability"] for one in batch]]
        kept = {"id": [one["id"] for one in batch], "time": [microseconds(one["time"]) for one in batch]}
        columns += [kept[name] for name in self.keep]
        schema = self.schema
        return pa.table(list(map(column_of, columns, schema)), schema)


def label_type(policies: Mapping[str, Mapping[str, Any]]) -> pa.DataType:
    """The type of the column of actions."""
    try:
        return pa.array([label for one in policies.values() for label in one["actions"]]).type
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise PonnError("The labels of two policies are of different types; convert their files apart.") from error


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
    labels = label_type(policies)
    found = Layout(features, action, labels, reward, propensity, tuple(keep), last["minimize"])
    twice = [name for name, times in Counter(found.schema.names).items() if times > 1]
    if twice:
        raise PonnError(f"There would be two columns {twice[0]!r}: give another --propensity-name, or do not keep it.")
    return found


class UnfitError(ValueError):
    """A cell that cannot be what its column holds; says which column, and nothing of the cell."""


def column_of(values: list[Any], field: pa.Field) -> pa.Array:
    """Cells as JSON had them, in the type of their column."""
    try:
        if pa.types.is_timestamp(field.type) and any(isinstance(value, str) for value in values):
            return pc.cast(pa.array(values, pa.string()), field.type)
        return pa.array(list(map(CELLS.get(field.type, lambda value: value), values)), field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UnfitError(f"a cell of {field.name!r} is no {field.type}") from error


def as_number(value: Any) -> float | None:
    """A number; whole ones may have more digits than a column of numbers holds."""
    if isinstance(value, str):
        raise TypeError("a text is no number")
    return None if value is None else float(value)


def as_truth(value: Any) -> bool | None:
    """True or false; 0 and 1 may stand for them."""
    if value not in (None, 0, 1):
        raise TypeError("neither true nor false")
    return None if value is None else bool(value)


CELLS: dict[pa.DataType, Callable[[Any], Any]] = {pa.float64(): as_number, pa.bool_(): as_truth}
