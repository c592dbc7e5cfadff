"""What the description in a policy file must be, part by part; how the parts must fit together is seen in `policy.py`.

Fields that only tell how a policy came about may be absent, but where they are there they are what is declared here,
because commands, report and page show them.
"""

import math
from collections.abc import Mapping
from typing import Any

from ponn.log.features import CategoryFeature, NumberFeature
from ponn.log.profile import BOOLEAN, CATEGORY, DATE, NUMBER
from ponn.log.roles import EXACT, MOST_ACTIONS
from ponn.log.rules import LONGEST_RULE
from ponn.policy.schema import (
    Fields,
    Items,
    Maybe,
    Named,
    Number,
    OneOf,
    Plain,
    Schema,
    SchemaError,
    Text,
    Truth,
    Whole,
)

MOST_RULES = 10_000  # ten for each of the most actions that a log can have
MOST_BINS = 32_766  # of a feature, which are numbered in 16 bits with missing as one more
COUNT = Whole(0, int(EXACT))
NAME = Text(10_000)  # of a column
SHARE = Number(0, 1)


class Label:
    """What an action can be called."""

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is a text, a whole number or a truth value."""
        if not isinstance(value, bool):
            (Text() if isinstance(value, str) else Whole(high=(1 << 64) - 1)).check(value, place)


# Features ------------------------------------------------------------------------------------------------

NUMBERS = Maybe(Items(Number(), most=MOST_BINS))
FEATURES: Mapping[str, Schema] = {
    NumberFeature.__name__: Fields(
        {
            "type": Text(),
            "name": NAME,
            "kind": OneOf((NUMBER, BOOLEAN, DATE)),
            "low": Number(),
            "high": Number(),
            "bins": Whole(1, MOST_BINS),
            "cuts": NUMBERS,
            "values": NUMBERS,
            "missing": Truth(),
            "mean": Number(),
            "scale": Number(),
        },
        closed=True,
    ),
    CategoryFeature.__name__: Fields(
        {
            "type": Text(),
            "name": NAME,
            "kind": OneOf((CATEGORY,)),
            "kept": Items(Text(), most=MOST_BINS - 1),
            "rest": Items(Text()),
            "rest_rows": COUNT,
            "missing": Truth(),
        },
        {"stand_in": Maybe(Text())},
        closed=True,
    ),
}


class AnyFeature:
    """A feature of one of the types that there are."""

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        Fields({"type": OneOf(tuple(FEATURES))}).check(value, place)
        FEATURES[value["type"]].check(value, place)


# How it was made -----------------------------------------------------------------------------------------

PAIR = Fields(
    {
        "action": Label(),
        "feature": NAME,
        "relevance": Number(),
        "threshold": Number(),
        "bound": Maybe(Number()),
        "selected": Truth(),
    },
    closed=True,
)
REWARD = Fields(
    {"range": Items(Number(), 2, 2), "minimize": Truth()},
    {"declared": Truth()},
)
ROLES = ("propensity", "group", "time", "weight", "eligible")
COLUMNS = Fields({"action": NAME, "reward": NAME}, {"features": Items(NAME)} | dict.fromkeys(ROLES, Maybe(NAME)))
SOURCE = Fields(
    optional={
        "digest": Text(),
        "id": Maybe(Text()),
        "rows": COUNT,
        "whole": Text(),
        "holdout": SHARE,
        "seed": COUNT,
        "split": Text(),
    }
)
LOSSES = Named(Number())
TRAINING = Fields(
    optional={
        "valid_loss": Number(),
        "epochs": COUNT,
        "best_epoch": COUNT,
        "history": Maybe(
            Fields({"epoch": Items(COUNT), "train_loss": Items(Number()), "valid_loss": Items(Maybe(Number()))})
        ),
        "shares": LOSSES,
        "losses": LOSSES,
        "selections": LOSSES,
        "selection": Text(),
        "folds": COUNT,
        "cross_fitted_value": Number(),
    }
)
PROVENANCE = Fields(
    optional={
        "rows": Fields({"train": COUNT, "valid": COUNT}),
        "reward": REWARD,
        "columns": COLUMNS,
        "drop_missing": Truth(),
        "seed": COUNT,
        "training": TRAINING,
        "notes": Items(Text()),
        "versions": Named(Maybe(Text())),
        "seconds": Number(0),
        "source": SOURCE,
    }
)
ESTIMATE = Fields(
    optional={
        "value": Maybe(Number()),
        "low": Maybe(Number()),
        "high": Maybe(Number()),
        "n": COUNT,
        "trusted": Truth(),
        "warnings": Items(Text()),
        "action": Maybe(Label()),
    }
)
EVALUATION = Fields(optional={"value": Named(ESTIMATE), "verdict": Text(), "rows_needed": Maybe(Number(0))})


# The policy ----------------------------------------------------------------------------------------------

MODEL = Fields({"kind": Text(100)})  # each kind looks at the rest itself
ELIGIBILITY = Fields(
    optional={"column": Maybe(NAME), "rules": Items(Text(LONGEST_RULE), most=MOST_RULES), "drop": Truth()}, closed=True
)
POLICY = Fields(
    {
        "format": Whole(1),
        "actions": Items(Label(), 2, MOST_ACTIONS),
        "method": Text(100),
        "settings": Named(Plain()),
        "encoding": Fields({"rows": COUNT, "features": Items(AnyFeature(), 1)}, closed=True),
        "model": MODEL,
        "companions": Fields(optional=dict.fromkeys(("reward", "logging", "similar"), MODEL), closed=True),
        "selected": Items(Items(Truth()), 2, MOST_ACTIONS),
        "relevance": Items(PAIR),
        "provenance": PROVENANCE,
    },
    {"evaluation": Maybe(EVALUATION), "usual": Maybe(Named(Plain())), "eligibility": Maybe(ELIGIBILITY)},
)


def check_description(found: Any) -> None:
    """Raise SchemaError unless all parts are what they must be, each by itself."""
    POLICY.check(found, "policy")
    made = found["provenance"]
    check_reward(made.get("reward"))
    check_training(made.get("training", {}))
    source = made.get("source", {})
    if "whole" in source and not {"holdout", "seed"} <= set(source):
        raise SchemaError("policy.provenance.source names a whole log but not how it was split")


def check_reward(reward: Any) -> None:
    """Raise SchemaError unless the range goes from low to high, by a number that is one."""
    low, high = (0, 0) if reward is None else reward["range"]
    if not 0 <= float(high) - float(low) < math.inf:
        raise SchemaError(f"policy.provenance.reward.range is {low:g} to {high:g}; expected the lower end first")


def check_training(training: Mapping[str, Any]) -> None:
    """Raise SchemaError where fields of training that belong together are not together."""
    wanted = {
        "history": ("best_epoch", "epochs", "valid_loss"),
        "shares": ("losses", "selections", "selection", "folds"),
    }
    for name, others in wanted.items():
        absent = [one for one in others if training.get(name) and one not in training]
        if absent:
            raise SchemaError(f"policy.provenance.training has {name!r}, but lacks {', '.join(absent)}")
    history = training.get("history") or {}
    if len({len(history[name]) for name in ("epoch", "train_loss", "valid_loss") if history}) > 1:
        raise SchemaError("policy.provenance.training.history has lists of different lengths")
