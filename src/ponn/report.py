"""The report: what was found about a policy as one HTML file that opens without a network, on a phone and on paper.

Computing is in `findings.py`, pictures are in `charts.py`; here both become sections, in the order of `SECTIONS`.
Every picture has the table of its numbers behind it, and every number that is not to be trusted says so.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ponn.charts import (
    MOST,
    MOST_LINES,
    NAME,
    NARROW,
    balance_chart,
    bar_pairs,
    calibration_chart,
    heat_map,
    in_figures,
    line_chart,
    relevance_bars,
    support_chart,
    value_chart,
    weight_chart,
)
from ponn.confounding import HiddenConfounding, what_overturns
from ponn.drawing import in_percent, safe, shortened
from ponn.errors import PonnError, one_line
from ponn.evaluation import Nuisances
from ponn.findings import Findings, RelevanceGrid, Reported, findings
from ponn.glossary import ABOUT_ESTIMATORS, GLOSSARY
from ponn.intervals import Estimate, percent
from ponn.log import Log
from ponn.markup import Html, columns_of, each, figure, figures, folded, name, scroll, some, table
from ponn.policy import Policy
from ponn.propensity import SUPPORT_FLOOR, Overlap
from ponn.settings import METHODS, Settings
from ponn.subgroups import Subgroup
from ponn.surrogate import Leaf, Question

LINE_HEIGHT = 220  # pixels of a line chart
NAMED = 12  # features of an action in its line, actions in a table that is open; more are folded or counted
BALANCED = 0.1  # standard deviations: a usual mark for "alike"
NOT_TRUSTED = Html("<span class='doubt'>not trusted</span>")


def write_report(
    policy: Policy,
    log: Log,
    path: str | os.PathLike[str],
    *,
    rows: Log | None = None,
    corrections: Nuisances | None = None,
    level: float = 0.95,
    by: str | Sequence[str] = (),
    progress: Callable[[str], Any] | None = None,
) -> Findings:
    """Write the report on a policy as one HTML file; the arguments are those of `findings`, which it returns."""
    found = findings(policy, log, rows=rows, corrections=corrections, level=level, by=by, progress=progress)
    try:
        Path(path).write_text(report_page(found), encoding="utf-8")
    except OSError as error:
        raise PonnError(f"The report {path} could not be written: {one_line(error)}.") from error
    return found


def report_page(found: Findings) -> str:
    """The whole page."""
    heading = f"Report on a policy for {shortened(found.policy.provenance['columns']['action'])}"
    links = each("li", (f"<a href='#{id}'>{safe(title)}</a>" for id, title, _ in sections_of(found)))
    top = f"<header><h1>{safe(heading)}</h1>{subtitle(found)}<nav aria-label='Sections'><ol>{links}</ol></nav></header>"
    sections = "\n".join(
        f"<section aria-labelledby='{id}'><h2 id='{id}'>{safe(title)}</h2>\n{make(found)}</section>"
        for id, title, make in sections_of(found)
    )
    foot = "<footer>Made by ponn. This file is complete in itself: nothing is loaded from anywhere.</footer>"
    template = Template(files("ponn").joinpath("page/report.html").read_text(encoding="utf-8"))
    return template.substitute(title=safe(heading), body=f"{top}\n<main>\n{sections}\n</main>\n{foot}")


def sections_of(found: Findings) -> list[tuple[str, str, Callable[[Findings], str]]]:
    """The sections of this report: who gains is told where it was asked."""
    return [one for one in SECTIONS if found.by or one[0] != "gains"]


def subtitle(found: Findings) -> str:
    """The policy in a line."""
    policy = found.policy
    told = f"Method {policy.method}, {len(policy.actions)} actions, {len(policy.encoding.features)} features."
    return f"<p class='pale'>{safe(told)} {safe(whose_rows(found))}</p>"


def whose_rows(found: Findings) -> str:
    """Which rows the numbers come from."""
    if found.kept_aside:
        return f"Valued on {found.rows:,} of {found.log_rows:,} rows, which learning never saw."
    return f"Valued on all {found.rows:,} rows of the log given."


# Verdict -----------------------------------------------------------------------------------------------------


def verdict_section(found: Findings) -> str:
    """One sentence, then the values side by side."""
    worth = found.worth
    if worth is None:
        return f"<p class='verdict doubted'>What this policy is worth is not known: {safe(found.why_no_worth)}.</p>"
    look = "doubted" if not worth.policy.trusted else "better" if worth.verdict.kind == "better" else "open"
    sentence = f"<p class='verdict {look}'>{verdict_sentence(found, worth)}</p>"
    values = values_by_policy(worth)
    outcome = f"mean {found.reward}"
    picture = value_chart(values, name="Value of each policy", x_name=outcome, reference=worth.logging.value)
    good = "Small" if small_is_good(found) else "Large"
    hint = f"{percent(found.level)} intervals. {good} is good. Ticks: current practice."
    shown = figure(picture, f"What each policy is worth: {outcome}", hint, VALUE_COLUMNS, value_rows(values))
    return sentence + columns_of(shown, f"<div>{difference_told(worth)}</div>")


def verdict_sentence(found: Findings, worth: Reported) -> str:
    """The verdict, value and interval of the policy, current practice and the best fixed action."""
    outcome, fixed = f"the mean <b>{name(found.reward)}</b>", ""
    if worth.fixed is not None:
        fixed = f"; giving everyone {name(worth.fixed_action)}, the best single action, would have made it "
        fixed += told(worth.fixed)
    if not worth.policy.trusted:
        return (
            f"The log says too little to tell what this policy is worth: {safe('; '.join(worth.policy.warnings))}. "
            f"The number it gives for {outcome} is {told(worth.policy)}, against {told(worth.logging)} under current "
            f"practice{fixed}."
        )
    sure = percent(worth.verdict.level)
    kinds = {
        "better": f"Better than current practice with {sure} confidence:",
        "not better": f"Not better than current practice, with {sure} confidence:",
        "not enough evidence": "Not enough evidence to say whether it is better than current practice:",
    }
    return (
        f"<strong>{kinds[worth.verdict.kind]}</strong> following this policy, {outcome} would have been "
        f"{told(worth.policy)} instead of {told(worth.logging)}{fixed}."
    )


def difference_told(worth: Reported) -> str:
    """The paired difference, what would settle it, and the safer policy."""
    sentences = [
        f"The difference to current practice on the same rows is {told(worth.verdict.difference)}. The verdict goes "
        "by the ends of this interval."
    ]
    if worth.verdict.rows_needed:
        sentences.append(f"About {worth.verdict.rows_needed:,} rows like these would settle it.")
    if worth.supported_only is not None:
        sentences.append(
            f"Restricted to actions that the log supports, the policy is worth {told(worth.supported_only)}."
        )
    return each("p", sentences)


def values_by_policy(worth: Reported) -> dict[str, Estimate]:
    """The values that are shown together."""
    values = {"this policy": worth.policy, "current practice": worth.logging}
    if worth.fixed is not None:
        values[f"always {shortened(worth.fixed_action)}"] = worth.fixed
    if worth.supported_only is not None:
        values["this policy, supported actions only"] = worth.supported_only
    return values


VALUE_COLUMNS = ("", "#value", "#low", "#high", "#effective rows", "")


def value_rows(values: Mapping[str, Estimate]) -> list[tuple[object, ...]]:
    """Values with intervals and reasons to doubt them."""
    return [
        (who, figures(one.value), figures(one.low), figures(one.high), f"{one.ess:,.0f} of {one.n:,}", doubts(one))
        for who, one in values.items()
    ]


def doubts(one: Estimate) -> Html:
    """Why a number is not to be trusted, or what else is to be known about it."""
    mark = "" if one.trusted else f"{NOT_TRUSTED} "
    return Html(mark + safe("; ".join(one.warnings)))


def told(one: Estimate) -> Html:
    """A value with its interval; marked where it is not to be trusted."""
    value, ends = in_figures(one).removesuffix(")").split(" ", 1)
    mark = "" if one.trusted else f", {NOT_TRUSTED}"
    level = percent(one.level).replace(" ", "&nbsp;")
    return Html(f"<b>{value}</b> {ends}, {level}{mark})")


def small_is_good(found: Findings) -> bool:
    """Is a small outcome good?"""
    return bool(found.policy.provenance["reward"]["minimize"])


# The log -----------------------------------------------------------------------------------------------------


def log_section(found: Findings) -> str:
    """Actions, features and notes."""
    rows, (low, high) = found.policy.provenance["rows"], found.policy.provenance["reward"]["range"]
    first = (
        f"<p>{found.log_rows:,} past cases, {len(found.actions)} actions, {len(found.features)} features. The outcome "
        f"is <b>{name(found.reward)}</b>, from {low:g} to {high:g}; {'small' if small_is_good(found) else 'large'} is "
        f"good. The policy learned from {rows['train']:,} rows and was stopped by {rows['valid']:,} others. "
        f"{safe(whose_rows(found))}</p>"
    )
    eligible = {one.action: (in_percent(one.rows / found.log_rows),) for one in found.eligible}
    actions = [
        (
            one.action,
            f"{one.rows:,}",
            in_percent(one.rows / found.log_rows),
            figures(one.mean_reward),
            *eligible.get(one.action, ()),
        )
        for one in sorted(found.actions, key=lambda one: -one.rows)
    ]
    means = (
        "<p class='pale'>These means are what came of past choices. They do not compare the actions: who got which "
        "action was no accident.</p>"
    )
    features = [(one.name, one.kind, f"{one.missing:,}", shortened(one.values)) for one in found.features]
    columns = ("action", "#rows", "#share", f"#mean {found.reward}", *(("#eligible in",) if eligible else ()))
    taken = table(columns, actions)
    taken = taken if len(actions) <= NAMED else folded(f"{len(actions)} actions", taken)
    return (
        f"{first}<h3>Actions taken</h3>{taken}{means}{rules_told(found.policy)}"
        + folded(f"{len(features)} features", table(("feature", "kind", "#missing", "values"), features))
        + notes_told([*found.notes, *found.policy.provenance["notes"]])
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
        return intro + columns_of(weights_told(found.worth), support_told(found))
    return (
        intro
        + gaps_told(found.overlap, found.rows)
        + columns_of(weights_told(found.worth), support_told(found), balance_told(found, found.overlap))
        + folded("Propensities by action", step_a_table(found.overlap))
    )


def no_values(found: Findings) -> str:
    """Why there are none."""
    return f"<p class='warning'>Nothing can be said: {safe(found.why_no_worth)}.</p>"


def gaps_told(seen: Overlap, rows: int) -> str:
    """Who almost never got what, in sentences."""
    lines = list(seen.sentences)
    if seen.unsupported:
        floor = percent(SUPPORT_FLOOR)
        lines.append(f"In {seen.unsupported:,} of {rows:,} rows some action had an estimated propensity under {floor}.")
    return some(lines) if lines else "<p>No such gap was found in a single feature.</p>"


def weights_told(worth: Reported) -> str:
    """How much of the log speaks for the policy."""
    reach = worth.reach
    hint = (
        f"{reach.n:,} rows count as {reach.ess:,.0f} for this policy; the heaviest holds "
        f"{in_percent(reach.largest_share)} of all weight. Pareto k is {reach.pareto_k:.2f}; up to "
        f"{reach.pareto_limit:.2f} is fine."
    )
    rows = [
        (one.name, f"{one.rows:,}", in_percent(one.share_of_rows), in_percent(one.share_of_weight))
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


def step_a_table(seen: Overlap) -> str:
    """What Step A says of each action."""
    rows = [
        (
            action,
            f"{seen.rows[a]:,}",
            f"{seen.effective[a]:,.0f}",
            figures(seen.largest_weight[a]),
            figures(seen.mean_inverse[a]),
            "" if seen.calibration is None else figures(seen.calibration[a]),
        )
        for a, action in enumerate(seen.actions)
    ]
    columns = ("action", "#rows", "#effective rows", "#largest weight", "#mean 1/p (should be 1)", "#calibration error")
    return table(columns, rows)


# Relevance ---------------------------------------------------------------------------------------------------


def relevance_section(found: Findings) -> str:
    """The heat map, and per action what was selected."""
    grid = found.relevance
    if grid is None:
        d = len(found.policy.encoding.features)
        return f"<p>The method {safe(found.policy.method)} does not select features: every action looks at all {d}.</p>"
    intro = (
        "<p>How much the outcome of an action depends on a feature, corrected for how the actions were chosen. Only "
        "framed features can change the probability of that action.</p>"
    )
    order = np.argsort(-grid.G, axis=None, kind="stable")
    rows = [
        (grid.actions[a], *relevance_row(grid, a, i)) for a, i in zip(*np.divmod(order, grid.G.shape[1]), strict=True)
    ]
    hint = cut_told(len(grid.features), "features", MOST) + cut_told(len(grid.actions), "actions", MOST)
    columns = ("action", *RELEVANCE_COLUMNS)
    picture = figure(heat_map(grid), "Relevance of each feature for each action", hint, columns, rows)
    actions = "".join(action_told(grid, a) for a in range(len(grid.actions)))
    return f"{intro}{picture}<h3>Selected features by action</h3>{actions}"


RELEVANCE_COLUMNS = ("feature", "#relevance", "#threshold", "#bound", "selected")


def cut_told(count: int, what: str, most: int) -> str:
    """How many are in the picture, where not all are."""
    return f"{most} of {count} {what} are shown. " if count > most else ""


def relevance_row(grid: RelevanceGrid, a: int, i: int) -> tuple[object, ...]:
    """One pair in numbers."""
    bound = "" if math.isnan(grid.total[a, i]) else f"±{figures(grid.total[a, i])}"
    kept = "yes" if grid.selected[a, i] else "no"
    return grid.features[i], figures(grid.G[a, i]), figures(grid.tau[a, i]), bound, kept


def action_told(grid: RelevanceGrid, a: int) -> str:
    """What one action looks at, in a line that opens."""
    kept = [i for i in np.argsort(-grid.G[a], kind="stable").tolist() if grid.selected[a, i]]
    names = ", ".join(shortened(grid.features[i], 40) for i in kept[:NAMED])
    names += f" and {len(kept) - NAMED} more" if len(kept) > NAMED else ""
    line = f"<b>{name(grid.actions[a])}</b>: {safe(names) or 'nothing; its probability is the same for everyone'}"
    if a >= MOST:
        return f"<p>{line}</p>"
    picture = scroll(relevance_bars(grid, grid.actions[a], grid, most=NAMED), "Relevance for this action")
    behind = picture + table(RELEVANCE_COLUMNS, [relevance_row(grid, a, i) for i in kept])
    return folded(Html(line), behind, on_paper="line")


# What it does ------------------------------------------------------------------------------------------------


def does_section(found: Findings) -> str:
    """The policy in a few questions, and how often it recommends what."""
    return columns_of(f"<div>{surrogate_told(found)}</div>", shares_told(found))


def surrogate_told(found: Findings) -> str:
    """The tree that imitates the policy, with its fidelity."""
    tree = found.surrogate
    if tree is None:
        return f"<p>{safe(found.why_no_surrogate)}</p>"
    agrees = (
        f"on {tree.rows_measured:,} rows that it was not made from it agrees with the policy in "
        f"<b>{in_percent(tree.fidelity)}</b> of the cases (always saying the most frequent action would in "
        f"{in_percent(tree.constant)})."
    )
    if isinstance(tree.root, Leaf):
        return (
            f"<p>Nearly everyone is recommended <b>{name(tree.root.action)}</b>. Saying so is a summary: {agrees}</p>"
        )
    return (
        f"<p>Roughly, in a few questions. This summary is not the policy itself: {agrees} In brackets: in how many "
        "of the rows that came here it is right. A missing number counts as the mean.</p>"
        f"<ul class='tree'>{branches(tree.root)}</ul>"
    )


def branches(node: Question) -> str:
    """Both answers to a question, each a line with what follows from it."""
    return branch(node.yes_if, node.yes) + branch(node.no_if, node.no)


def branch(condition: str, node: Leaf | Question) -> str:
    """One answer to a question."""
    start = f"If {safe(shortened(condition, 200))}"
    if isinstance(node, Question):
        return f"<li>{start}:<ul>{branches(node)}</ul></li>"
    rows = f"{node.share:.0%}".replace("%", " %") + f" of {node.rows:,}"
    return f"<li>{start}: <b>{name(node.action)}</b> <span class='pale'>({rows})</span></li>"


def shares_told(found: Findings) -> str:
    """Recommended against logged actions."""
    ordered = dict(sorted(found.shares.items(), key=lambda one: -max(one[1])))
    bars = {str(action): shares for action, shares in ordered.items()}
    caption = "Recommended and logged actions"
    picture = bar_pairs(bars, ("recommended", "in the log"), name=caption)
    rows = [(action, in_percent(wanted), in_percent(logged)) for action, (wanted, logged) in ordered.items()]
    hint = f"Shares of the {found.rows:,} rows that the policy is valued on."
    return figure(picture, caption, hint, ("action", "#recommended", "#in the log"), rows)


# Estimators --------------------------------------------------------------------------------------------------


def estimators_section(found: Findings) -> str:
    """The same value by eight estimators."""
    if found.worth is None:
        return no_values(found)
    intro = (
        "<p>Eight ways to estimate the same number. The verdict goes by <b>dr</b>, which was fixed beforehand. Where "
        "they disagree by more than their intervals, the corrections are in doubt.</p>"
    )
    every = {who: found.worth.estimators[who] for who in ABOUT_ESTIMATORS}
    known = {who: one for who, one in every.items() if isinstance(one, Estimate)}
    outcome = f"mean {found.reward}"
    picture = value_chart(
        known, name="Value of the policy by estimator", x_name=outcome, reference=found.worth.logging.value
    )
    rows = value_rows(known) + [(who, "", "", "", "", one) for who, one in every.items() if isinstance(one, str)]
    hint = f"{percent(found.level)} intervals. Ticks: current practice."
    shown = figure(picture, f"This policy's {outcome}", hint, VALUE_COLUMNS, rows)
    about = table(("estimator", "what it is"), [(who, ABOUT_ESTIMATORS[who]) for who in every])
    return intro + columns_of(shown, about)


# Sensitivity -------------------------------------------------------------------------------------------------


def sensitivity_section(found: Findings) -> str:
    """How strong hidden reasons would have to be."""
    if found.worth is None:
        return no_values(found)
    seen, practice = found.worth.doubted, found.worth.logging.value
    intro = (
        "<p>Perhaps those who decided knew something that is not in the log. Gamma says how much that could have "
        "changed the odds of an action: at 1 nothing is hidden, at 2 the true odds may be twice or half of what the "
        "features tell. The lines are bounds on the value. The table has them with sampling error too, and those of "
        "the difference to current practice, which the verdict goes by.</p>"
    )
    doubt = "<p class='warning'><span class='doubt'>Not trusted</span>: the log says too little about this policy.</p>"
    lines = {
        "largest": [(one.gamma, one.value.largest) for one in seen],
        "practice": [(one.gamma, practice) for one in (seen[0], seen[-1])],
        "least": [(one.gamma, one.value.least) for one in seen],
    }
    y_name = f"mean {shortened(found.reward, 24)}"
    picture = line_chart(
        lines, name="Bounds on the value", x_name="Gamma", y_name=y_name, width=NARROW, high=LINE_HEIGHT
    )
    hint = what_overturns(found.worth.sensitivity.breaking_gamma)
    shown = figure(
        picture, "This policy's value under hidden confounding", hint, DOUBT_COLUMNS, list(map(doubt_row, seen))
    )
    return intro + ("" if found.worth.policy.trusted else doubt) + columns_of(shown)


DOUBT_COLUMNS = ("#Gamma", "#least", "#largest", "#low", "#high", "#difference: low", "#difference: high", "")


def doubt_row(one: HiddenConfounding) -> tuple[str, ...]:
    """Bounds at one strength: on the value without and with sampling error, on the difference with it."""
    value, gain = one.value, one.difference
    ends = (one.gamma, value.least, value.largest, value.low, value.high, gain.low, gain.high)
    return (*map(figures, ends), NOT_TRUSTED if one.warnings else "")


# Subgroups ---------------------------------------------------------------------------------------------------


def gains_section(found: Findings) -> str:
    """The difference to current practice per subgroup."""
    if found.worth is None or found.worth.subgroups is None:
        return no_values(found)
    groups, level = found.worth.subgroups.groups, percent(found.worth.subgroups.level)
    good = "Below" if small_is_good(found) else "Above"
    intro = (
        f"<p>What the policy changes for whom: its mean {name(found.reward)} minus that of current practice. {good} 0 "
        f"is good. All {3 * len(groups)} intervals of the table hold together with {level} confidence, however many "
        "subgroups are looked at. A subgroup whose interval holds 0 may gain or lose.</p>"
    )
    names = [f"{shortened(one.column, NAME)}: {one.level}" for one in groups]
    gains = {who: one.difference for who, one in list(zip(names, groups, strict=True))[:MOST_LINES]}
    caption = "Difference to current practice by subgroup"
    picture = value_chart(gains, name=caption, x_name=f"difference in mean {found.reward}", reference=0.0)
    hint = (
        f"Intervals hold together with {level}. Ticks: no difference. {cut_told(len(groups), 'subgroups', MOST_LINES)}"
    )
    rows = [gain_row(who, one) for who, one in zip(names, groups, strict=True)]
    return intro + columns_of(figure(picture, caption, hint, GAIN_COLUMNS, rows))


GAIN_COLUMNS = ("subgroup", "#rows", "#this policy", "#current practice", "#difference", "#low", "#high", "")


def gain_row(who: str, one: Subgroup) -> tuple[object, ...]:
    """One subgroup in numbers; several levels that were joined are counted."""
    joined = f" ({one.joined} levels)" if one.joined > 1 else ""
    gain = one.difference
    values = (one.policy.value, one.logging.value, gain.value, gain.low, gain.high)
    return (who + joined, f"{one.rows:,}", *map(figures, values), doubts(gain))


# Training and calibration ------------------------------------------------------------------------------------


def training_section(found: Findings) -> str:
    """Loss per epoch, where the model was trained in epochs."""
    training = found.policy.provenance["training"]
    history, loss = training.get("history"), f"Loss on the validation rows: {figures(training['valid_loss'])}."
    if not history:
        return f"<p>{safe(loss)} There are no training curves: this method is not trained in epochs.</p>"
    lines = {
        who: list(zip(history["epoch"], history[key], strict=True))
        for who, key in (("training", "train_loss"), ("validation", "valid_loss"))
    }
    picture = line_chart(lines, name="Loss per epoch", x_name="epoch", y_name="loss", width=NARROW, high=LINE_HEIGHT)
    columns = zip(
        history["epoch"], map(figures, history["train_loss"]), map(figures, history["valid_loss"]), strict=True
    )
    hint = f"The policy is that of epoch {training['best_epoch']} of {training['epochs']}. {loss}"
    return columns_of(
        figure(picture, "Training curves", hint, ("#epoch", "#training loss", "#validation loss"), list(columns))
    )


def calibration_section(found: Findings) -> str:
    """What the policy expects against what came."""
    if not found.calibration:
        return "<p>This policy carries no reward model, so it expects nothing.</p>"
    picture = calibration_chart(found.calibration, name="Predicted and observed outcomes", what=found.reward)
    hint = "Rows it never saw, in bins of equal size, for the action that was taken. Bars: 95 % intervals."
    rows = [(*map(figures, one[:4]), f"{one.rows:,}") for one in found.calibration]
    columns = ("#predicted", "#observed", "#low", "#high", "#rows")
    return columns_of(figure(picture, f"Expected {found.reward} against what came", hint, columns, rows))


# How it was made ---------------------------------------------------------------------------------------------


def settings_section(found: Findings) -> str:
    """Every setting, version and seed."""
    policy = found.policy
    about = METHODS[policy.method].about if policy.method in METHODS else "not known to this version"
    meaning = {one.name: one.metadata["help"] for one in fields(Settings)}
    settings = [(key, plain_value(value), meaning.get(key, "")) for key, value in policy.settings.items()]
    report = {"level": found.level, "seed": found.seed, "log digest": found.log_digest, "policy digest": policy.digest}
    report |= {f"version of {what}": one for what, one in found.versions.items()}
    return (
        f"<p>Method <b>{safe(policy.method)}</b>: {safe(about)}.</p>"
        + folded(f"{len(settings)} settings", table(("setting", "value", "meaning"), settings), on_paper="all")
        + folded("Learning", table(("what", "value"), list(flattened(policy.provenance))), on_paper="all")
        + folded("This report", table(("what", "value"), list(report.items())), on_paper="all")
    )


APART = ("training.history", "notes")  # shown elsewhere


def flattened(values: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    """Nested values one per line, named by their path."""
    for key, value in values.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, Mapping) and path not in APART:
            yield from flattened(value, path)
        elif path not in APART:
            yield path.replace(".", ": "), plain_value(value)


def plain_value(value: Any) -> str:
    """A setting as it would be typed, not too long."""
    return shortened(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False), 300)


def glossary_section(found: Findings) -> str:
    """The words used, in plain ones."""
    return "<dl>" + "".join(f"<dt>{safe(word)}</dt><dd>{safe(text)}</dd>" for word, text in GLOSSARY.items()) + "</dl>"


SECTIONS: tuple[tuple[str, str, Callable[[Findings], str]], ...] = (
    ("verdict", "Verdict", verdict_section),
    ("log", "What was in the log", log_section),
    ("overlap", "What the log cannot tell", overlap_section),
    ("relevance", "Which features matter", relevance_section),
    ("does", "What the policy does", does_section),
    ("estimators", "Value by estimator", estimators_section),
    ("sensitivity", "If something is hidden", sensitivity_section),
    ("gains", "Who gains", gains_section),
    ("training", "Training", training_section),
    ("calibration", "Are its expectations right?", calibration_section),
    ("settings", "How it was made", settings_section),
    ("glossary", "Glossary", glossary_section),
)
