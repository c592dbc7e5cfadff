"""All that is said about what a policy is worth on rows it never saw: by `ponn evaluate` and by `ponn learn`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from ponn.evaluation.confounding import HiddenConfounding, doubted
from ponn.evaluation.intervals import Estimate, LowOverlap, estimate_json
from ponn.evaluation.sensitivity import check_strength
from ponn.evaluation.subgroups import Subgroups, by_level, levels_of_columns
from ponn.evaluation.valuation import (
    Asked,
    Nuisances,
    Sampled,
    Scored,
    SupportedOnly,
    Valued,
    check_options,
    judged,
    nuisances,
    practice_on,
    replicates,
    scored,
    unseen_rows,
    value_of,
)
from ponn.evaluation.verdict import Verdict
from ponn.log.log import Log
from ponn.policy.policy import Policy
from ponn.settings import Settings

GAMMA = 1.5  # the strength of hidden confounding for which bounds are told where none is asked for


@dataclass(frozen=True, eq=False)
class Worth:
    """What a policy is worth beside current practice, and all that could be said against it."""

    rows: int
    policy: Estimate
    logging: Estimate
    verdict: Verdict
    unsupported: int | None = None  # rows whose recommended action the log does not support; None: not known
    supported_only: Estimate | None = None  # of the policy that takes supported actions only, where that differs
    drawn: Estimate | None = None  # of actions drawn from the policy's probabilities, where that differs
    sensitivity: HiddenConfounding | None = None  # where it was asked for, or the verdict is "better"
    subgroups: Subgroups | None = None  # where they were asked for
    notes: tuple[str, ...] = ()  # what reading the log and fitting the corrections changed or found odd

    def as_json(self) -> dict[str, Any]:
        """In plain values, in the shape that `ponn evaluate --json` prints."""
        told = estimate_json(self.policy) | {"logging": estimate_json(self.logging)}
        told |= {"verdict": self.verdict.kind, "rows_needed": self.verdict.rows_needed} | self.doubts_json()
        told |= {name: estimate_json(one) for name, one in self.variants.items()}
        if self.subgroups is not None:
            told["subgroups"] = self.subgroups.as_json()
        return told | {"notes": list(self.notes)}

    @property
    def variants(self) -> dict[str, Estimate]:
        """Values of other ways to follow the policy, by name, where they differ from its recommendations."""
        found = {"supported_only": self.supported_only, "drawn": self.drawn}
        return {name: one for name, one in found.items() if one is not None}

    def doubts_json(self) -> dict[str, Any]:
        """The difference to current practice, support and sensitivity in plain values."""
        sensitivity = None if self.sensitivity is None else self.sensitivity.as_json()
        told = {"difference": estimate_json(self.verdict.difference), "unsupported": self.unsupported_json()}
        return told | {"sensitivity": sensitivity}

    def unsupported_json(self) -> dict[str, Any] | None:
        """Rows with an unsupported recommendation and their share; None where the policy cannot tell."""
        if self.unsupported is None:
            return None
        return {"rows": self.unsupported, "share": self.unsupported / self.rows}


def worth(
    policy: Valued,
    log: Log,
    estimator: str = "dr",
    level: float = 0.95,
    *,
    interval: str = "normal",
    by: str | Sequence[str] = (),
    gamma: float | None = None,
    allow_low_overlap: bool = False,
    settings: Settings | None = None,
    corrections: Nuisances | None = None,
    seed: int = 0,
) -> Worth:
    """Value, verdict, support, sensitivity and subgroups of a policy on a log it never saw; options as in `evaluate`.

    by: columns whose levels are valued by themselves, see `value_by_group`. gamma: a strength of hidden confounding,
    see `hidden_confounding`.
    """
    check_options(log, estimator, level, interval)
    check_strength(1.0 if gamma is None else gamma)
    log = unseen_rows(policy, log)
    levels = levels_of_columns(log, by)  # before the costly part, as it may find mistakes
    fitted = corrections or nuisances(log, settings, seed=seed)
    asked = Asked(estimator, level, interval, None, seed)
    unsupported = unsupported_rows(policy, log)
    side = scored(policy, log, fitted)
    variants = variants_of(policy, side, unsupported) if isinstance(policy, Policy) else {}
    again = replicates([side, *variants.values()], asked).T if interval == "bootstrap" else None  # once for all below
    value = value_of(side, asked, None if again is None else again[0])
    if not value.trusted and not allow_low_overlap:
        raise LowOverlap(value)
    verdict = judged(side, asked, None if again is None else again[0] - again[-1])
    others = {
        name: value_of(one, asked, None if again is None else again[j])
        for j, (name, one) in enumerate(variants.items(), 1)
    }
    return Worth(
        rows=len(log),
        policy=value,
        logging=practice_on(log, level),
        verdict=verdict,
        unsupported=unsupported,
        supported_only=others.get("supported_only"),
        drawn=others.get("drawn"),
        sensitivity=doubted(side, gamma or GAMMA, asked) if gamma or verdict.kind == "better" else None,
        subgroups=by_level(side, levels, asked) if levels else None,
        notes=(*log.notes, *fitted.notes),
    )


def variants_of(policy: Policy, side: Scored, unsupported: int | None) -> dict[str, Scored]:
    """Other ways to follow a policy that differ from its recommendations on these rows, by name as in `Worth`.

    Draws may take any of the policy's actions, so they have no value on a log that lacks one.
    """
    found = {}
    if unsupported:
        found["supported_only"] = scored(SupportedOnly(policy), side.log, side.fitted)
    if set(policy.actions) <= set(side.log.actions):
        drawn = scored(Sampled(policy), side.log, side.fitted)
        found |= {} if np.array_equal(drawn.h, side.h) else {"drawn": drawn}
    return found


def unsupported_rows(policy: Valued, log: Log) -> int | None:
    """Rows in which the recommended action is hardly ever taken in such cases; None where that is not known."""
    if not isinstance(policy, Policy):
        return None
    supported = policy.recommend(log, columns=("supported",)).column("supported")
    return None if supported.null_count else len(log) - pc.sum(supported).as_py()
