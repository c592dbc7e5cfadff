"""Every hyper-parameter with its default and legal range, in one place; the methods that set them are in `methods.py`.

The command line's flags and the documentation are made from these fields.
"""

import math
import operator
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
    min_cell: int = setting(
        10,
        low=1,
        high=10_000,
        help="fewest people who must share what the policy or a report tells of them: levels, ends of ranges, cells of "
        "similar rows, leaves; 1 tells everything",
    )
    propensity: str = setting(
        "logistic", choices=("logistic", "boosting"), help="model that estimates unknown propensities (Step A)"
    )
    propensity_penalty: float | None = setting(
        1.0,
        low=0,
        help="L2 penalty of the logistic propensity model, as scikit-learn's 1/C; 0 fits it unpenalised, none chooses "
        "it by cross-validation",
    )
    calibrate: bool = setting(False, help="calibrate the estimated propensities (Platt scaling on three folds)")
    reward_model: str = setting(
        "logistic",
        choices=("logistic", "boosting"),
        help="model of the reward per action, for doubly robust values (evaluation)",
    )
    reward_penalty: float = setting(1.0, low=0, help="L2 penalty of the logistic reward model, as scikit-learn's 1/C")
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
        choices=("threshold", "fdr", "auto"),
        help="how features are selected: G > tau (the paper), a test with false-discovery control (fdr), or by "
        "whichever of these and no selection predicts rewards best (auto; ponn-dr alone, elsewhere it is fdr)",
    )
    fdr: float = setting(0.1, low=0, high=1, help="false-discovery rate over all pairs, for select=fdr")
    even: bool = setting(
        False,
        help="the test of Step B counts rows alike instead of by 1/p: more power under strong bias, but a feature may "
        "pass for another one that drives the logging too",
    )
    pooled: bool = setting(False, help="every action's reward model reads the sets of all actions (ponn-dr)")
    hidden: tuple[int, ...] = setting((100, 100), symbol="h_p", low=1, help="units of the policy layers; none: linear")
    activation: str = setting(
        "sigmoid", symbol="rho", choices=("sigmoid", "relu", "silu"), help="activation of the policy layers"
    )
    criterion: str = setting(
        "cross-entropy", choices=("cross-entropy", "ips", "snips", "logistic"), help="loss of Step C"
    )
    l1: float = setting(0.0, symbol="lambda3", low=0, help="strength of the penalty sum |W|")
    l2: float = setting(1e-4, symbol="lambda3", low=0, help="strength of the penalty sum W^2")
    variance: float = setting(0.0, symbol="lambda3", low=0, help="strength of POEM's penalty sqrt(Var(u) / n)")
    clip: float | None = setting(
        None,
        symbol="M",
        low=0,
        help="POEM's clip of h/p (ips only), 0 for none; default as POEM's authors set it: the 90th over the 10th "
        "percentile of the propensities",
    )
    baseline: float = setting(0.0, low=0, high=1, help="reward that snips counts as neither good nor bad")
    trees: int = setting(100, low=1, help="trees in a forest")
    leaf: int = setting(1, low=1, help="fewest rows in a leaf; larger by itself where the log is large")
    columns: float = setting(0.33, low=0.01, high=1, help="share of the design columns tried at a split")
    folds: int = setting(
        4, low=1, help="folds in which the offset tree asks who won a duel (1: in-sample), and of ponn-dr (at least 2)"
    )
    dropout: float = setting(0.0, low=0, high=0.9, help="share of units that are silent in a step (ponn-dr)")
    temperature: float = setting(
        0.05,
        low=1e-3,
        high=1e3,  # beyond, rounding errors decide
        help="T of ponn-dr's stochastic policy softmax(r / T): near 0 it always takes the best action, more keeps "
        "exploring those that promise nearly as much",
    )
    learning_rate: float = setting(1e-3, low=1e-8, help="step of Adam")
    batch: int = setting(128, low=1, help="rows per step")
    epochs: int = setting(1_000, low=1, help="most passes over the rows")
    patience: int = setting(30, low=1, help="epochs without a better validation loss before training stops")
    watched: int = setting(1_000, low=0, help="rows on which the ratio h/p is watched per epoch; 0 only at the end")

    def __post_init__(self) -> None:
        for one in fields(self):
            given = getattr(self, one.name)
            check_setting(one.name, given, one.type, one.metadata)
            if type(given) is int and one.type in (float, float | None):
                object.__setattr__(self, one.name, float(given))


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
    if isinstance(value, str | bool):
        return
    if not (math.isfinite(value) and rule["low"] <= value <= rule["high"]):
        most = f"to {rule['high']:g}" if math.isfinite(rule["high"]) else "on, and finite"
        raise PonnError(f"Setting {name} is {value}; expected a number from {rule['low']:g} {most}.")


LARGEST_SEED = 2**31 - 1  # every library takes it, and what is added to it for folds and fits


def check_seed(seed: Any) -> None:
    """Raise PonnError unless every library takes this seed."""
    try:
        good = 0 <= operator.index(seed) <= LARGEST_SEED
    except TypeError:
        good = False
    if not good:
        raise PonnError(f"The seed is {seed!r}; expected a whole number from 0 to {LARGEST_SEED:,}.")


SERVED_ROWS, SERVED_BYTES = 1_000, 1 << 20  # a request to the server has at most so many
STUDIO_UPLOAD = 500  # MB of a file that the studio takes
