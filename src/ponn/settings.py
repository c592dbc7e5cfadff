"""Every hyper-parameter with its default and legal range, in one place.

The command line's flags and the documentation are made from these fields.
"""

import difflib
import math
import operator
from collections.abc import Container, Mapping
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


# Methods -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A named method: who learns, with which settings, and where tuning looks for better ones."""

    about: str
    learner: str = "network"  # a key of learners.LEARNERS
    settings: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # setting → values; all combinations are tried
    cross_fitted: bool = False  # every row is held out in turn, none is kept for validation


# The paper's ranges (section 7.2.1): lambda1 in [0.005, 0.1], lambda2 in [0, 0.01], lambda3 in [0.0001, 0.1]. Those of
# lambda1 belong to l2; with l1 the useful lambda1 is near 0.5 to 1.
LAMBDA1 = {"l2": (0.005, 0.03, 0.1, 0.2), "l1": (0.2, 0.4, 0.7, 1.0)}  # with l2 from the paper's least on
RATES = (0.05, 0.1, 0.3, 0.5)  # of false discoveries: what lambda1 is where features are selected by the test
STRENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # of the L2 penalty of policy networks
NETWORK: dict[str, Any] = {"l2": 1e-3, "learning_rate": 3e-3}
LINEAR_STEPS, VARIANCES = (3e-2, 1e-1), (0.1, 1.0)  # of POEM with features selected or penalised
LINEAR_IPS: dict[str, Any] = {"hidden": (), "criterion": "ips", "l2": 0.0, "learning_rate": 1e-2, "variance": 0.1}

FOREST: dict[str, tuple[Any, ...]] = {"leaf": (1, 3, 10), "columns": (0.2, 0.33, 0.6)}

# The paper's methods (section 7.2) and honest extra baselines. Every grid of a method of the paper has 20 points.
METHODS: dict[str, Method] = {
    "ponn-b": Method(
        "the paper's algorithm: Steps A, B and C",
        settings=NETWORK,
        grid={"lambda1": LAMBDA1["l2"], "l2": STRENGTHS, "learning_rate": (5e-3,)},
    ),
    "ponn": Method(
        "the paper's algorithm without Step B",
        settings={**NETWORK, "relevance": False},
        grid={"l2": STRENGTHS, "learning_rate": (1e-3, 2e-3, 3e-3, 5e-3)},
    ),
    "poem": Method(
        "linear policy, IPS with variance penalty (Swaminathan and Joachims)",
        settings={**LINEAR_IPS, "relevance": False},
        grid={"variance": (0.0, 0.1, 0.3, 1.0, 3.0), "learning_rate": (3e-3, 1e-2, 3e-2, 1e-1)},
    ),
    "poem-b": Method(
        "POEM on the features of Step B",
        settings={**LINEAR_IPS, "relevance": True},
        grid={"lambda1": (0.005, 0.03, 0.06, 0.1, 0.2), "variance": VARIANCES, "learning_rate": LINEAR_STEPS},
    ),
    "poem-l1": Method(
        "POEM with an L1 penalty",
        settings={**LINEAR_IPS, "relevance": False, "l1": 1e-3},
        grid={"l1": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), "variance": VARIANCES, "learning_rate": LINEAR_STEPS},
    ),
    "mlp-l1": Method(
        "reward network on (features, action) with an L1 penalty; takes the action that promises most",
        learner="reward-network",
        settings={"relevance": False, "criterion": "logistic", "l1": 1e-4, "l2": 0.0, "batch": 512},
        grid={"l1": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3), "learning_rate": (1e-3, 2e-3, 5e-3, 1e-2)},
    ),
    "lr-l1": Method(
        "logistic regression of the reward per action with an L1 penalty; takes the action that promises most",
        learner="linear-rewards",
        settings={"relevance": False, "l1": 1e-2},
        grid={"l1": tuple(10 ** (-4 + 0.2 * step) for step in range(20))},
    ),
    "logging": Method(
        "current practice: the estimated logging policy",
        learner="logging",
        settings={"relevance": False},
    ),
    "banditnet": Method(
        "network with self-normalised IPS (Joachims, Swaminathan and de Rijke)",
        settings={"relevance": False, "criterion": "snips"},
        grid={"baseline": (0.0, 0.2, 0.4, 0.6), "l2": STRENGTHS},
    ),
    "ipw-forest": Method(
        "forest that predicts the rewarded action, rows weighted by reward over propensity",
        learner="ipw-forest",
        settings={"relevance": False},
        grid=FOREST,
    ),
    "direct-forest": Method(
        "forest of the reward per action; takes the action that promises most",
        learner="direct-forest",
        settings={"relevance": False},
        grid=FOREST,
    ),
    "ponn-dr": Method(
        "beyond the paper: stacked reward models on the features of Step B, doubly robust scores, one small network",
        learner="doubly-robust",
        cross_fitted=True,
        settings={
            "select": "auto",
            "hidden": (128, 128),
            "activation": "relu",
            "dropout": 0.2,
            "l2": 0.0,
            "learning_rate": 3e-3,
            "epochs": 40,
            "folds": 5,
        },
    ),
    "offset-tree": Method(
        "tournament of actions decided by forests (Beygelzimer and Langford)",
        learner="offset-tree",
        settings={"relevance": False},
        grid=FOREST,
    ),
}
DEFAULT_METHOD = "ponn-dr"

SERVED_ROWS, SERVED_BYTES = 1_000, 1 << 20  # a request to the server has at most so many
STUDIO_UPLOAD = 500  # MB of a file that the studio takes


def method_named(name: str | None) -> tuple[str, Method]:
    """The method of this name, or the default one."""
    name = name or DEFAULT_METHOD
    if name not in METHODS:
        raise PonnError(f"There is no method {name!r}; expected one of {', '.join(METHODS)}.")
    return name, METHODS[name]


def search_of(method: Method, settings: Settings, given: Container[str]) -> dict[str, tuple[Any, ...]]:
    """Where tuning looks: the method's grid without what was given; lambda1's values depend on how Step B selects."""
    grid = dict(method.grid)
    if "lambda1" in grid and settings.select != "threshold":
        grid = {("fdr" if name == "lambda1" else name): values for name, values in grid.items()} | {"fdr": RATES}
    elif "lambda1" in grid and settings.loss == "l1":
        grid["lambda1"] = LAMBDA1["l1"]
    return {name: values for name, values in grid.items() if name not in given}


def settings_of(method: str | None = None, **changes: Any) -> Settings:
    """The settings of a named method, with changes."""
    _, row = method_named(method)
    known = {one.name for one in fields(Settings)}
    wrong = [one for one in changes if one not in known]
    if wrong:
        near = difflib.get_close_matches(wrong[0], known, n=3)
        hint = f"Did you mean {listing(near)}?" if near else f"Expected one of {', '.join(sorted(known))}."
        raise PonnError(f"There is no setting {wrong[0]!r}. {hint}")
    return Settings(**{**row.settings, **implied_rule(row, changes), **changes})


def implied_rule(method: Method, changes: Container[str]) -> dict[str, Any]:
    """The rule of Step B that the changes speak of, for a method that would choose one by itself."""
    if method.settings.get("select") != "auto" or "select" in changes:
        return {}
    if "lambda1" in changes or "lambda2" in changes:
        return {"select": "threshold"}
    return {"select": "fdr"} if any(name in changes for name in ("fdr", "even", "pooled")) else {}
