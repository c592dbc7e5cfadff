"""Values with their intervals, as the commands print them for people."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ponn.cli.terminal import console

if TYPE_CHECKING:
    from rich.table import Table

    from ponn.evaluation.intervals import Estimate
    from ponn.evaluation.subgroups import Subgroups
    from ponn.evaluation.worth import Worth


def value_table(values: "Mapping[str, Estimate]", title: str = "On rows kept aside") -> "Table":
    """Values with intervals, one line each; what is not to be trusted says why."""
    from rich.table import Table
    from rich.text import Text

    table = Table("policy", "value", "interval", "effective rows", "", title=title, title_justify="left")
    for name, one in values.items():
        doubt = doubt_of(one)
        ends = f"{one.low:.4g} to {one.high:.4g} ({100 * one.level:g} %)"
        table.add_row(Text(str(name)), f"{one.value:.4g}", ends, f"{one.ess:,.0f} of {one.n:,}", Text(doubt))
    return table


def subgroup_table(found: "Subgroups") -> "Table":
    """Values per subgroup with intervals that hold together; what is not to be trusted says why."""
    from rich.table import Table
    from rich.text import Text

    title = f"Subgroups (all {3 * len(found.groups)} intervals hold together with {100 * found.level:g} %)"
    table = Table("subgroup", "rows", "this policy", "current practice", "difference", "", title=title)
    for one in found.groups:
        joined = f" ({one.joined} levels)" if one.joined > 1 else ""
        name, doubt = Text(f"{one.column}: {one.level}{joined}"), Text(doubt_of(one.difference))
        numbers = map(value_and_ends, (one.policy, one.logging, one.difference))
        table.add_row(name, f"{one.rows:,}", *numbers, doubt)
    return table


def value_and_ends(one: "Estimate") -> str:
    """A value and its interval in one cell."""
    return f"{one.value:.3g} ({one.low:.3g} to {one.high:.3g})"


def doubt_of(one: "Estimate") -> str:
    """What is to be said of a number: why it is not to be trusted, and what it leaves out."""
    return ("" if one.trusted else "not trusted: ") + "; ".join(one.warnings)


def print_doubts(found: "Worth", asked_for_gamma: bool = False) -> None:
    """What speaks against a value: unsupported recommendations, and hidden causes of the logged decisions."""
    from ponn.evaluation.confounding import what_overturns

    out = console()
    if found.unsupported:
        share = f"{found.unsupported:,} of {found.rows:,} rows ({found.unsupported / found.rows:.1%})"
        out.print(f"In {share} the recommended action was hardly ever taken in such cases.", markup=False)
    if found.sensitivity is not None and asked_for_gamma:
        out.print(str(found.sensitivity), markup=False)
    if found.sensitivity is not None and found.verdict.kind == "better":
        out.print(what_overturns(found.sensitivity.breaking_gamma), markup=False)
