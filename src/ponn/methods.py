"""The named methods: who learns, with which settings, which of them count, and where tuning looks for better ones."""

import difflib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ponn.errors import PonnError, listing
from ponn.settings import Settings


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


def method_named(name: str | None) -> tuple[str, Method]:
    """The method of this name, or the default one."""
    name = name or DEFAULT_METHOD
    if name not in METHODS:
        raise PonnError(f"There is no method {name!r}; expected one of {', '.join(METHODS)}.")
    return name, METHODS[name]


def search_of(method: Method, settings: Settings, given: Container[str]) -> dict[str, tuple[Any, ...]]:
    """Where tuning looks: the method's grid without what was given; lambda1's values depend on how Step B selects."""
    grid = dict(method.grid)
    if method.learner in KEEP_LEAVES:
        grid["leaf"] = tuple(dict.fromkeys(max(leaf, settings.min_cell) for leaf in grid["leaf"]))
    if "lambda1" in grid and settings.select != "threshold":
        grid = {("fdr" if name == "lambda1" else name): values for name, values in grid.items()} | {"fdr": RATES}
    elif "lambda1" in grid and settings.loss == "l1":
        grid["lambda1"] = LAMBDA1["l1"]
    return {name: values for name, values in grid.items() if name not in given}


def settings_of(method: str | None = None, **changes: Any) -> Settings:
    """The settings of a named method, with changes, each of which must make a difference."""
    name, _ = method_named(method)
    found = changed(name, changes)
    for one in changes:
        if why := unused(name, found, one):
            raise PonnError(why)
    return found


def changed(method: str, changes: Mapping[str, Any]) -> Settings:
    """The settings of a method with changes, whether they make a difference or not."""
    _, row = method_named(method)
    known = {one.name for one in fields(Settings)}
    wrong = [one for one in changes if one not in known]
    if wrong:
        near = difflib.get_close_matches(wrong[0], known, n=3)
        hint = f"Did you mean {listing(near)}?" if near else f"Expected one of {', '.join(sorted(known))}."
        raise PonnError(f"There is no setting {wrong[0]!r}. {hint}")
    made = Settings(**{**row.settings, **implied_rule(row, changes), **changes})
    return made if row.learner not in KEEP_LEAVES else with_shared_leaves(made, changes)


KEEP_LEAVES = ("ipw-forest", "direct-forest", "offset-tree")  # learners whose policies hold the leaves of their trees


def with_shared_leaves(settings: Settings, given: Container[str]) -> Settings:
    """The settings with leaves of at least min_cell rows: one of a single row tells the outcome of that person."""
    if settings.leaf >= settings.min_cell:
        return settings
    if "leaf" in given:
        raise PonnError(
            f"Setting leaf is {settings.leaf}: leaves of so few rows, which the policy file holds, would tell the "
            f"outcomes of fewer than min_cell = {settings.min_cell} people. Give a larger leaf, or a smaller min_cell "
            "if the file stays where the log is."
        )
    return replace(settings, leaf=settings.min_cell)


def implied_rule(method: Method, changes: Container[str]) -> dict[str, Any]:
    """The rule of Step B that the changes speak of, for a method that would choose one by itself."""
    if method.settings.get("select") != "auto" or "select" in changes:
        return {}
    if "lambda1" in changes or "lambda2" in changes:
        return {"select": "threshold"}
    return {"select": "fdr"} if any(name in changes for name in ("fdr", "even", "pooled")) else {}


# Which settings count ------------------------------------------------------------------------------------

# Every method encodes, estimates propensities, carries a reward model and is valued by one.
ALWAYS = (
    *("bins", "max_levels", "propensity", "propensity_penalty", "calibrate", "m", "reward_model", "reward_penalty"),
    *("relevance", "min_cell"),
)
STEP_B = ("loss", "lambda1", "lambda2", "select", "fdr", "even")  # where features are selected
STEPS = ("learning_rate", "batch", "epochs")
TREES = ("trees", "leaf", "columns")
BY_LEARNER: dict[str, tuple[str, ...]] = {
    "network": (
        *("hidden", "activation", "criterion", "l1", "l2", "variance", "clip", "baseline", *STEPS),
        *("patience", "watched"),
    ),
    "reward-network": ("hidden", "activation", "l1", "l2", *STEPS, "patience", "watched"),
    "linear-rewards": ("l1",),
    "logging": (),
    "ipw-forest": TREES,
    "direct-forest": TREES,
    "offset-tree": (*TREES, "folds"),
    "doubly-robust": ("pooled", "hidden", "l2", *TREES, "folds", "dropout", "temperature", *STEPS),
}
ONLY_WITH: dict[
    str, tuple[str, tuple[str, ...]]
] = {  # setting → another one, and the values of it with which it counts
    "clip": ("criterion", ("ips",)),
    "baseline": ("criterion", ("snips",)),
    "lambda1": ("select", ("threshold",)),
    "lambda2": ("select", ("threshold",)),
    "fdr": ("select", ("fdr", "auto")),
    "even": ("select", ("fdr", "auto")),
}


def used_by(method: str) -> tuple[str, ...]:
    """The settings that can make a difference for a method."""
    return (*ALWAYS, *STEP_B, *BY_LEARNER[METHODS[method].learner])


def unused(method: str, chosen: Settings, name: str) -> str:
    """Why a setting makes no difference for a method under the chosen settings; empty where it can."""
    if name not in used_by(method):
        return f"Method {method} has no use for the setting {name}. It uses {', '.join(used_by(method))}."
    if name in STEP_B and not chosen.relevance:
        return (
            f"The setting {name} belongs to the selection of features, which method {method} leaves out. Give "
            "relevance=True beside it, or leave it away."
        )
    other, values = ONLY_WITH.get(name, ("", ()))
    if other and getattr(chosen, other) not in values:
        return (
            f"The setting {name} only counts with {other}={' or '.join(values)}; here it is {getattr(chosen, other)!r}."
        )
    return ""


def settings_of_each(methods: Iterable[str], changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each method the changes that count for it; every change must count for one of them."""
    chosen = {name: changed(name, changes) for name in methods}
    why = {one: {name: unused(name, found, one) for name, found in chosen.items()} for one in changes}
    for reasons in why.values():
        if all(reasons.values()):
            raise PonnError(" ".join(dict.fromkeys(reasons.values())))
    return {name: {one: value for one, value in changes.items() if not why[one][name]} for name in chosen}
