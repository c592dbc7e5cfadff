"""What a policy is worth to whom: its value, that of current practice and their difference per subgroup.

Whoever looks at many subgroups finds one that stands out by chance. So all intervals hold together with probability
`level`: with s subgroups, of all columns together, each of their 3 s intervals holds with probability level^(1/(3 s)).
For estimates that are jointly normal this is enough however they are related (Sidak 1967). The numbers are related, as
a subgroup's three share its rows, but little is lost: with 10 subgroups of two columns the intervals reach 3.14
standard errors, where the quantile of the largest |t| (a multiplier bootstrap) would say 3.10.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError, listing
from ponn.evaluation.estimators import BY_WEIGHTS_ALONE, Terms, Valuation, logged_value, mean_one, valuation
from ponn.evaluation.intervals import Estimate, by_group, estimate_json, estimated, normal_interval, surprise_of
from ponn.evaluation.valuation import (
    Asked,
    Nuisances,
    Scored,
    Valued,
    check_options,
    hardly_logged,
    nuisances,
    scored,
    unseen_rows,
)
from ponn.evaluation.weights import FEWEST_EFFECTIVE, overlap
from ponn.log.features import OTHER, fit_category, fit_number, quantile_cuts, summarise_numbers, summarise_texts
from ponn.log.log import Log, check_in_memory
from ponn.log.profile import CATEGORY, kind_of, numbers
from ponn.settings import Settings

PARTS = 4  # into which numbers are cut at their quantiles
FEWEST_ROWS = 50  # levels with fewer rows are joined


@dataclass(frozen=True)
class Subgroup:
    """Rows with one level of a column, or with several that were joined."""

    column: str
    level: str  # in words
    rows: int
    joined: int  # levels in it
    policy: Estimate
    logging: Estimate
    difference: Estimate  # policy less current practice, paired

    def as_json(self) -> dict[str, Any]:
        """In plain values."""
        told = {"column": self.column, "level": self.level, "rows": self.rows, "joined": self.joined}
        return told | {name: estimate_json(getattr(self, name)) for name in ("policy", "logging", "difference")}


@dataclass(frozen=True)
class Subgroups:
    """Subgroups of one or several columns; all intervals hold together with probability `level`."""

    groups: tuple[Subgroup, ...]
    level: float
    single_level: float  # the level of each interval by itself

    def as_json(self) -> dict[str, Any]:
        """In plain values."""
        groups = [one.as_json() for one in self.groups]
        return {"level": self.level, "single_level": self.single_level, "looked_at": len(groups), "groups": groups}


def value_by_group(
    policy: Valued,
    log: Log,
    by: str | Sequence[str],
    estimator: str = "dr",
    level: float = 0.95,
    *,
    parts: int = PARTS,
    fewest: int = FEWEST_ROWS,
    settings: Settings | None = None,
    corrections: Nuisances | None = None,
    seed: int = 0,
) -> Subgroups:
    """Return the value of a policy, of current practice and their difference per level of one or several columns.

    The intervals hold all together, over all subgroups of all columns, with probability `level`. What a subgroup's rows
    cannot tell is marked there (`trusted`, `warnings`).

    Parameters
    ----------
    policy, log, estimator
        As in `evaluate`.
    by
        A column, or several. It may be one that the policy does not look at.
    level
        Probability with which all intervals hold together.
    parts
        Numbers are cut into so many parts at their quantiles.
    fewest
        Neighbours, or categories, with fewer rows are joined; what still has fewer than ten (missing cells, a lone rare
        level) is left out.
    settings, corrections, seed
        Of what is fitted to correct the values, or what is fitted already.

    Returns
    -------
    Subgroups
        `groups`, each with `column`, `level`, `rows`, `policy`, `logging` and `difference`.

    Examples
    --------
    >>> import ponn
    >>> train, test = ponn.simulate.world("actg175").log.split(0.7, seed=0)
    >>> found = ponn.value_by_group(ponn.learn(train, "lr-l1"), test, by="age")
    >>> [one.level for one in found.groups]
    ['under 30', '30 to 35', '35 to 41', '41 or more']
    >>> sum(one.rows for one in found.groups) == len(test)
    True
    """
    check_in_memory(log, "The value of subgroups")
    check_options(log, estimator, level, "normal")
    log = unseen_rows(policy, log)
    found = levels_of_columns(log, by, parts, fewest)
    if not found:
        raise PonnError("No column is named to make subgroups by; expected at least one, e.g. by='age'.")
    one = scored(policy, log, corrections or nuisances(log, settings, seed=seed))
    return by_level(one, found, Asked(estimator, level, seed=seed))


# Who belongs to which subgroup -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Level:
    """The rows of one subgroup."""

    column: str
    name: str
    rows: np.ndarray  # row numbers
    joined: int


def levels_of_columns(log: Log, by: str | Sequence[str], parts: int = PARTS, fewest: int = FEWEST_ROWS) -> list[Level]:
    """The subgroups of one or several columns."""
    if parts < 1 or fewest < 1:
        raise PonnError(f"parts is {parts} and fewest is {fewest}; expected whole numbers from 1.")
    columns = (by,) if isinstance(by, str) else tuple(dict.fromkeys(by))
    return [level for column in columns for level in large_enough(levels_of(log, column, parts, fewest), fewest)]


def large_enough(levels: list[Level], fewest: int) -> list[Level]:
    """The subgroups without those of so few rows that they would speak of single people; all where all are so small."""
    least = min(fewest, Settings().min_cell)
    return [one for one in levels if len(one.rows) >= least] or levels


def levels_of(log: Log, column: str, parts: int, fewest: int) -> list[Level]:
    """The subgroups of one column: of its values, or of parts with about equally many rows."""
    check_column(log, column)
    cells = log.table.column(column)
    kind = kind_of(cells.type)
    if kind == CATEGORY:
        return levels_of_texts(column, cells, fewest)
    if not kind:
        raise PonnError(
            f"Column {column!r} is of type {cells.type}; subgroups need numbers, text, dates or true/false."
        )
    return levels_of_numbers(column, kind, cells, parts, fewest)


def check_column(log: Log, column: str) -> None:
    """Only columns that are there and were known before the decision."""
    if column in (log.columns.action, log.columns.reward):
        raise PonnError(
            f"Subgroups by {column!r} would mislead: it was known only with or after the decision, and comparing "
            "within it hides what the decision did. Name a column that was known before."
        )
    if column not in log.table.column_names:
        raise PonnError(f"The log has no column {column!r} to make subgroups by; it has {listing(log.features, 20)}.")


def levels_of_texts(name: str, cells: pa.ChunkedArray, fewest: int) -> list[Level]:
    """One subgroup per text that is frequent enough, the others together, then the missing ones."""
    found = summarise_texts(cells)
    frequent = sum(count >= fewest for count in found.counts.values())
    alone = len(found.counts) == frequent + 1  # a single rare level has nothing to be joined with
    feature = fit_category(name, found, frequent + alone)
    codes = feature.codes(feature.read(cells))
    joined = {OTHER: len(feature.rest)}
    rows = rows_per(codes, feature.b)
    return [
        Level(name, told, those, joined.get(told, 1)) for told, those in zip(feature.level_names, rows, strict=True)
    ]


def levels_of_numbers(name: str, kind: str, cells: pa.ChunkedArray, parts: int, fewest: int) -> list[Level]:
    """Values where there are at most `parts`, otherwise parts between quantiles; neighbours with few rows joined."""
    found = summarise_numbers(cells, parts)
    cuts = quantile_cuts(numbers(cells), parts) if found.values is None else None
    feature = fit_number(name, kind, found, parts, cuts)
    rows = rows_per(feature.codes(feature.read(cells)), feature.b)
    runs = joined_runs([len(one) for one in rows[: feature.bins]], fewest)
    spans = [*runs, *((at, at + 1) for at in range(feature.bins, feature.b))]  # missing stands by itself
    return [
        Level(name, feature.span(start, stop), np.concatenate(rows[start:stop]), stop - start)
        for start, stop in spans
        if sum(map(len, rows[start:stop]))
    ]


def rows_per(codes: np.ndarray, b: int) -> list[np.ndarray]:
    """The row numbers of each level."""
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=b))[:-1])


def joined_runs(counts: list[int], fewest: int) -> list[tuple[int, int]]:
    """Runs of neighbours with at least `fewest` rows each, as far as there are so many; a short last one is joined."""
    runs: list[tuple[int, int]] = []
    start = 0
    for stop in range(1, len(counts) + 1):
        if sum(counts[start:stop]) >= fewest:
            runs.append((start, stop))
            start = stop
    if start < len(counts):
        first = runs.pop()[0] if runs else 0
        runs.append((first, len(counts)))
    return runs


# Values that hold together ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Part:
    """A policy and current practice on the rows of one subgroup."""

    level: Level
    policy: Valuation
    logging: Valuation
    group: np.ndarray | None
    ess: float
    doubts: tuple[str, ...]


def by_level(one: Scored, levels: list[Level], asked: Asked) -> Subgroups:
    """Values per subgroup, their intervals widened so that all hold together."""
    whole = (one.valuation(asked), logged_value(one.t.R, one.t.weight))
    surprises = [surprise_in(found, one.group) for found in whole]
    parts = [part_of(one, level, asked, surprises) for level in levels]
    single = asked.level ** (1 / (3 * len(parts)))
    return Subgroups(tuple(subgroup(part, one.log, asked, single) for part in parts), asked.level, single)


def part_of(one: Scored, level: Level, asked: Asked, surprises: Sequence[float]) -> Part:
    """The policy and current practice on the rows of a subgroup; surprises: of both, in the whole log."""
    rows, log = level.rows, one.log
    t, group = terms_of(one.t, rows), None if one.group is None else one.group[rows]
    try:
        policy = valuation(asked.estimator, t, asked.parameter, group)
    except PonnError as error:
        raise PonnError(f"Subgroup {level.column} {level.name}: {error}") from error
    seen = overlap(t.w * t.weight)
    taken = np.bincount(log.A[rows], minlength=len(log.actions))
    rare = hardly_logged(log.actions, one.h[rows].mean(axis=0), taken)
    doubts = (*seen.doubts(asked.estimator not in BY_WEIGHTS_ALONE), *rare, *one.reused)
    both = (policy, logged_value(t.R, t.weight))
    policy, logging = (at_least(found, surprise) for found, surprise in zip(both, surprises, strict=True))
    return Part(level, policy, logging, group, seen.ess, doubts)


def surprise_in(found: Valuation, group: np.ndarray | None) -> float:
    """How lopsided outcomes are in a log."""
    return 0.0 if found.moves is None else surprise_of(*by_group(found.moves, group))


def at_least(found: Valuation, surprise: float) -> Valuation:
    """A subgroup's value with the surprise of the whole log: in a small one all may have fared alike by chance."""
    return found if found.moves is None else replace(found, moves=replace(found.moves, surprise=surprise))


def terms_of(t: Terms, rows: np.ndarray) -> Terms:
    """The terms of some rows."""
    picked = {name: None if x is None else x[rows] for name, x in vars(t).items()}
    return replace(t, **picked | {"weight": mean_one(t.weight[rows], len(rows))})


def subgroup(part: Part, log: Log, asked: Asked, single: float) -> Subgroup:
    """The three estimates of one subgroup in the log's unit."""
    rows = len(part.level.rows)
    few = (f"the subgroup has only {rows} rows",) if rows < FEWEST_EFFECTIVE else ()

    def told(found: Valuation, estimator: str, ess: float, doubts: tuple[str, ...], is_gain: bool = False) -> Estimate:
        ends = normal_interval(found, single, part.group)._replace(kind="simultaneous", level=asked.level)
        made = estimated(found, estimator, ends, ess, group=part.group, difference=is_gain)
        return made.in_unit(log.reward_range, log.minimize).distrusted(*doubts)

    return Subgroup(
        column=part.level.column,
        level=part.level.name,
        rows=rows,
        joined=part.level.joined,
        policy=told(part.policy, asked.estimator, part.ess, part.doubts),
        logging=told(part.logging, "mean", float(rows), few),
        difference=told(part.policy - part.logging, asked.estimator, part.ess, part.doubts, is_gain=True),
    )
