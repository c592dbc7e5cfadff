"""A log that is never in memory as a whole: a directory of Parquet files, read shard by shard.

Every shard is read as a few small `Log`s, so whatever works on rows works here; a log in memory is the case of one
shard.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.engine.passes import Arrays, Engine, Passes, Shard
from ponn.errors import LogError, PonnError
from ponn.log.draft import (
    as_names,
    check_columns,
    check_features,
    check_rule_columns,
    feature_notes,
    ineligible_told,
    why_set_aside,
)
from ponn.log.eligibility import Eligibility, described, eligible_actions, silence_told
from ponn.log.encoding import Encoding, shared_number
from ponn.log.features import Feature, bin_count, few, fit_category, fit_number, quantile_cuts
from ponn.log.log import Columns, Log
from ponn.log.profile import numbers
from ponn.log.roles import (
    Rows,
    action_labels,
    check_count,
    declared_range,
    missing_propensities,
    outcome_range,
    rare_actions,
    read_floats,
    scaled,
    similar_actions,
    widened_told,
)
from ponn.log.shards import (
    CUT_SALT,
    FOLD_SALT,
    TYPES,
    Cut,
    FileShard,
    Piece,
    directory_digest,
    find_pieces,
    shards_of,
    uniform,
    unit_codes,
    usual_rows,
)
from ponn.log.survey import (
    ColumnSurvey,
    Names,
    Survey,
    Surveying,
    complete_rows,
    merged,
    names_read,
    packed_survey,
    possible_rows,
    survey_columns,
    unpacked_survey,
    unpacked_table,
)
from ponn.settings import Settings, check_seed
from ponn.tables.parquet import open_piecewise
from ponn.tables.remote import place_of
from ponn.tables.source import Source, check_names, reading
from ponn.tables.table import plain, without_pandas_index

SAMPLE_ROWS, SAMPLE_CELLS = 200_000, 10_000_000

# Reading rows --------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Some rows as a log, and the unit (row or group) of each."""

    log: Log
    units: np.ndarray  # [n]

    def folds(self, count: int, seed: int) -> np.ndarray:
        """The fold of each row; rows of one group have one."""
        return (uniform(self.units, FOLD_SALT, seed) * count).astype(np.intp)  # [n]


@dataclass(frozen=True)
class Reader:
    """How the rows of a shard become logs."""

    columns: Columns
    actions: tuple[Any, ...]
    reward_range: tuple[float, float]
    minimize: bool
    drop_missing: bool
    cuts: tuple[Cut, ...] = ()
    available: Eligibility | None = None  # its labels are all of the log, also of rows that are left out
    limited: tuple[int, ...] = ()  # actions that are not eligible everywhere

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return names_read(self.columns.features, self.columns, self.available)

    def batches(self, shard: FileShard) -> Iterator[Batch]:
        """The rows of a shard that belong to this part, some at a time."""
        for piece in shard.pieces:
            for row, table in piece.tables(self.names):
                number = np.arange(piece.first + row, piece.first + row + len(table), dtype=np.uint64)
                found = self.batch(table, number)
                if len(found.log):
                    yield found

    def batch(self, table: pa.Table, number: np.ndarray) -> Batch:
        """Rows of a table with these numbers, as far as they belong to this part."""
        if self.drop_missing:
            table, number = complete_rows(table, self.columns, number)
        if self.available is not None and self.available.drop:
            table, number = possible_rows(table, self.columns, number, self.available)
        return self.sound_batch(table, number)

    def sound_batch(self, table: pa.Table, number: np.ndarray) -> Batch:
        """The same of rows of which none is to be left out for what it holds."""
        group, time = self.columns.group, self.columns.time
        units = number if group is None else unit_codes(table.column(group))
        times = None if time is None else numbers(table.column(time))
        for cut in self.cuts:
            kept = cut.holds(units, times)
            table, units = table.filter(pa.array(kept)), units[kept]
            times = None if times is None else times[kept]
        return Batch(self.log_of(table), units)

    def log_of(self, table: pa.Table) -> Log:
        """Rows that the survey found sound, as a log."""
        rows, columns = Rows(table), self.columns
        labels = action_labels(rows, columns.action)
        A = pc.index_in(labels, value_set=pa.array(self.actions, labels.type)).to_numpy().astype(np.int16)
        raw = pc.cast(table.column(columns.reward), pa.float64(), safe=False).to_numpy()
        p0, weight = (
            None if name is None else read_floats(rows, name, role, "numbers")
            for name, role in ((columns.propensity, "propensity"), (columns.weight, "weight"))
        )
        R = scaled(raw, self.reward_range, self.minimize)
        can = None if self.available is None else eligible_actions(self.available, rows, self.actions)
        told = ((), can, self.available, self.drop_missing)
        return Log(table, columns, self.actions, A, R, p0, weight, self.reward_range, self.minimize, {}, *told)


# The log -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ShardedLog:
    """A validated log of decisions in a directory of Parquet files. Nothing but a sample is in memory."""

    path: str
    shards: tuple[Shard, ...]
    reader: Reader
    survey: Survey  # of the whole directory, whatever part this is
    sample: Batch  # of this part
    set_aside: dict[str, str]
    notes: tuple[str, ...]
    digest: str
    holder: "Holder | None" = None  # who has the rows, where they are not in files

    def __len__(self) -> int:
        """Rows; for a part, about so many."""
        share = float(np.prod([cut.high - cut.low for cut in self.reader.cuts if not cut.by_time]))
        if any(cut.by_time for cut in self.reader.cuts):
            share = len(self.sample.log) / max(self.sampled_of, 1)
        return round(self.survey.rows * share)

    @property
    def sampled_of(self) -> float:
        """Rows that the sample of the whole directory has, on average."""
        return self.survey.rows * sample_share(self.survey.rows, len(self.reader.names))

    def __repr__(self) -> str:
        return f"ShardedLog({len(self):,} rows, {len(self.actions)} actions, {len(self.features)} features, on disk)"

    @property
    def columns(self) -> Columns:
        """Which column plays which part."""
        return self.reader.columns

    @property
    def actions(self) -> tuple[Any, ...]:
        """Labels, sorted: the fixed order of every [.., k] array."""
        return self.reader.actions

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the feature types, in the order of every [.., d] array."""
        return self.columns.features

    @property
    def reward_range(self) -> tuple[float, float]:
        """The range that rewards are scaled by."""
        return self.reader.reward_range

    @property
    def minimize(self) -> bool:
        """Is a small outcome good?"""
        return self.reader.minimize

    @property
    def known_propensities(self) -> bool:
        """Is the propensity of every row known?"""
        return self.columns.propensity is not None and not self.survey.unknown_propensities

    def split(self, share: float = 0.7, seed: int = 0) -> tuple["ShardedLog", "ShardedLog"]:
        """Two parts, the first with about `share` of the rows: by time, by group or by row, as `Log.split`."""
        if not isinstance(share, int | float | np.number) or not 0 < share < 1:
            raise PonnError(f"The share of a split is {share!r}; expected a number between 0 and 1.")
        check_seed(seed)
        salt = (CUT_SALT, len(self.reader.cuts), seed)
        if self.columns.time is None:
            return self.part(Cut(0.0, share, salt)), self.part(Cut(share, 1.0, salt))
        if self.columns.group is not None:
            raise PonnError(
                "A log on disk can be split by time or by group, not by both: name one of the two columns, or read "
                "the log into memory (lazy=False)."
            )
        edge = float(np.quantile(numbers(self.sample.log.table.column(self.columns.time)), share, method="higher"))
        edge = float(np.nextafter(edge, np.inf))
        return self.part(Cut(-np.inf, edge, salt, True)), self.part(Cut(edge, np.inf, salt, True))

    def part(self, cut: Cut) -> "ShardedLog":
        """The rows of this log that a cut holds."""
        log, units = self.sample
        time = self.columns.time
        kept = np.flatnonzero(cut.holds(units, None if time is None else numbers(log.table.column(time))))
        sample = Batch(log.take(kept), units[kept])
        return replace(self, reader=replace(self.reader, cuts=(*self.reader.cuts, cut)), sample=sample)

    def files(self, folder: Path | None) -> tuple[FileShard, ...]:
        """The rows in files, for those who read them in an order of their own; written to a folder if need be."""
        if self.holder is None:
            return tuple(one for one in self.shards if isinstance(one, FileShard))
        assert folder is not None
        return self.holder.as_files(folder, self)

    def fit_encoding(self, passes: Passes, settings: Settings, fewest: int = 1) -> Encoding:
        """The encoding of this part's rows, by one pass; quantile bins, and numbers that say too little, by its sample.

        fewest: rows that whatever has a design column of its own must have.
        """
        work = Summarising(self.reader, bin_count(self.survey.rows))
        found = merged(passes.over("levels", work, self.shards))
        s = bin_count(found.rows)
        features = tuple(self.fit_feature(name, one, s, settings, fewest) for name, one in found.columns.items())
        return Encoding(features, found.rows)

    def fit_feature(self, name: str, found: ColumnSurvey, s: int, settings: Settings, fewest: int = 1) -> Feature:
        """One feature from its summary."""
        if found.texts is not None:
            feature = fit_category(name, found.texts, settings.max_levels, fewest)
            return replace(feature, rest_rows=feature.rest_rows + found.uncounted)
        assert found.numbers is not None
        summary = replace(found.numbers, values=few(found.numbers.values, found.numbers.values, s))
        by_quantile = settings.bins == "quantile" and summary.values is None
        x = numbers(self.sample.log.table.column(name)) if by_quantile or fewest > 1 else np.empty(0)
        fitted = fit_number(name, found.kind, summary, s, quantile_cuts(x, s) if by_quantile else None)
        return shared_number(fitted, x, fewest) if len(x) else fitted


class Holder(Engine, Protocol):
    """An engine that has the rows of a log by itself."""

    def as_files(self, folder: Path, log: ShardedLog) -> tuple[FileShard, ...]:
        """The rows in Parquet files below a folder, in the same order."""


@dataclass(frozen=True)
class Summarising:
    """Summaries of the features over the rows of a part, for an encoding."""

    reader: Reader
    most: int

    def __call__(self, shard: FileShard) -> Arrays:
        """The shard's summaries."""
        total = Survey()
        for log, _ in self.reader.batches(shard):
            total += Survey(rows=len(log), columns=survey_columns(log.table, log.features, self.most))
        return {"survey": packed_survey(total)}


def sample_share(rows: int, columns: int) -> float:
    """The share of rows that is sampled."""
    return min(SAMPLE_ROWS, SAMPLE_CELLS // max(columns, 1)) / rows


def read_sharded(
    path: str | os.PathLike[str], passes: Passes, *, shard_rows: int | None = None, **given: Any
) -> ShardedLog:
    """A directory of Parquet files as a log on disk, by one pass over its shards; keywords as in `read_log`."""
    pieces = find_pieces(place_of(path))
    shards = shards_of(pieces, shard_rows or usual_rows(pieces))
    names = checked_names(str(path), schema_of(pieces[0]), given)
    return surveyed(str(path), shards, names, passes, given, directory_digest(place_of(path)))


def surveyed(
    path: str, shards: tuple[Shard, ...], names: Names, passes: Passes, given: Mapping[str, Any], digest: str
) -> ShardedLog:
    """The log in these shards, by one pass; one more over the actions where not all are eligible everywhere."""
    rows = sum(one.rows for one in shards)
    drop, share = bool(given.get("drop_missing")), sample_share(rows, len(names.read))
    if names.available is not None:
        bare = Names(Columns(names.columns.action, names.columns.reward), (), names.span)
        labels = sorted(merged(passes.over("actions", Surveying(bare, drop), shards)).actions)
        known = tuple(dict.fromkeys((*names.available.labels, *labels)))
        names = replace(names, available=replace(names.available, labels=known))
    work = Surveying(names, drop, bin_count(rows), share)
    found, tables, numbers_found = Survey(), [], []
    for part in passes.over("survey", work, shards):
        found += unpacked_survey(part["survey"])
        if "sample" in part:
            tables.append(unpacked_table(part["sample"]))
            numbers_found.append(part["number"])
    return assembled(path, shards, names, found, tables, numbers_found, given, digest)


def schema_of(piece: Piece) -> pa.Schema:
    """The columns of a file and of its folders."""
    with reading(piece.file, "Parquet"):
        schema = open_piecewise(place_of(piece.file)).schema_arrow
    for name, _, type in piece.folders:
        schema = schema.append(pa.field(name, TYPES[type]))
    return schema


def checked_names(path: str, schema: pa.Schema, given: Mapping[str, Any]) -> Names:
    """What the keywords of `read_log` name, looked up in a schema."""
    named = None if given.get("features") is None else as_names(given["features"], "features")
    if named == ():
        raise PonnError("features is an empty list: name at least one column, or leave it out to use all others.")
    ignore = as_names(given.get("ignore", ()), "ignore")
    roles = {one: given.get(one) for one in ("action", "reward", "propensity", "group", "time", "weight")}
    available = described(given.get("eligible"), given.get("rules", ()), bool(given.get("drop_ineligible")))
    by_column = None if available is None else available.column
    columns = Columns(**roles, features=named or (), eligible=by_column)  # type: ignore[arg-type]
    check_names(path, schema.names)
    source = without_pandas_index(Source(schema.empty_table(), path))
    check_columns(source, columns, ignore)
    check_rule_columns(source, columns, available)
    others = {*columns.roles().values(), *ignore}
    offered = named or tuple(name for name in source.table.column_names if name not in others)
    span = None if given.get("reward_range") is None else declared_range(given["reward_range"])
    return Names(columns, offered, span, available)


def assembled(
    path: str,
    shards: tuple[Shard, ...],
    names: Names,
    found: Survey,
    tables: list[pa.Table],
    numbers_found: list[np.ndarray],
    given: Mapping[str, Any],
    digest: str,
) -> ShardedLog:
    """The log from its survey, or what is wrong with it."""
    columns, available = names.columns, names.available
    notes = [f"{found.dropped} rows without action or reward were left out, as asked."] if found.dropped else []
    notes += ineligible_told(found.ineligible, found.rows + found.ineligible) if found.ineligible else []
    if not found.rows:
        raise LogError(f"All rows of {path} lack {columns.action!r} or {columns.reward!r}: nothing is left.")
    labels = sorted(found.actions)
    check_count(len(labels), labels[0], columns.action, found.rows)
    notes += rare_actions(tuple(labels), np.array([found.actions[one][0] for one in labels]))
    notes += similar_actions(tuple(labels))
    reward_range = outcome_range(found.low, found.high, columns.reward, names.span)
    notes += widened_told(columns.reward, names.span, reward_range)
    if columns.propensity is not None:
        notes += missing_propensities(columns.propensity, found.unknown_propensities, found.rows)
    if available is not None:
        notes += silence_told(available, found.silent, found.rows, labels)
    profiles = tuple(one.profile(name) for name, one in found.columns.items())
    set_aside = why_set_aside(profiles) if given.get("features") is None else {}
    check_features(profiles, set_aside)
    notes += feature_notes(profiles, set_aside)
    used = tuple(one.name for one in profiles if one.name not in set_aside)
    columns = replace(columns, features=used)
    drop, minimize = bool(given.get("drop_missing")), bool(given.get("minimize"))
    limited = tuple(a for a, one in enumerate(labels) if available is not None and found.eligible[one] < found.rows)
    reader = Reader(columns, tuple(labels), reward_range, minimize, drop, (), available, limited)
    table = pa.concat_tables(tables, promote_options="permissive").select(reader.names)
    sample = reader.sound_batch(plain(Source(table, path)).table, np.concatenate(numbers_found))
    return ShardedLog(path, shards, reader, found, sample, set_aside, tuple(notes), digest)
