"""The report's sections on the log: what was in it, and what it cannot tell."""

from collections.abc import Iterable

from ponn.evaluation.intervals import percent
from ponn.policy.disclosure import fewer_than
from ponn.policy.policy import SUPPORT_FLOOR, Policy
from ponn.report.charts import (
    MOST_LINES,
    balance_chart,
    support_chart,
    weight_chart,
)
from ponn.report.drawing import in_percent, safe, shortened
from ponn.report.findings import Findings, Reported
from ponn.report.markup import columns_of, cut_told, figure, figures, folded, name, some, table
from ponn.report.value_sections import no_values, small_is_good
from ponn.steps.propensity import Overlap

NAMED = 12  # actions in a table that is open; more are folded
BALANCED = 0.1  # standard deviations: a usual mark for "alike"


def whose_rows(found: Findings) -> str:
    """Which rows the numbers come from."""
    if found.kept_aside:
        return f"Valued on {found.rows:,} of {found.log_rows:,} rows, which learning never saw."
    return f"Valued on all {found.rows:,} rows of the log given."


# The log -----------------------------------------------------------------------------------------------------


def log_section(found: Findings) -> str:
    """Actions, features and notes."""
    rows, reward = found.policy.made("rows", "reward")
    low, high = reward["range"]
    stopped = f" and was stopped by {rows['valid']:,} others" if rows["valid"] else ", each in turn held out"
    first = (
        f"<p>{found.log_rows:,} past cases, {len(found.actions)} actions, {len(found.features)} features. The outcome "
        f"is <b>{name(found.reward)}</b>, from {low:g} to {high:g}; {'small' if small_is_good(found) else 'large'} is "
        f"good. The policy learned from {rows['train']:,} rows{stopped}. "
        f"{safe(whose_rows(found))}</p>"
    )
    eligible = {one.action: (in_percent(one.rows / found.log_rows),) for one in found.eligible}
    actions = [
        (
            one.action,
            fewer_than(one.rows, found.min_cell),
            share_told(one.rows, found),
            "" if one.mean_reward is None else figures(one.mean_reward),
            *eligible.get(one.action, ()),
        )
        for one in sorted(found.actions, key=lambda one: -one.rows)
    ]
    means = (
        "<p class='pale'>These means are what came of past choices. They do not compare the actions: who got which "
        "action was no accident.</p>"
    )
    features = [
        (one.name, one.kind, fewer_than(one.missing, found.min_cell), shortened(one.values)) for one in found.features
    ]
    columns = ("action", "#rows", "#share", f"#mean {found.reward}", *(("#eligible in",) if eligible else ()))
    taken = table(columns, actions)
    taken = taken if len(actions) <= NAMED else folded(f"{len(actions)} actions", taken)
    return (
        f"{first}<h3>Actions taken</h3>{taken}{means}{rules_told(found.policy)}"
        + folded(f"{len(features)} features", table(("feature", "kind", "#missing", "values"), features))
        + notes_told([*found.notes, *found.policy.provenance.get("notes", ())])
    )


def rules_told(policy: Policy) -> str:
    """Where an action is not available: the policy keeps to it."""
    if policy.eligibility is None:
        return ""
    return f"<h3>Where an action is not available</h3>{some(policy.eligibility.sentences)}"


def notes_told(notes: Iterable[str]) -> str:
    """What reading and learning changed or found odd."""
    lines = list(dict.fromkeys(notes))
    return f"<h3>Notes</h3>{some(lines)}" if lines else ""


# Overlap and balance -----------------------------------------------------------------------------------------


def overlap_section(found: Findings) -> str:
    """What the log cannot tell: gaps, weights, support, balance."""
    intro = (
        "<p>A log can only tell how an action does for cases that sometimes got it. Where it was never tried, every "
        "number here is a guess.</p>"
    )
    if found.worth is None:
        return intro + no_values(found) + support_told(found)
    if found.overlap is None:
        return intro + columns_of(weights_told(found.worth, found.min_cell), support_told(found))
    return (
        intro
        + gaps_told(found.overlap, found.rows, found.min_cell)
        + columns_of(weights_told(found.worth, found.min_cell), support_told(found), balance_told(found, found.overlap))
        + folded("Propensities by action", step_a_table(found.overlap, found.min_cell))
    )


def share_told(rows: int, found: Findings) -> str:
    """The share of the log that these rows are, unless they are a few people."""
    return in_percent(rows / found.log_rows) if rows >= found.min_cell or not rows else ""


def gaps_told(seen: Overlap, rows: int, min_cell: int) -> str:
    """Who almost never got what, in sentences."""
    lines = list(seen.sentences)
    if seen.unsupported:
        floor = percent(SUPPORT_FLOOR)
        unsupported = fewer_than(seen.unsupported, min_cell)
        lines.append(f"In {unsupported} of {rows:,} rows some action had an estimated propensity under {floor}.")
    return some(lines) if lines else "<p>No such gap was found in a single feature.</p>"


def weights_told(worth: Reported, min_cell: int) -> str:
    """How much of the log speaks for the policy."""
    reach = worth.reach
    hint = (
        f"{reach.n:,} rows count as {reach.ess:,.0f} for this policy; the heaviest holds "
        f"{in_percent(reach.largest_share)} of all weight. Pareto k is {reach.pareto_k:.2f}; up to "
        f"{reach.pareto_limit:.2f} is fine."
    )
    rows = [
        (one.name, fewer_than(one.rows, min_cell), in_percent(one.share_of_rows), in_percent(one.share_of_weight))
        for one in worth.weights
    ]
    columns = ("weight", "#rows", "#share of rows", "#share of weight")
    return figure(weight_chart(worth.weights), "Weights of the rows", hint, columns, rows)


def support_told(found: Findings) -> str:
    """Where the log supports each action."""
    if found.support is None:
        return ""
    shares = zip(found.policy.actions, found.support.share.tolist(), strict=True)
    ordered = sorted(shares, key=lambda one: -one[1])
    hint = (
        f"The recommended action is supported in {in_percent(found.support.recommended)} of the rows. Supported: taken "
        f"in such cases with an estimated probability of at least {percent(SUPPORT_FLOOR)}."
    )
    rows = [(action, in_percent(share)) for action, share in ordered]
    picture = support_chart({str(action): share for action, share in ordered})
    return figure(picture, "Support of each action", hint, ("action", "#rows in which it is supported"), rows)


def balance_told(found: Findings, seen: Overlap) -> str:
    """Do the rows of an action look like all rows, before and after weighting?"""
    features = [one.name for one in found.features]
    before, after = seen.balance_before.max(axis=0), seen.balance_after.max(axis=0)  # [d]
    hint = (
        "Largest distance between the rows of any action and all rows. Weights should bring it near 0; after weighting "
        f"{int((after > BALANCED).sum())} of {len(features)} features are still above the mark of {BALANCED:g}. "
        + cut_told(len(features), "features", MOST_LINES)
    )
    rows = [
        (action, feature, f"{seen.balance_before[a, i]:.3f}", f"{seen.balance_after[a, i]:.3f}")
        for a, action in enumerate(seen.actions)
        for i, feature in enumerate(features)
    ]
    picture = balance_chart(features, before, after, mark=BALANCED)
    return figure(picture, "Balance of the features", hint, ("action", "feature", "#before", "#after"), rows)


def step_a_table(seen: Overlap, min_cell: int) -> str:
    """What Step A says of each action that more than a few people got."""
    rows = [
        (
            action,
            fewer_than(int(seen.rows[a]), min_cell),
            f"{seen.effective[a]:,.0f}",
            figures(seen.largest_weight[a]),
            figures(seen.mean_inverse[a]),
            "" if seen.calibration is None else figures(seen.calibration[a]),
        )
        for a, action in enumerate(seen.actions)
    ]
    columns = ("action", "#rows", "#effective rows", "#largest weight", "#mean 1/p (should be 1)", "#calibration error")
    return table(columns, rows)
