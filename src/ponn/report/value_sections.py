"""The report's sections on what a policy is worth: verdict, estimators, hidden causes, subgroups."""

from collections.abc import Mapping

from ponn.evaluation.confounding import HiddenConfounding, what_overturns
from ponn.evaluation.intervals import Estimate, percent
from ponn.evaluation.subgroups import Subgroup
from ponn.evaluation.verdict import told_over_fixed
from ponn.report.charts import (
    MOST_LINES,
    NAME,
    NARROW,
    in_figures,
    line_chart,
    value_chart,
)
from ponn.report.drawing import safe, shortened
from ponn.report.findings import Findings, Reported
from ponn.report.glossary import ABOUT_ESTIMATORS, VARIANTS
from ponn.report.markup import Html, columns_of, cut_told, each, figure, figures, name, table

LINE_HEIGHT = 220  # pixels of a line chart
NOT_TRUSTED = Html("<span class='doubt'>not trusted</span>")


def no_values(found: Findings) -> str:
    """Why there are none."""
    return f"<p class='warning'>Nothing can be said: {safe(found.why_no_worth)}.</p>"


# Verdict -----------------------------------------------------------------------------------------------------


def verdict_section(found: Findings) -> str:
    """One sentence, then the values side by side."""
    worth = found.worth
    if worth is None:
        return f"<p class='verdict doubted'>What this policy is worth is not known: {safe(found.why_no_worth)}.</p>"
    look = "doubted" if not worth.policy.trusted else "better" if worth.verdict.kind == "better" else "open"
    sentence = f"<p class='verdict {look}'>{verdict_sentence(found, worth)}{over_fixed_sentence(worth)}</p>"
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


def over_fixed_sentence(worth: Reported) -> str:
    """Whether it beats the best single action; nothing where the policy itself is in doubt, as was said by then."""
    if worth.over_fixed is None or not worth.policy.trusted:
        return ""
    return f" <strong>{safe(told_over_fixed(worth.over_fixed, shortened(worth.fixed_action)))}</strong>"


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
    if worth.drawn is not None:
        sentences.append(
            "If actions are drawn from its probabilities instead of taking the most probable one, it is worth "
            f"{told(worth.drawn)}. Drawing goes on learning about the other actions; the difference is its price."
        )
    return each("p", sentences)


def values_by_policy(worth: Reported) -> dict[str, Estimate]:
    """The values that are shown together."""
    values = {"this policy": worth.policy, "current practice": worth.logging}
    if worth.fixed is not None:
        values[f"always {shortened(worth.fixed_action)}"] = worth.fixed
    return values | {VARIANTS[name]: one for name, one in worth.variants.items()}


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
