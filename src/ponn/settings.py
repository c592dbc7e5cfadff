"""Every hyper-parameter with its default and legal range, in one place.

The command line's flags and the documentation are made from these fields.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from ponn.errors import PonnError


def setting(
    default: Any,
    *,
    help: str,
    symbol: str = "",
    choices: tuple[str, ...] = (),
    low: float = -math.inf,
    high: float = math.inf,
) -> Any:
    """One hyper-parameter: its default, the paper's symbol, what it means and which values are legal."""
    rule = {"help": help, "symbol": symbol, "choices": choices, "low": low, "high": high}
    return field(default=default, metadata=rule)


@dataclass(frozen=True)
class Settings:
    """What can be set. Every field is a keyword of `ponn.learn`."""

    bins: str = setting(
        "equal-width",
        choices=("equal-width", "quantile"),
        help="how numeric features are cut into ceil(n^(1/3)) bins for Step B (the paper: equal width)",
    )
    max_levels: int = setting(
        50,
        low=2,
        high=30_000,
        help="levels kept of a categorical feature, the most frequent ones; the rest is one level",
    )
    propensity: str = setting(
        "logistic", choices=("logistic", "boosting"), help="model that estimates unknown propensities (Step A)"
    )
    propensity_penalty: float = setting(
        1.0, low=0, help="L2 penalty of the logistic propensity model, as scikit-learn's 1/C; 0 fits it unpenalised"
    )
    calibrate: bool = setting(False, help="calibrate the estimated propensities (Platt scaling on three folds)")
    m: float | None = setting(
        None,
        symbol="m",
        low=1,
        help="largest importance weight; default sqrt(n) for estimated propensities, none for known ones",
    )
    loss: str = setting("l2", symbol="l", choices=("l1", "l2"), help="loss of the relevance measure G")
    lambda1: float = setting(0.03, symbol="lambda1", low=0, help="weight of the error term in the threshold tau")
    lambda2: float = setting(0.0, symbol="lambda2", low=0, help="weight of the mean absolute correlation in tau")
    select: str = setting(
        "threshold",
        choices=("threshold", "fdr"),
        help="how features are selected: G > tau (the paper), or a test with false-discovery control",
    )
    fdr: float = setting(0.1, low=0, high=1, help="false-discovery rate over all pairs, for select=fdr")

    def __post_init__(self) -> None:
        for one in fields(self):
            check_setting(one.name, getattr(self, one.name), one.type, one.metadata)


def check_setting(name: str, value: Any, kind: Any, rule: Any) -> None:
    """Raise PonnError unless the value has the field's type and lies in its legal range."""
    if value is None and kind == float | None:
        return
    numeric = kind in (float, float | None)
    if not (type(value) in (int, float) if numeric else type(value) is kind):
        expected = "a number" if numeric else kind.__name__
        raise PonnError(f"Setting {name} is {value!r}; expected {expected}.")
    if rule["choices"] and value not in rule["choices"]:
        raise PonnError(f"Setting {name} is {value!r}; expected one of {', '.join(rule['choices'])}.")
    if not isinstance(value, str | bool) and not rule["low"] <= value <= rule["high"]:
        raise PonnError(f"Setting {name} is {value}; expected a number from {rule['low']:g} to {rule['high']:g}.")
