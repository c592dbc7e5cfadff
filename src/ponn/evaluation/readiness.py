"""`check`: what is in this log, what is odd about it, and can a policy be learned from it."""

import importlib.util
import inspect
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import install_line, listing
from ponn.evaluation.estimators import terms, valuation
from ponn.evaluation.intervals import Estimate, estimate_json, estimated, normal_interval
from ponn.evaluation.weights import overlap as weight_overlap
from ponn.log.draft import Draft, draft_log, read_log
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature, Feature
from ponn.log.log import Log
from ponn.log.profile import CATEGORY, Profile, kind_of, texts
from ponn.log.roles import HANDFUL, is_number
from ponn.log.shards import scramble
from ponn.policy.policy import SUPPORT_FLOOR
from ponn.steps.propensity import QUANTILES, Overlap, overlap, propensities

# A feature that explains this much of the reward's variance, or removes this much of the doubt about the action,
# all but determines it: no measurement taken before the decision does.
DETERMINES = 0.95
CHANCE = 1e-9  # a level whose reward never varies is told when chance would do that less often than this
MOSTLY_NUMBERS = 0.8  # a text column of which this share reads as numbers was probably meant as numbers
OVERLAP_ROWS, OVERLAP_LEAST, OVERLAP_FOLDS = 50_000, 100, 5  # Step A in `check`: sampled, not tried, cross-fitted
MOST_SENTENCES = 8
UNSUPPORTED_SHARE = 0.01  # of all rows
LEVEL = 0.95  # of the intervals of what an action would be worth to everyone
EFFECTIVE_SHARE = 0.1  # of an action's rows
OFF, OFF_ERRORS = 0.1, 4.0  # the mean of 1/p is told where it is further from 1 than this, and than so many errors
SPREADSHEET_DATE = re.compile(r"\d{1,2}-(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)")


@dataclass(frozen=True)
class ActionCount:
    """One action of the log."""

    action: Any
    rows: int
    mean_reward: float | None  # in the user's unit


@dataclass(frozen=True)
class EligibleCount:
    """How often one action could be taken."""

    action: Any
    rows: int


@dataclass(frozen=True)
class FeatureLine:
    """One feature of the log."""

    name: str
    kind: str
    levels: int | None  # levels or bins in Step B, missing included
    missing: int
    values: str  # in words: the range, or the levels


@dataclass(frozen=True)
class ActionOverlap:
    """What Step A says of one action."""

    action: Any
    effective_rows: float
    largest_weight: float
    truncated: float  # share of the action's rows
    propensity_5: float  # 5 % of the rows have a smaller propensity
    propensity_50: float
    mean_inverse: float  # of 1{A = a} / p, should be 1
    calibration_error: float | None


@dataclass(frozen=True)
class BalanceLine:
    """How far the rows of an action are from all rows in one feature, in standard deviations."""

    action: Any
    feature: str
    before: float
    after: float  # with weights


@dataclass(frozen=True)
class Check:
    """What `ponn check` found."""

    rows: int
    actions: tuple[ActionCount, ...]
    features: tuple[FeatureLine, ...]
    notes: tuple[str, ...]  # what reading changed
    suspicious: tuple[str, ...]  # what a person should look at
    overlap: tuple[ActionOverlap, ...]  # Step A: what the log can tell about each action; empty if not estimated
    balance: tuple[BalanceLine, ...]  # features that differ most between the rows of an action and all rows
    unsupported: int | None  # rows in which some action had next to no chance
    ready: bool
    why: str
    everyone: tuple[tuple[Any, Estimate], ...] = ()  # per action, what giving it to everyone would be worth
    eligible: tuple[EligibleCount, ...] = ()  # empty where every action always is

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        everyone = [{"action": action, **estimate_json(found)} for action, found in self.everyone]
        return asdict(self) | {"everyone": everyone}


def check(source: Any, **columns: Any) -> Check:
    """Look at a table as `read_log` would read it (same keywords), without refusing it."""
    given = inspect.signature(read_log).bind(source, **columns)
    given.apply_defaults()
    draft = draft_log(**given.arguments)
    actions = count_actions(draft)
    if draft.log is None:
        features = tuple(FeatureLine(one.name, one.kind, None, one.missing, "") for one in draft.profiles)
        why = " ".join(str(problem) for problem in draft.problems)
        return Check(draft.rows, actions, features, draft.notes, (), (), (), None, False, why)
    log = draft.log
    encoding = Encoding.fit(log)
    profiles = {one.name: one for one in draft.profiles}
    step_a, everyone, told = look_at_overlap(log, encoding)
    return Check(
        rows=len(log),
        actions=actions,
        features=tuple(describe(one, profiles[one.name]) for one in encoding.features),
        notes=(*draft.notes, *encoding.notes, *told),
        suspicious=(
            *suspicious_features(log, encoding),
            *odd_texts(log),
            *repeated_rows(log),
            *(() if step_a is None else doubts(step_a)),
        ),
        overlap=() if step_a is None else tuple(action_overlap(step_a)),
        balance=() if step_a is None else tuple(worst_balance(step_a, encoding)),
        unsupported=None if step_a is None else step_a.unsupported,
        everyone=everyone,
        eligible=count_eligible(log),
        **verdict(log, actions),
    )


def verdict(log: Log, actions: tuple[ActionCount, ...], rows: int | None = None) -> dict[str, Any]:
    """Ready or not, and why; rows: where the log is a sample of so many."""
    enough = [one for one in actions if one.rows >= HANDFUL]
    if len(enough) < 2:
        return {"ready": False, "why": f"Fewer than two actions were taken in at least {HANDFUL} rows."}
    told = f"{rows or len(log)} rows, {len(actions)} actions, {len(log.features)} features, a reward that varies"
    return {"ready": True, "why": told + "."}


def count_actions(draft: Draft) -> tuple[ActionCount, ...]:
    """Rows and mean reward per action, as far as the columns could be read."""
    return () if draft.A is None else action_counts(draft.actions, draft.A, draft.outcome)


def action_counts(actions: tuple[Any, ...], A: np.ndarray, outcome: np.ndarray | None) -> tuple[ActionCount, ...]:
    """Rows and, where the outcome is known, its mean per action; none for an action without rows."""
    counts = np.bincount(A, minlength=len(actions))
    means: list[float | None] = [None] * len(counts)
    if outcome is not None:
        largest = float(np.abs(outcome).max(initial=0.0)) or 1.0  # sums of huge outcomes would overflow
        totals = np.bincount(A, outcome / largest, minlength=len(counts))
        means = [largest * (one / rows) if rows else None for one, rows in zip(totals.tolist(), counts, strict=True)]
    return tuple(
        ActionCount(action, rows, mean) for action, rows, mean in zip(actions, counts.tolist(), means, strict=True)
    )


def count_eligible(log: Log) -> tuple[EligibleCount, ...]:
    """In how many rows each action may be taken."""
    if log.eligible is None:
        return ()
    return tuple(map(EligibleCount, log.actions, log.eligible.sum(axis=0).tolist()))


def describe(feature: Feature, found: Profile) -> FeatureLine:
    """One feature in words."""
    if isinstance(feature, CategoryFeature):
        values = ", ".join(feature.kept[:4]) + (", ..." if len(feature.kept) > 4 or feature.rest else "")
    elif feature.values is not None and len(feature.values) <= 4:
        values = ", ".join(feature.say(value) for value in feature.values)
    else:
        values = f"{feature.say(feature.low)} to {feature.say(feature.high)}"
    return FeatureLine(feature.name, feature.kind, feature.b, found.missing, values)


# Step A --------------------------------------------------------------------------------------------------


Everyone = tuple[tuple[Any, Estimate], ...]


def look_at_overlap(log: Log, encoding: Encoding) -> tuple[Overlap | None, Everyone, list[str]]:
    """Step A's diagnostics, cross-fitted, and the actions' values; on a sample of very long logs.

    Only where scikit-learn is installed, or every propensity is known.
    """
    notes = []
    if len(log) > OVERLAP_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(len(log), OVERLAP_ROWS, replace=False))
        notes.append(f"Overlap was looked at in a random sample of {OVERLAP_ROWS:,} rows.")
        log = log.take(rows)
    if np.bincount(log.A, minlength=len(log.actions)).min() < OVERLAP_FOLDS or len(log) < OVERLAP_LEAST:
        return None, (), [*notes, "Overlap was not looked at: too few rows for every action."]
    if importlib.util.find_spec("sklearn") is None and (log.p0 is None or np.isnan(log.p0).any()):
        return None, (), [*notes, f"Overlap was not looked at: that needs scikit-learn ({install_line('learn')})."]
    found = propensities(log, encoding, folds=OVERLAP_FOLDS)
    everyone = tuple((action, given_to_all(log, found.p, a)) for a, action in enumerate(log.actions))
    return overlap(log, encoding, found), everyone, [*notes, *found.notes]


def given_to_all(log: Log, p: np.ndarray, a: int) -> Estimate:
    """What giving everyone the action would be worth, by self-normalised IPS: its mean outcome less the bias.

    Weights alone need no reward model, so this is quick; the interval is for a first look.
    """
    t = terms(np.eye(len(log.actions))[[a]].repeat(len(log), axis=0), log.A, log.R, p, None, log.weight)
    found, seen = valuation("snips", t), weight_overlap(t.w * t.weight)
    group = None if log.columns.group is None else log.group_numbers()
    made = estimated(found, "snips", normal_interval(found, LEVEL, group), seen.ess, group=group)
    return made.in_unit(log.reward_range, log.minimize).distrusted(*seen.doubts(modelled=False))


def doubts(found: Overlap) -> list[str]:
    """What the log cannot tell, in sentences."""
    told = list(found.sentences[:MOST_SENTENCES])
    if len(found.sentences) > MOST_SENTENCES:
        told.append(f"... and {len(found.sentences) - MOST_SENTENCES} more such gaps.")
    rows = int(found.rows.sum())
    if found.unsupported is not None and found.unsupported > UNSUPPORTED_SHARE * rows:
        told.append(
            f"In {found.unsupported} of {rows} rows some action had a propensity under {SUPPORT_FLOOR:.0%}: for such "
            "cases the log cannot tell how that action would do."
        )
    told += propensities_off(found)
    for action, kept, all_rows in zip(found.actions, found.effective, found.rows, strict=True):
        if kept < EFFECTIVE_SHARE * all_rows:
            told.append(
                f"The {all_rows} rows of action {action!r} weigh as much as {kept:.0f} independent ones: "
                "a few rows stand for very many."
            )
    return told


def propensities_off(found: Overlap) -> Iterator[str]:
    """Known propensities that do not fit how often an action was taken; estimated ones fit by their making."""
    if found.calibration is not None:
        return
    for action, mean, kept in zip(found.actions, found.mean_inverse, found.effective, strict=True):
        if kept and abs(mean - 1) > max(OFF, OFF_ERRORS * mean / np.sqrt(kept)):
            yield (
                f"The propensities of action {action!r} do not fit how often it was taken: the mean of 1/p over all "
                f"rows, counting the others as 0, is {mean:.3g} and should be 1. A propensity is the probability with "
                "which the action of its row was taken."
            )


def action_overlap(found: Overlap) -> Iterator[ActionOverlap]:
    """One line per action."""
    five, half = QUANTILES.index(0.05), QUANTILES.index(0.5)
    for a, action in enumerate(found.actions):
        yield ActionOverlap(
            action,
            float(found.effective[a]),
            float(found.largest_weight[a]),
            float(found.truncated[a]),
            float(found.quantiles[a, five]),
            float(found.quantiles[a, half]),
            float(found.mean_inverse[a]),
            None if found.calibration is None else float(found.calibration[a]),
        )


def worst_balance(found: Overlap, encoding: Encoding) -> Iterator[BalanceLine]:
    """Per action the feature that differs most from all rows before weighting."""
    for a, action in enumerate(found.actions):
        i = int(np.argmax(found.balance_before[a]))
        before, after = float(found.balance_before[a, i]), float(found.balance_after[a, i])
        yield BalanceLine(action, encoding.features[i].name, before, after)


# What a person should look at ----------------------------------------------------------------------------


def suspicious_features(log: Log, encoding: Encoding) -> list[str]:
    """Features that all but determine the reward or the action."""
    levels = encoding.levels(log)  # [n, d]
    found = []
    for i, feature in enumerate(encoding.features):
        told = leak_of_reward(log, levels[:, i], feature) or leak_of_action(log, levels[:, i], feature)
        if told:
            found.append(told)
    return found


def leak_of_reward(log: Log, level: np.ndarray, feature: Feature) -> str:
    """Does the feature know the outcome? By variance explained, or by one level in which it never varies."""
    N = np.bincount(level, minlength=feature.b)
    mean = np.bincount(level, log.R, minlength=feature.b) / np.maximum(N, 1)
    within = float(np.sum((log.R - mean[level]) ** 2))
    total = float(np.sum((log.R - log.R.mean()) ** 2))
    used = int((N > 0).sum())
    if len(log) > 2 * used:
        explained = 1 - (within / (len(log) - used)) / (total / (len(log) - 1))
        if explained > DETERMINES:
            return (
                f"Column {feature.name!r} all but determines the reward (it explains {explained:.1%} of its variance). "
                "Was it known before the decision? If not, ignore it."
            )
    return fixed_level(log, level, N, mean, feature)


def fixed_level(log: Log, level: np.ndarray, N: np.ndarray, mean: np.ndarray, feature: Feature) -> str:
    """A level in which the reward never varies though chance would almost surely vary it."""
    spread = np.zeros(feature.b)
    np.maximum.at(spread, level, np.abs(log.R - mean[level]))
    values, counts = np.unique(log.R, return_counts=True)
    share = dict(zip(values.tolist(), (counts / len(log)).tolist(), strict=True))
    for one in np.flatnonzero((spread < 1e-12) & (N > 1)):
        value = float(log.R[np.argmax(level == one)])
        if N[one] * np.log(share[value]) < np.log(CHANCE):
            return (
                f"Column {feature.name!r}: in all {N[one]} rows with {feature.level_names[one]} the reward is "
                f"{log.in_units(value):g}. Was it known before the decision? If not, ignore it."
            )
    return ""


def leak_of_action(log: Log, level: np.ndarray, feature: Feature) -> str:
    """Does the feature tell which action was taken?"""
    k = len(log.actions)
    N = np.bincount(level.astype(np.int64) * k + log.A, minlength=feature.b * k).reshape(feature.b, k)
    guess, blind = N.max(axis=1).sum() / len(log), N.sum(axis=0).max() / len(log)
    if len(log) < 2 * feature.b or blind == 1 or (guess - blind) / (1 - blind) < DETERMINES:
        return ""
    return (
        f"Column {feature.name!r} all but determines the action (it tells it in {guess:.1%} of the rows). "
        "Either it was written down after the decision, or cases with other values never got the other actions: "
        "then the log cannot say how those would have done."
    )


def odd_texts(log: Log) -> list[str]:
    """Text columns that are mostly numbers, that a spreadsheet has mangled, or with one level written in two ways."""
    found = []
    for name in (log.columns.action, *log.features):
        column = log.table.column(name)
        if kind_of(column.type) == CATEGORY and not pa.types.is_dictionary(column.type):
            counted = pc.value_counts(texts(column).drop_null())
            cells = dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
            found += [*number_like(name, cells), *date_like(name, cells), *same_but_for_spelling(name, cells)]
    return found


def number_like(name: str, cells: dict[str, int]) -> list[str]:
    """A text column of which most cells are numbers."""
    odd = [text for text in cells if not is_number(text)]
    share = 1 - sum(cells[text] for text in odd) / max(sum(cells.values()), 1)
    if not odd or share < MOSTLY_NUMBERS:
        return []
    return [
        f"Column {name!r} is text because of cells like {listing(sorted(odd), 3)}, though {share:.1%} of its cells are "
        "numbers. It is read as categories."
    ]


def date_like(name: str, cells: dict[str, int]) -> list[str]:
    """Cells such as '19-Oct' or '3-Feb': ranges (10-19, 2-3) that a spreadsheet took for dates."""
    odd = sorted(text for text in cells if SPREADSHEET_DATE.fullmatch(text))
    if not odd:
        return []
    rows = sum(cells[text] for text in odd)
    return [
        f"Column {name!r} holds {listing(odd, 3)} in {rows} rows: probably ranges such as 10-19 that a spreadsheet "
        "turned into dates."
    ]


def same_but_for_spelling(name: str, cells: dict[str, int]) -> list[str]:
    """Cells such as 'yes', 'Yes' and 'yes ', which differ in nothing but capitals and spaces."""
    spellings: dict[str, list[str]] = {}
    for text in cells:
        spellings.setdefault(" ".join(text.split()).casefold(), []).append(text)
    twice = [sorted(one) for one in spellings.values() if len(one) > 1]
    if not twice:
        return []
    more = f" and {len(twice) - 1} more such groups" if len(twice) > 1 else ""
    return [
        f"Column {name!r} holds {listing(min(twice), 3)}{more}, which differ only in capitals or spaces and count as "
        "different levels. Write them alike if they mean the same."
    ]


def repeated_rows(log: Log) -> list[str]:
    """Rows that repeat an earlier one in every column."""
    mixed = np.zeros(len(log), np.uint64)
    with np.errstate(over="ignore"):
        for column in (one for one in log.table.columns if not pa.types.is_nested(one.type)):  # lists have no codes
            codes = column.combine_chunks().dictionary_encode().indices
            code = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
            mixed = scramble(mixed ^ (code + np.uint64(0x9E3779B97F4A7C15)))
    copies = len(log) - len(np.unique(mixed))
    if not copies:
        return []
    return [
        f"{copies} rows repeat an earlier row in every column that is used. That is natural where all columns have few "
        "values; otherwise look for rows that were written twice."
    ]
