"""The report's sections on the policy: what it looks at, what it does, how it was made."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ponn.methods import METHODS
from ponn.report.charts import (
    MOST,
    NARROW,
    bar_pairs,
    calibration_chart,
    heat_map,
    line_chart,
    relevance_bars,
)
from ponn.report.drawing import in_percent, safe, shortened
from ponn.report.findings import Findings, RelevanceGrid
from ponn.report.glossary import GLOSSARY
from ponn.report.markup import Html, columns_of, cut_told, figure, figures, folded, name, scroll, table
from ponn.report.surrogate import Leaf, Question
from ponn.settings import Settings

LINE_HEIGHT = 220  # pixels of a line chart
NAMED = 12  # features of an action in its line


# Relevance ---------------------------------------------------------------------------------------------------


def relevance_section(found: Findings) -> str:
    """The heat map, and per action what was selected."""
    grid = found.relevance
    if grid is None:
        d = len(found.policy.encoding.features)
        return f"<p>The method {safe(found.policy.method)} does not select features: every action looks at all {d}.</p>"
    reads = (
        "Framed features were selected for that action. One network serves all actions and reads what was selected for "
        "any of them, so the others may move it too."
        if found.policy.reads_all_sets
        else "Only framed features can change the probability of that action."
    )
    intro = (
        "<p>How much the outcome of an action depends on a feature, corrected for how the actions were chosen. "
        f"{reads}</p>"
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


# Training and calibration ------------------------------------------------------------------------------------


def training_section(found: Findings) -> str:
    """Loss per epoch, where the model was trained in epochs."""
    (training,) = found.policy.made("training")
    if "shares" in training:
        return stack_told(training)
    history, loss = (
        training.get("history"),
        f"Loss on the validation rows: {figures(training.get('valid_loss', math.nan))}.",
    )
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


def stack_told(training: Mapping[str, Any]) -> str:
    """The reward models of a stack, and the rules by which its features might have been selected."""
    shares, names = {"stack": 1.0, **training["shares"]}, {"stack": "all together"}
    kinds = [
        (names.get(one, one), in_percent(shares.get(one, 0.0)), figures(loss))
        for one, loss in training["losses"].items()
    ]
    rules = [
        (rule, figures(loss), "chosen" if rule == training["selection"] else "")
        for rule, loss in training["selections"].items()
    ]
    told = (
        f"Every row was held out once, in {training['folds']} parts: models that never saw it said what each action "
        "promises. Kinds of models that had nothing to add in the first part were given up; the others were combined "
        "by how well they did; those with a share learned again from all rows, and one small network learned what "
        "they say together. Losses are of rows held out; small is good."
    )
    tried = folded("Rules that select features", table(("rule", "#loss", ""), rules), on_paper="all") if rules else ""
    return f"<p>{safe(told)}</p>" + table(("reward model", "#share", "#loss"), kinds) + tried


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
    report = {"level": found.level, "seed": found.seed, "min_cell": found.min_cell, "policy digest": policy.digest}
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
