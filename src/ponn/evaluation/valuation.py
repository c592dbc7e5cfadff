"""What is a policy worth on rows of a log that it never saw, against current practice, and is it better?

symbol   meaning                                                        shape
h        h(a | x_j), the policy to value, columns as log.actions        [n, k]
p        propensity of the logged action: known, or cross-fitted        [n]
Q        r_hat(a, x_j), cross-fitted predictions of a reward model      [n, k]

Everything here works with rewards in [0, 1]; what users see is in their own unit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError, listing
from ponn.evaluation.estimators import (
    BY_WEIGHTS_ALONE,
    Terms,
    Valuation,
    check_estimator,
    logged_value,
    terms,
    valuation,
)
from ponn.evaluation.intervals import (
    Estimate,
    Interval,
    LowOverlap,
    bernstein_interval,
    bootstrap,
    confidence_sequence,
    estimated,
    normal_interval,
    percentile_interval,
)
from ponn.evaluation.verdict import Verdict, both_sides, verdict
from ponn.evaluation.weights import Overlap, overlap
from ponn.log.acquaintance import seals
from ponn.log.draft import read_log
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.log.roles import Observed
from ponn.log.rules import label_text
from ponn.policy.inference import restricted
from ponn.policy.models import greedy
from ponn.policy.policy import Policy
from ponn.settings import Settings
from ponn.steps.propensity import Propensities, check_rows, fold_numbers, propensities, stops_told
from ponn.steps.reward import cross_fitted_rewards

FOLDS = 5
FEWEST_LOGGED = 10  # rows of an action the policy wants; with fewer its reward is guesswork
WANTED = 0.01  # a policy wants an action that it gives at least this share of its probability
FOR_EVERY_N = ("bernstein", "sequence")  # not only for large n
INTERVALS = ("normal", "bootstrap", *FOR_EVERY_N)
BOOTSTRAPS = 200
KNOWN = 0.01  # share of rows that a policy learned from, from which on its value on them is not trusted
LEARNED_FROM_THESE = "these are the very rows that the policy learned from"
ORIGINAL_ROW = "row of the log"  # the column that keeps copies of a resampled row in one fold


@dataclass(frozen=True)
class FixedAction:
    """The policy that gives everyone the same action."""

    action: Any


@dataclass(frozen=True)
class CurrentPractice:
    """Whoever made the log: its value is the mean reward."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """A policy whose actions are drawn from h, as in section 5; a Policy by itself takes the most probable one."""

    policy: Policy


@dataclass(frozen=True, eq=False)
class SupportedOnly:
    """A policy that recommends only actions which the log supports for the row, see `Policy.safer`."""

    policy: Policy


Valued = Policy | Sampled | SupportedOnly | FixedAction | CurrentPractice | Callable[[Any], np.ndarray] | np.ndarray


@dataclass(frozen=True, eq=False)
class Nuisances:
    """What values are corrected with, fitted on other rows than they are used on."""

    p: np.ndarray  # [n]
    Q: np.ndarray | None  # [n, k]
    model: str  # "known" or what estimated the propensities
    notes: tuple[str, ...]
    settings: Settings = field(default_factory=Settings)  # with which a bootstrap estimates the propensities again
    folds: int = FOLDS
    step_a: Propensities | None = None  # where p comes from, where it was made here


def nuisances(log: Log, settings: Settings | None = None, *, folds: int = FOLDS, seed: int = 0) -> Nuisances:
    """Propensities (known ones as they are) and reward predictions, each row's from the other folds."""
    check_rows(log, folds)
    settings = settings or Settings()
    encoding = Encoding.fit(log, settings)
    found = propensities(log, encoding, settings, folds=folds, seed=seed)
    fold = fold_numbers(log, folds, seed)
    converged: list[bool] = []
    Q = cross_fitted_rewards(
        encoding.design(log), log.A, log.R, log.row_weights, len(log.actions), fold, settings, converged
    )
    notes = (*found.notes, *stops_told("reward model", converged))
    return Nuisances(found.p, Q, found.model, notes, settings, folds, found)


# The policy on the rows of a log ---------------------------------------------------------------------------


def read_same_log(policy: Policy, path: Any, also: Sequence[str] = ()) -> Log:
    """A log read with the columns, rules, reward's range and direction that the policy was learned with.

    Rows without outcome, or whose action was not eligible, are left out where they were then; the log's notes count
    them. also: columns that the policy does not look at, kept to make subgroups by.
    """
    log = read_log(path, **same_columns(policy), keep=also)
    own = {label_text(action): action for action in policy.actions}  # '1' where this file has only numbers: 1
    return replace(log, actions=tuple(own.get(label_text(action), action) for action in log.actions))


def same_columns(policy: Policy) -> dict[str, Any]:
    """The keywords of `read_log` with which the policy's log was read."""
    columns, reward = policy.made("columns", "reward")
    return {role: columns.get(role) for role in ("action", "reward", "propensity", "group", "time", "weight")} | {
        "features": columns.get("features", [one.name for one in policy.encoding.features]),
        "minimize": reward["minimize"],
        "reward_range": tuple(reward["range"]) if reward.get("declared") else Observed(*reward["range"]),
        "drop_missing": policy.provenance.get("drop_missing", False),
        "eligible": policy.eligibility and replace(policy.eligibility, labels=policy.actions),
    }


def probabilities_on(policy: Valued, log: Log) -> np.ndarray:
    """h(a | x_j) over the eligible actions, columns in the order of log.actions; see `possible`."""
    return possible(wanted_on(policy, log), log, np.bincount(log.A, minlength=len(log.actions)))


def possible(h: np.ndarray, log: Log, counts: np.ndarray) -> np.ndarray:
    """h with nothing for actions that are not eligible; counts: how often the whole log takes each action.

    What a policy gives to such actions in a row goes to its other actions there, in proportion; where it has none, to
    the eligible action that is most common in the log. A learned policy does so by itself.
    """
    if log.eligible is None:
        return h
    most_common = greedy(np.broadcast_to(counts.astype(float), log.eligible.shape), log.eligible)  # [n, k]
    return restricted(h, log.eligible, most_common)


def not_eligible(policy: Valued, log: Log) -> tuple[str, ...]:
    """A warning with the share of a policy's choices that are not eligible; learned ones make no such choice."""
    if log.eligible is None or isinstance(policy, Policy | Sampled | SupportedOnly):
        return ()
    return ineligible_share_told(float((wanted_on(policy, log) * ~log.eligible).sum(axis=1).mean()))


def ineligible_share_told(share: float) -> tuple[str, ...]:
    """The warning, where there is reason for one."""
    return (f"{share:.1%} of its choices are not eligible and count as eligible ones",) if share else ()


def wanted_on(policy: Valued, log: Log, ask: Callable[[Policy], np.ndarray] | None = None) -> np.ndarray:
    """h(a | x_j) as the policy gives it; only learned policies know what is eligible.

    ask: what a learned policy says of these rows, where several are valued that rest on the same one.
    """
    ask = ask or (lambda learned: learned.predict_proba(log))
    if isinstance(policy, Policy):
        return matched(greedy(ask(policy)), policy.actions, log)
    if isinstance(policy, Sampled):
        return matched(ask(policy.policy), policy.policy.actions, log)
    if isinstance(policy, SupportedOnly):
        learned = policy.policy
        return matched(greedy(learned.safer(*learned.design(log))), learned.actions, log)
    if isinstance(policy, FixedAction):
        return matched(np.ones((len(log), 1)), (policy.action,), log)
    if isinstance(policy, CurrentPractice):
        raise PonnError("Current practice is valued by its rewards; its probabilities are those of Step A.")
    h = policy if isinstance(policy, np.ndarray) else np.asarray(policy(log.X), float)
    return checked_probabilities(h, log)


def matched(h: np.ndarray, actions: tuple[Any, ...], log: Log) -> np.ndarray:
    """Columns moved to the log's order of actions; an action that the log lacks must not be wanted."""
    found = np.zeros((len(log), len(log.actions)))
    for action, column in zip(actions, h.T, strict=True):
        if action in log.actions:
            found[:, log.actions.index(action)] = column
        elif column.max(initial=0.0) > 0:
            raise PonnError(
                f"The policy takes action {action!r} in {column.mean():.1%} of the rows, but this log never contains "
                f"it (it has {listing(log.actions)}): nothing in it tells what that would bring."
            )
    return found


def checked_probabilities(h: np.ndarray, log: Log) -> np.ndarray:
    """An array of probabilities that someone else made, if it is one."""
    shape = (len(log), len(log.actions))
    if h.shape != shape:
        raise PonnError(f"The policy gave probabilities of shape {h.shape}; expected {shape}: rows x actions.")
    if not (np.isfinite(h).all() and (h >= 0).all() and np.allclose(h.sum(axis=1), 1, atol=1e-6)):
        raise PonnError("The policy gave numbers that are not probabilities: expected no negative ones and row sums 1.")
    return h


# One value --------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """How a value is to be found."""

    estimator: str = "dr"
    level: float = 0.95
    interval: str = "normal"
    parameter: float | None = None  # m, tau or lambda of the estimators that have one; None: chosen by the rows
    seed: int = 0


def evaluate(
    policy: Valued,
    log: Log,
    estimator: str = "dr",
    level: float = 0.95,
    *,
    interval: str = "normal",
    parameter: float | None = None,
    allow_low_overlap: bool = False,
    settings: Settings | None = None,
    corrections: Nuisances | None = None,
    seed: int = 0,
) -> Estimate:
    """The value of a policy on a log it never saw, in the log's unit, with an interval.

    policy: a Policy, valued as it recommends (arg max, Algorithm 2); Sampled(policy), valued as it draws;
    SupportedOnly(policy), which takes only actions that the log supports; FixedAction("AC"); CurrentPractice();
    probabilities [n, k], or a function from rows to them.
    estimator: dr (default), sndr, ips, snips, truncated-ips, switch-dr, dros or dm. interval: normal; bootstrap, which
    refits the propensities; bernstein, for every number of rows; sequence, valid however often one looks.
    Raises LowOverlap, which carries the number, where it cannot be trusted; allow_low_overlap returns it marked.
    """
    check_options(log, estimator, level, interval)
    log = unseen_rows(policy, log)
    fitted = corrections or nuisances(log, settings, seed=seed)
    found = value_on(policy, log, fitted, estimator, level, interval, parameter, seed)
    if not found.trusted and not allow_low_overlap:
        raise LowOverlap(found)
    return found


def check_options(log: Log, estimator: str, level: float, interval: str) -> None:
    """Raise PonnError for what cannot be asked for."""
    check_estimator(estimator)
    check_level(level)
    if interval not in INTERVALS:
        raise PonnError(f"There is no interval {interval!r}; expected one of {', '.join(INTERVALS)}.")
    if interval in FOR_EVERY_N and estimator not in ("ips", "truncated-ips"):
        raise PonnError(f"The interval {interval!r} belongs to ips; ask for estimator='ips', not {estimator!r}.")
    if interval == "bootstrap" and estimator == "dm":
        raise PonnError(
            "The bootstrap refits the propensities but not the reward model, so it would leave out the error that "
            "matters to dm; ask for interval='normal', or for another estimator, e.g. 'dr'."
        )
    if interval == "sequence" and (log.weight is not None or log.columns.group is not None):
        raise PonnError("The interval 'sequence' knows neither row weights nor groups; ask for 'bernstein'.")


def check_level(level: float) -> None:
    """Raise PonnError unless an interval can have this confidence."""
    if not 0.5 <= level < 1:
        raise PonnError(f"The level is {level}; expected a number from 0.5 to below 1, e.g. 0.95.")


def unseen_rows(policy: Valued, log: Log) -> Log:
    """The rows that the policy did not learn from, where the log is the one that learning had split."""
    source = source_of(policy)
    if seals(source.get("whole"), log):
        return log.take(log.split_rows(1 - source["holdout"], source["seed"])[1])
    return log


def source_of(policy: Valued) -> Mapping[str, Any]:
    """Where a policy was learned from; nothing for those that were not learned."""
    learned = learned_policy(policy)
    return {} if learned is None else learned.provenance.get("source", {})


def learned_policy(policy: Valued) -> Policy | None:
    """The learned policy that is valued, or that a valued one rests on."""
    found = policy.policy if isinstance(policy, Sampled | SupportedOnly) else policy
    return found if isinstance(found, Policy) else None


def seed_of(policy: Valued) -> int:
    """The seed that a policy was learned and valued with; to use it again gives the same folds and numbers."""
    return int(source_of(policy).get("seed", 0))


@dataclass(frozen=True, eq=False)
class Scored:
    """A policy on the rows of a log: what its value is made of, and what speaks against trusting it."""

    log: Log
    fitted: Nuisances
    h: np.ndarray  # [n, k]
    t: Terms
    overlap: Overlap
    rare: tuple[str, ...]  # actions it wants that the log hardly contains
    reused: tuple[str, ...]  # whether the policy knows the rows
    moved: tuple[str, ...]  # whether it had to choose otherwise, because its choice is not eligible
    unacquainted: tuple[str, ...] = ()  # whether nothing says which rows it knows

    def doubts(self, estimator: str) -> tuple[str, ...]:
        """Why its value should not be trusted; nothing where it can be."""
        alone = self.group is not None and len(np.unique(self.group)) < 2
        one_group = ("all its rows belong to one group, so nothing says how much groups differ",) if alone else ()
        return (*self.overlap.doubts(estimator not in BY_WEIGHTS_ALONE), *self.rare, *self.reused, *one_group)

    def cautions(self, estimator: str) -> tuple[str, ...]:
        """What is to be told of its value, trusted or not."""
        return (*self.moved, *self.unacquainted, *self.overlap.cautions(estimator not in BY_WEIGHTS_ALONE))

    @cached_property
    def group(self) -> np.ndarray | None:
        """Rows of one group share a number; None without groups."""
        return group_of(self.log)

    def valuation(self, asked: Asked) -> Valuation:
        """Its value, with the influence of each row."""
        return valuation(asked.estimator, self.t, asked.parameter, self.group)


def scored(policy: Valued, log: Log, fitted: Nuisances) -> Scored:
    """The policy on these rows."""
    h = probabilities_on(policy, log)
    t = terms(h, log.A, log.R, fitted.p, fitted.Q, log.weight)
    seen, taken = overlap(t.w * t.weight), np.bincount(log.A, minlength=h.shape[1])
    rare = hardly_logged(log.actions, h.mean(axis=0), taken)
    told = (known_rows(policy, log), not_eligible(policy, log), unacquainted(policy))
    return Scored(log, fitted, h, t, seen, rare, *told)


def hardly_logged(actions: Sequence[Any], wanted: np.ndarray, taken: np.ndarray) -> tuple[str, ...]:
    """Actions that a policy wants, by their share, and the log hardly contains, by their rows."""
    return tuple(
        f"the policy takes action {action!r} in {share:.1%} of the rows, the log only in {int(count)} of them"
        for action, share, count in zip(actions, wanted, taken, strict=True)
        if share >= WANTED and count < FEWEST_LOGGED
    )


def known_rows(policy: Valued, log: Log) -> tuple[str, ...]:
    """Whether the policy learned from these rows; nothing where it did not."""
    source = source_of(policy)
    if not source:
        return ()
    if seals(source.get("digest"), log):
        return (LEARNED_FROM_THESE,)
    if seals(source.get("whole"), log):
        return ("the policy learned from most of these rows",)
    return known_among(policy, log)


def known_among(policy: Valued, log: Log) -> tuple[str, ...]:
    """Whether the policy learned from some of these rows, as far as the file beside its own tells."""
    learned = learned_policy(policy)
    kept = None if learned is None else learned.acquaintance
    known = 0.0 if kept is None else kept.known_share(log)
    return (f"the policy learned from about {known:.0%} of these rows",) if known >= KNOWN else ()


def unacquainted(policy: Valued) -> tuple[str, ...]:
    """A warning where the file that knows the policy's rows again is not at hand."""
    learned = learned_policy(policy)
    if learned is None or learned.acquaintance is not None or not source_of(policy):
        return ()
    return (
        "whether it learned from some of these rows is not known: the .rows file, which stands beside the policy file "
        "where it was learned, is not at hand",
    )


def value_on(
    policy: Valued,
    log: Log,
    fitted: Nuisances,
    estimator: str,
    level: float,
    interval: str = "normal",
    parameter: float | None = None,
    seed: int = 0,
) -> Estimate:
    """An estimate in the log's unit; marked where it is not to be trusted."""
    if isinstance(policy, CurrentPractice):
        return practice_on(log, level)
    return value_of(scored(policy, log, fitted), Asked(estimator, level, interval, parameter, seed))


def practice_on(log: Log, level: float) -> Estimate:
    """Current practice on these rows, in the log's unit."""
    found, group = logged_value(log.R, log.weight), group_of(log)
    told = estimated(found, "mean", normal_interval(found, level, group), float(len(log)), group=group)
    return told.in_unit(log.reward_range, log.minimize)


def value_of(one: Scored, asked: Asked, again: np.ndarray | None = None) -> Estimate:
    """An estimate in the log's unit; `again`: values on resamples, where they were made already."""
    found = one.valuation(asked)
    if asked.interval == "bootstrap":
        ends = percentile_interval(replicates([one], asked)[:, 0] if again is None else again, asked.level)
    else:
        ends = interval_of(one, found, asked)
    return told(found, ends, asked, one)


def told(found: Valuation, ends: Interval, asked: Asked, one: Scored, other: Scored | None = None) -> Estimate:
    """An estimate in the log's unit from a value or a paired difference and its interval, with all doubts."""
    sides = [one] if other is None else [one, other]
    ess = min(side.overlap.ess for side in sides)
    made = estimated(found, asked.estimator, ends, ess, group=one.group, difference=other is not None)
    warnings = [warning for side in sides for warning in side.cautions(asked.estimator)]
    if asked.interval in FOR_EVERY_N and one.fitted.model != "known":
        warnings.append(f"the interval {asked.interval!r} takes the estimated propensities as true")
    made = replace(made, warnings=tuple(dict.fromkeys(warnings)))
    doubts = dict.fromkeys(doubt for side in sides for doubt in side.doubts(asked.estimator))
    return made.in_unit(one.log.reward_range, one.log.minimize).distrusted(*doubts)


def group_of(log: Log) -> np.ndarray | None:
    """Rows of one group share a number; None without groups."""
    return None if log.columns.group is None else log.group_numbers()


def interval_of(one: Scored, found: Valuation, asked: Asked, minus_logging: bool = False) -> Interval:
    """The interval asked for, but for the bootstrap; minus_logging: of the value less that of current practice."""
    t, level = one.t, asked.level
    if asked.interval == "bernstein":
        return bernstein_interval(t.w, t.R, level, weight=t.weight, group=one.group, minus_logging=minus_logging)
    if asked.interval == "sequence":
        low, high = confidence_sequence(t.w, t.R, level, minus_logging=minus_logging)
        return Interval(float(low[-1]), float(high[-1]), "sequence", level)
    return normal_interval(found, level, one.group)


def replicates(sides: Sequence[Scored], asked: Asked) -> np.ndarray:
    """Values of policies on resamples of their rows, those of current practice last; propensities are refitted.

    The reward model is not: doubly robust values hardly depend on it.
    """
    log, fitted = sides[0].log, sides[0].fitted

    def again(rows: np.ndarray) -> tuple[float, ...]:
        part, p = log.take(rows), refitted_propensities(log, fitted, rows, asked.seed)
        Q = None if fitted.Q is None else fitted.Q[rows]
        made = (terms(one.h[rows], part.A, part.R, p, Q, part.weight) for one in sides)
        values = (valuation(asked.estimator, t, asked.parameter, group_of(part)).value for t in made)
        return (*values, logged_value(part.R, part.weight).value)

    return bootstrap(again, len(log), BOOTSTRAPS, asked.seed, sides[0].group)  # [repetitions, policies + 1]


def refitted_propensities(log: Log, fitted: Nuisances, rows: np.ndarray, seed: int) -> np.ndarray:
    """Propensities of a resample, estimated again where they were estimated, each row's from other folds.

    Copies of a row stay in one fold, like the rows of a group: a model that saw its copy has seen the row.
    """
    if fitted.model == "known":
        return fitted.p[rows]
    part = log.take(rows)
    if log.columns.group is None:
        table = part.table.append_column(ORIGINAL_ROW, pa.array(rows))
        part = replace(part, table=table, columns=replace(part.columns, group=ORIGINAL_ROW))
    encoding = Encoding.fit(part, fitted.settings)
    return propensities(part, encoding, fitted.settings, folds=fitted.folds, seed=seed).p


# Several policies on the same rows -------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Values of several policies on the same rows, verdicts against current practice, and paired differences."""

    values: Mapping[str, Estimate]
    verdicts: Mapping[str, Verdict]
    differences: Mapping[tuple[str, str], Estimate] = field(default_factory=dict)  # first less second, each by itself


def compare_policies(
    policies: Mapping[str, Valued],
    log: Log,
    estimator: str = "dr",
    level: float = 0.95,
    *,
    interval: str = "normal",
    settings: Settings | None = None,
    corrections: Nuisances | None = None,
    seed: int = 0,
) -> Comparison:
    """Value policies on the same rows with the same corrections, and say of each whether it beats current practice.

    "better" holds with probability `level`: the lower end of the paired difference is a one-sided bound at that level.
    Differences between policies are paired as well, their intervals two-sided at `level`.
    """
    check_options(log, estimator, level, interval)
    fitted = corrections or nuisances(log, settings, seed=seed)
    asked = Asked(estimator, level, interval, None, seed)
    names = [name for name, one in policies.items() if not isinstance(one, CurrentPractice)]
    sides = {name: scored(policies[name], log, fitted) for name in names}
    drawn = replicates(list(sides.values()), asked) if interval == "bootstrap" and sides else None
    again: dict[str | None, np.ndarray] = {} if drawn is None else dict(zip([*names, None], drawn.T, strict=True))
    values = {
        name: value_of(sides[name], asked, again.get(name)) if name in sides else practice_on(log, level)
        for name in policies
    }
    verdicts = {name: judged(one, asked, drawn_gain(again, name, None)) for name, one in sides.items()}
    differences = {
        (one, other): difference(sides[one], sides[other], asked, drawn_gain(again, one, other))
        for one, other in combinations(names, 2)
    }
    return Comparison(values, verdicts, differences)


def drawn_gain(again: Mapping[str | None, np.ndarray], one: str, other: str | None) -> np.ndarray | None:
    """One policy's values on resamples less another's (None: current practice), where there are any."""
    return again[one] - again[other] if again else None


def judged(one: Scored, asked: Asked, again: np.ndarray | None = None) -> Verdict:
    """The verdict of a policy against current practice; `again`: differences on resamples, where they were made."""
    asked = asked._replace(level=both_sides(asked.level))
    gain = one.valuation(asked) - logged_value(one.log.R, one.log.weight)
    if asked.interval == "bootstrap":
        ends = percentile_interval(resampled_gain(one, asked) if again is None else again, asked.level)
    else:
        ends = interval_of(one, gain, asked, minus_logging=True)
    found = estimated(gain, asked.estimator, ends, one.overlap.ess, group=one.group, difference=True)
    return verdict(found.distrusted(*one.doubts(asked.estimator))).in_unit(one.log.reward_range, one.log.minimize)


def resampled_gain(one: Scored, asked: Asked) -> np.ndarray:
    """The value less that of current practice on resamples."""
    value, practice = replicates([one], asked).T
    return value - practice  # [repetitions]


def difference(one: Scored, other: Scored, asked: Asked, again: np.ndarray | None) -> Estimate:
    """The paired difference of two policies in the log's unit; `again`: differences on resamples.

    Bounds for every n have no paired form here: each value gets half of the error, and their ends are subtracted.
    """
    gain = one.valuation(asked) - other.valuation(asked)
    if again is not None:
        ends = percentile_interval(again, asked.level)
    elif asked.interval in FOR_EVERY_N:
        half = asked._replace(level=(1 + asked.level) / 2)
        first, second = (interval_of(side, side.valuation(half), half) for side in (one, other))
        ends = Interval(first.low - second.high, first.high - second.low, asked.interval, asked.level)
    else:
        ends = normal_interval(gain, asked.level, one.group)
    return told(gain, ends, asked, one, other)


def gain_over(one: Scored, other: Scored, asked: Asked) -> Estimate:
    """The paired difference of two policies, above 0 where the first is better; `verdict` says whether it is.

    Each end is a one-sided bound at the level asked for.
    """
    asked = asked._replace(level=both_sides(asked.level))
    return difference(one, other, asked, None).as_gain(one.log.minimize)
