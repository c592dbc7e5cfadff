"""From a table in memory to a log: every part validated, everything that was changed or found odd counted."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import SHOWN, LogError, Note, PonnError, listing
from ponn.log.eligibility import (
    Eligibility,
    check_logged,
    check_some_eligible,
    described,
    eligible_actions,
    logged_eligible,
    silence_told,
    silent_cells,
)
from ponn.log.log import Columns, Log
from ponn.log.profile import Profile, profile
from ponn.log.roles import (
    Rows,
    check_group,
    check_time,
    distant_told,
    read_actions,
    read_propensities,
    read_rewards,
    read_weights,
    widened_told,
)
from ponn.tables.source import Source
from ponn.tables.table import read_table


def read_log(
    source: Any,
    *,
    action: str,
    reward: str,
    propensity: str | None = None,
    features: Sequence[str] | None = None,
    ignore: Iterable[str] = (),
    group: str | None = None,
    time: str | None = None,
    weight: str | None = None,
    minimize: bool = False,
    reward_range: tuple[float, float] | None = None,
    drop_missing: bool = False,
    eligible: str | Eligibility | None = None,
    rules: Sequence[str] = (),
    drop_ineligible: bool = False,
    keep: Iterable[str] = (),
) -> Log:
    """Read a table of past decisions and validate it.

    source: path (.csv .tsv .parquet .feather .arrow .jsonl, text also gzipped, or a directory of Parquet files)
    or any Arrow-capable frame (pandas, polars, pyarrow, duckdb).
    propensity: a column with the probability of the logged action; may be empty in some rows.
    features: default every column without another role; named ones are kept even if they look like identifiers.
    ignore: columns that are not features (identifiers, outcomes known only later).
    group: rows of one group stay together in every split. time: split by time instead of at random.
    weight: row weights. minimize: a small outcome is good. reward_range: default the observed range.
    drop_missing: leave out rows without action or reward (counted in the notes) instead of refusing the log.
    eligible: a column that names the actions available in each row, as lists or as text "AC|CAF"; empty: all. Or the
    `eligibility` of a policy. rules: where an action is not available, e.g. "CAF if age >= 70" (see eligibility.py).
    drop_ineligible: leave out rows whose logged action was not eligible (counted) instead of refusing the log.
    keep: columns that stay in `table` even where they are no features, e.g. to make subgroups by.
    """
    draft = draft_log(
        source,
        action=action,
        reward=reward,
        propensity=propensity,
        features=features,
        ignore=ignore,
        group=group,
        time=time,
        weight=weight,
        minimize=minimize,
        reward_range=reward_range,
        drop_missing=drop_missing,
        eligible=eligible,
        rules=rules,
        drop_ineligible=drop_ineligible,
        keep=keep,
    )
    if draft.log is None:
        raise draft.problems[0]
    return draft.log


@dataclass(frozen=True)
class Draft:
    """What became of a table: a log, or the reasons why it cannot be one and what could be read all the same."""

    rows: int
    profiles: tuple[Profile, ...]
    actions: tuple[Any, ...]
    A: np.ndarray | None
    outcome: np.ndarray | None  # rewards in the user's unit
    notes: tuple[str, ...]
    problems: tuple[LogError, ...]
    log: Log | None


def draft_log(
    source: Any,
    *,
    action: str,
    reward: str,
    propensity: str | None,
    features: Sequence[str] | None,
    ignore: Iterable[str],
    group: str | None,
    time: str | None,
    weight: str | None,
    minimize: bool,
    reward_range: tuple[float, float] | None,
    drop_missing: bool,
    eligible: str | Eligibility | None,
    rules: Sequence[str],
    drop_ineligible: bool,
    keep: Iterable[str],
) -> Draft:
    """Validate every part of a table; wrong names are raised at once, wrong contents are collected."""
    named = None if features is None else as_names(features, "features")
    ignore, keep = as_names(ignore, "ignore"), as_names(keep, "keep")
    if named == ():
        raise PonnError("features is an empty list: name at least one column, or leave it out to use all others.")
    available = described(eligible, rules, drop_ineligible)
    by_column = None if available is None else available.column
    columns = Columns(action, reward, propensity, group, time, weight, named or (), by_column)
    found = read_table(source)
    check_columns(found, columns, ignore)
    check_rule_columns(found, columns, available)
    for name in keep:
        find_column(found, "a column to keep", name)
    notes = list(found.notes)
    rows = without_missing(found.table, columns, notes) if drop_missing else Rows(found.table)
    if available is not None and available.drop:
        with suppress(LogError):  # what is wrong is told below, by the same validations
            rows, available = without_ineligible(rows, action, available, notes)
    table = rows.table

    collect = Collector()
    actions, A = collect(lambda: read_actions(rows, action, notes)) or ((), None)
    outcome, R, span = collect(lambda: read_rewards(rows, reward, reward_range, minimize)) or (None, None, (0, 1))
    notes += widened_told(reward, reward_range, span)
    notes += () if outcome is None else distant_told(rows, reward, outcome)
    p0 = collect(lambda: read_propensities(rows, propensity, notes))
    can = collect(lambda: read_eligible(rows, available, actions, A, notes))
    weights = collect(lambda: read_weights(rows, weight))
    collect(lambda: check_group(rows, group))
    collect(lambda: check_time(rows, time))
    taken = {*columns.roles().values(), *ignore}
    offered = tuple(name for name in table.column_names if name not in taken) if named is None else named
    profiles = tuple(profile(name, table.column(name)) for name in offered)
    set_aside = why_set_aside(profiles) if named is None else {}
    collect(lambda: check_features(profiles, set_aside))
    notes += feature_notes(profiles, set_aside)

    log = None
    if not collect.problems and A is not None and R is not None:
        columns = replace(columns, features=tuple(name for name in offered if name not in set_aside))
        looked_at = () if available is None else available.rule_columns
        table = table.select(list(dict.fromkeys([*columns.features, *columns.roles().values(), *looked_at, *keep])))
        told = (tuple(notes), can, available, drop_missing)
        log = Log(table, columns, actions, A, R, p0, weights, span, minimize, set_aside, *told)
    return Draft(table.num_rows, profiles, actions, A, outcome, tuple(notes), tuple(collect.problems), log)


class Collector:
    """Runs validations and keeps the problems they raise, so that all of them can be told at once."""

    def __init__(self) -> None:
        self.problems: list[LogError] = []

    def __call__(self, validate: Callable[[], Any]) -> Any:
        """What the validation returns, or None when it found a problem."""
        try:
            return validate()
        except LogError as problem:
            self.problems.append(problem)
            return None


def as_names(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Column names as a tuple without repetitions; a lone string is a likely slip."""
    if isinstance(names, str):
        raise PonnError(f"{what} is the text {names!r}; expected a list of column names, e.g. [{names!r}].")
    try:
        return tuple(dict.fromkeys(names))
    except TypeError as error:
        raise PonnError(f"{what} is {names!r}; expected a list of column names.") from error


def check_columns(source: Source, columns: Columns, ignore: tuple[str, ...]) -> None:
    """Every named column exists, and none plays two parts."""
    roles = [("action", columns.action), ("reward", columns.reward), *columns.roles().items()]
    roles += [("feature", name) for name in columns.features] + [("ignored column", name) for name in ignore]
    parts: dict[str, str] = {}
    for role, name in roles:
        find_column(source, role, name)
        if parts.get(name, role) != role:
            raise PonnError(f"Column {name!r} is named as {parts[name]} and as {role}; it can be only one of them.")
        parts[name] = role


def find_column(source: Source, role: str, name: str) -> None:
    """Raise when a column is not there, with the names that come closest."""
    if not isinstance(name, str):
        raise PonnError(f"{name!r} is given as {role}; expected the name of a column, as text.")
    names = source.table.column_names
    if name in names:
        return
    lower = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)
    hint = f"Did you mean {listing(lower[one] for one in near)}?" if near else f"It has {listing(names, 20)}."
    raise PonnError(f"{source.name} has no column {name!r} (given as {role}). {hint}")


def check_rule_columns(source: Source, columns: Columns, available: Eligibility | None) -> None:
    """Rules look at columns that exist and were known before the decision."""
    for name in () if available is None else available.rule_columns:
        find_column(source, "column of a rule", name)
        role = {column: role for role, column in columns.roles().items() if role not in ("group", "time")}.get(name)
        if role:
            raise PonnError(
                f"A rule looks at {name!r}, the {role} column; expected a column known before the decision."
            )


def read_eligible(
    rows: Rows, available: Eligibility | None, actions: tuple[Any, ...], A: np.ndarray | None, notes: list[str]
) -> np.ndarray | None:
    """Which actions may be taken in each row; the logged one must be among them."""
    if available is None or A is None:
        return None
    eligible = eligible_actions(available, rows, actions)
    notes += silence_told(available, silent_cells(available, rows.table), len(A), actions)
    check_some_eligible(eligible, rows)
    check_logged(eligible, A, actions, rows)
    return eligible


def without_ineligible(rows: Rows, action: str, available: Eligibility, notes: list[str]) -> tuple[Rows, Eligibility]:
    """Leave out rows whose logged action was not eligible, and say how many; their labels stay known."""
    actions, A = read_actions(rows, action, [])
    kept = logged_eligible(available, rows, actions, A)
    notes += ineligible_told(int((~kept).sum()), len(kept))
    numbers = np.arange(1, len(kept) + 1) if rows.number is None else rows.number
    labels = tuple(dict.fromkeys((*available.labels, *actions)))
    return Rows(rows.table.filter(pa.array(kept)), numbers[kept]), replace(available, labels=labels)


def ineligible_told(dropped: int, n: int) -> list[str]:
    """A note on rows that were left out because their action was not eligible."""
    if dropped == n:
        raise PonnError(f"In all {dropped} rows the logged action is not eligible: nothing is left.")
    told = f"{dropped} of {n} rows whose logged action was not eligible were left out, as asked."
    return [told] if dropped else []


def without_missing(table: pa.Table, columns: Columns, notes: list[str]) -> Rows:
    """Leave out rows without action or reward, and say how many."""
    names = (columns.action, columns.reward)
    missing = pc.or_(*(pc.is_null(table.column(name), nan_is_null=True) for name in names))
    dropped = pc.sum(missing).as_py()
    if not dropped:
        return Rows(table)
    told = " or ".join(repr(name) for name in names)
    if dropped == table.num_rows:
        raise PonnError(f"All {dropped} rows lack {told}: nothing is left. Are these the right columns?")
    notes.append(f"{dropped} of {table.num_rows} rows without {told} were left out, as asked.")
    kept = pc.invert(missing)
    return Rows(table.filter(kept), np.flatnonzero(kept.to_numpy()) + 1)


def check_features(profiles: tuple[Profile, ...], set_aside: dict[str, str]) -> None:
    """At least one feature is left, and all are numbers, booleans, text or dates."""
    for one in profiles:
        if not one.kind and one.name not in set_aside:
            raise LogError(
                f"Column {one.name!r} is of type {one.type}, which cannot be a feature. Expected numbers, booleans, "
                f"text or dates: convert it, or leave it out with ignore (--ignore {one.name!r})."
            )
    if len(set_aside) == len(profiles):
        told = "; ".join(f"{name!r}: {why}" for name, why in list(set_aside.items())[:SHOWN])
        told = f"Set aside: {told}." if told else "Every column has another role or is ignored."
        raise LogError(f"No column is left as a feature. {told}")


def why_set_aside(profiles: tuple[Profile, ...]) -> dict[str, str]:
    """Columns that cannot tell cases apart, or tell only which row it is, with the reason."""
    reasons = {}
    for one in profiles:
        if one.constant:
            empty = "it has no finite value" if one.infinite else "it is empty"
            reasons[one.name] = empty if one.missing else "it has one and the same value in every row"
        elif one.identifier:
            reasons[one.name] = "its values never repeat, like an identifier's (name it under features to use it)"
    return reasons


def feature_notes(profiles: tuple[Profile, ...], set_aside: dict[str, str]) -> list[str]:
    """Columns that are not used, missing and infinite values, counted."""
    notes = [f"Column {name!r} is not used: {why}." for name, why in set_aside.items()]
    used = [one for one in profiles if one.name not in set_aside]
    infinite = ", ".join(f"{one.name!r} ({one.infinite})" for one in used if one.infinite)
    missing = ", ".join(f"{one.name!r} ({one.missing - one.infinite})" for one in used if one.missing > one.infinite)
    if infinite:
        names = listing([one.name for one in used if one.infinite], len(used))
        first = "Infinite values, which count as missing"
        notes.append(Note(f"{first}: {infinite}.", f"{first}: {names}."))
    if missing:
        names = listing([one.name for one in used if one.missing > one.infinite], len(used))
        first = "Missing values, which are a level of their own"
        notes.append(Note(f"{first}: {missing}.", f"{first}: {names}."))
    return notes
