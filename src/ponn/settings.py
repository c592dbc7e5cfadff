"""Every hyper-parameter with its default and legal range, in one place.

The command line's flags and the documentation are made from these fields.
"""

import difflib
import math
from dataclasses import dataclass, field, fields
from typing import Any

from ponn.errors import PonnError, listing


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
    relevance: bool = setting(True, help="select features per action (Step B); False gives every action all features")
    loss: str = setting("l2", symbol="l", choices=("l1", "l2"), help="loss of the relevance measure G")
    lambda1: float = setting(0.03, symbol="lambda1", low=0, help="weight of the error term in the threshold tau")
    lambda2: float = setting(0.0, symbol="lambda2", low=0, help="weight of the mean absolute correlation in tau")
    select: str = setting(
        "threshold",
        choices=("threshold", "fdr"),
        help="how features are selected: G > tau (the paper), or a test with false-discovery control",
    )
    fdr: float = setting(0.1, low=0, high=1, help="false-discovery rate over all pairs, for select=fdr")
    hidden: tuple[int, ...] = setting((100, 100), symbol="h_p", low=1, help="units of the policy layers; none: linear")
    activation: str = setting(
        "sigmoid", symbol="rho", choices=("sigmoid", "relu", "silu"), help="activation of the policy layers"
    )
    criterion: str = setting("cross-entropy", choices=("cross-entropy", "ips", "snips"), help="loss of Step C")
    l1: float = setting(0.0, symbol="lambda3", low=0, help="strength of the penalty sum |W|")
    l2: float = setting(1e-4, symbol="lambda3", low=0, help="strength of the penalty sum W^2")
    variance: float = setting(0.0, symbol="lambda3", low=0, help="strength of POEM's penalty sqrt(Var(u) / n)")
    clip: float | None = setting(None, symbol="M", low=0, help="POEM's clip of h/p (ips only); default none")
    baseline: float = setting(0.0, low=0, high=1, help="reward that snips counts as neither good nor bad")
    learning_rate: float = setting(1e-3, low=1e-8, help="step of Adam")
    batch: int = setting(128, low=1, help="rows per step")
    epochs: int = setting(1_000, low=1, help="most passes over the rows")
    patience: int = setting(30, low=1, help="epochs without a better validation loss before training stops")
    watched: int = setting(1_000, low=0, help="rows on which the ratio h/p is watched per epoch; 0 only at the end")

    def __post_init__(self) -> None:
        for one in fields(self):
            check_setting(one.name, getattr(self, one.name), one.type, one.metadata)


def check_setting(name: str, value: Any, kind: Any, rule: Any) -> None:
    """Raise PonnError unless the value has the field's type and lies in its legal range."""
    if value is None and kind == float | None:
        return
    if kind == tuple[int, ...]:
        if not isinstance(value, tuple):
            raise PonnError(f"Setting {name} is {value!r}; expected whole numbers in parentheses, e.g. (100, 100).")
        for one in value:
            check_setting(name, one, int, rule)
        return
    numeric = kind in (float, float | None)
    if not (type(value) in (int, float) if numeric else type(value) is kind):
        expected = "a number" if numeric else kind.__name__
        raise PonnError(f"Setting {name} is {value!r}; expected {expected}.")
    if rule["choices"] and value not in rule["choices"]:
        raise PonnError(f"Setting {name} is {value!r}; expected one of {', '.join(rule['choices'])}.")
    if not isinstance(value, str | bool) and not rule["low"] <= value <= rule["high"]:
        raise PonnError(f"Setting {name} is {value}; expected a number from {rule['low']:g} to {rule['high']:g}.")


# The paper's methods (section 7.2) and BanditNet as rows of settings. `penalty` is the field that lambda3 means.
LINEAR_IPS: dict[str, Any] = {"hidden": (), "criterion": "ips", "l2": 0.0, "learning_rate": 1e-2}
METHODS: dict[str, dict[str, Any]] = {
    "ponn-b": {"relevance": True, "penalty": "l2"},
    "ponn": {"relevance": False, "penalty": "l2"},
    "poem": {**LINEAR_IPS, "relevance": False, "variance": 0.1, "penalty": "variance"},
    "poem-b": {**LINEAR_IPS, "relevance": True, "variance": 0.1, "penalty": "variance"},
    "poem-l1": {**LINEAR_IPS, "relevance": False, "variance": 0.1, "l1": 1e-3, "penalty": "l1"},
    "banditnet": {"relevance": False, "criterion": "snips", "penalty": "l2"},
}
DEFAULT_METHOD = "ponn-b"


def settings_of(method: str | None = None, **changes: Any) -> Settings:
    """The settings of a named method, with changes."""
    name = method or DEFAULT_METHOD
    if name not in METHODS:
        raise PonnError(f"There is no method {name!r}; expected one of {', '.join(METHODS)}.")
    known = {one.name for one in fields(Settings)}
    wrong = [one for one in changes if one not in known]
    if wrong:
        near = difflib.get_close_matches(wrong[0], known, n=3)
        hint = f"Did you mean {listing(near)}?" if near else f"Expected one of {', '.join(sorted(known))}."
        raise PonnError(f"There is no setting {wrong[0]!r}. {hint}")
    row = {field: value for field, value in METHODS[name].items() if field != "penalty"}
    return Settings(**{**row, **changes})
