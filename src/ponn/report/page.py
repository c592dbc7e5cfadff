"""The report: what was found about a policy as one HTML file that opens without a network, on a phone and on paper.

Computing is in `findings.py`, pictures are in `charts.py`; here both become sections, in the order of `SECTIONS`.
Every picture has the table of its numbers behind it, and every number that is not to be trusted says so.
"""

import os
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ponn.errors import PonnError, one_line
from ponn.evaluation.valuation import Nuisances
from ponn.log.log import Log
from ponn.policy.policy import Policy
from ponn.report.drawing import safe, shortened
from ponn.report.findings import Findings, findings
from ponn.report.log_sections import log_section, overlap_section, whose_rows
from ponn.report.markup import each
from ponn.report.policy_sections import (
    calibration_section,
    does_section,
    glossary_section,
    relevance_section,
    settings_section,
    training_section,
)
from ponn.report.value_sections import estimators_section, gains_section, sensitivity_section, verdict_section
from ponn.storage import write_whole

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


def write_report(
    policy: Policy,
    log: Log,
    path: str | os.PathLike[str],
    *,
    rows: Log | None = None,
    corrections: Nuisances | None = None,
    level: float = 0.95,
    by: str | Sequence[str] = (),
    min_cell: int | None = None,
    progress: Callable[[str], Any] | None = None,
) -> Findings:
    """Write the report on a policy as one HTML file, and return what it says.

    Parameters
    ----------
    policy, log
        The policy is valued on the rows of the log that it did not learn from.
    path
        Where the file goes.
    rows, corrections
        The rows to value it on and what they are corrected with, where they are at hand already.
    level
        Of intervals.
    by
        Columns whose subgroups are valued by themselves, see `value_by_group`.
    min_cell
        Fewest people who must share what the report says of them; default what the policy was learned with.
    progress
        A function that is called with what is being done.

    Returns
    -------
    Findings
        The numbers of the report.

    Examples
    --------
    >>> import ponn
    >>> train, test = ponn.simulate.world("actg175").log.split(0.7, seed=0)
    >>> found = ponn.write_report(ponn.learn(train, "lr-l1"), test, "report.html")
    >>> found.worth.verdict.kind
    'not enough evidence'
    """
    asked: dict[str, Any] = {"rows": rows, "corrections": corrections, "level": level, "by": by, "min_cell": min_cell}
    found = findings(policy, log, **asked, progress=progress)
    try:
        write_whole(Path(path), report_page(found).encode())
    except OSError as error:
        raise PonnError(f"The report {path} could not be written: {one_line(error)}.") from error
    return found


def report_page(found: Findings) -> str:
    """The whole page."""
    heading = f"Report on a policy for {shortened(found.policy.made('columns')[0]['action'])}"
    links = each("li", (f"<a href='#{id}'>{safe(title)}</a>" for id, title, _ in sections_of(found)))
    top = f"<header><h1>{safe(heading)}</h1>{subtitle(found)}<nav aria-label='Sections'><ol>{links}</ol></nav></header>"
    sections = "\n".join(
        f"<section aria-labelledby='{id}'><h2 id='{id}'>{safe(title)}</h2>\n{make(found)}</section>"
        for id, title, make in sections_of(found)
    )
    foot = "<footer>Made by ponn. This file is complete in itself: nothing is loaded from anywhere.</footer>"
    template = Template(files("ponn.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=safe(heading), body=f"{top}\n<main>\n{sections}\n</main>\n{foot}")


def sections_of(found: Findings) -> list[tuple[str, str, Callable[[Findings], str]]]:
    """The sections of this report: who gains is told where it was asked."""
    return [one for one in SECTIONS if found.by or one[0] != "gains"]


def subtitle(found: Findings) -> str:
    """The policy in a line."""
    policy = found.policy
    told = f"Method {policy.method}, {len(policy.actions)} actions, {len(policy.encoding.features)} features."
    return f"<p class='pale'>{safe(told)} {safe(whose_rows(found))}</p>"
