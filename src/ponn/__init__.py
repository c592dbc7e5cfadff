"""From a biased log of past decisions to a better policy that people can trust."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ponn import datasets, simulate
    from ponn.anysize import check, evaluate, learn, read_log
    from ponn.confounding import hidden_confounding
    from ponn.encode import Encoding
    from ponn.errors import LogError, PonnError
    from ponn.evaluation import CurrentPractice, FixedAction, Sampled, SupportedOnly
    from ponn.intervals import Estimate, LowOverlap
    from ponn.log import Log
    from ponn.policy import Policy, load
    from ponn.report import write_report
    from ponn.settings import METHODS, Settings
    from ponn.sharded import ShardedLog
    from ponn.subgroups import value_by_group
    from ponn.world import World

__version__ = "0.1.0"

# Public name → module. Imported on first use, so that `import ponn` and `ponn --help` stay light.
PUBLIC = {
    "check": "ponn.anysize",
    "CurrentPractice": "ponn.evaluation",
    "Encoding": "ponn.encode",
    "Estimate": "ponn.intervals",
    "evaluate": "ponn.anysize",
    "FixedAction": "ponn.evaluation",
    "hidden_confounding": "ponn.confounding",
    "LowOverlap": "ponn.intervals",
    "Sampled": "ponn.evaluation",
    "ShardedLog": "ponn.sharded",
    "SupportedOnly": "ponn.evaluation",
    "LogError": "ponn.errors",
    "PonnError": "ponn.errors",
    "learn": "ponn.anysize",
    "Log": "ponn.log",
    "load": "ponn.policy",
    "METHODS": "ponn.settings",
    "Policy": "ponn.policy",
    "read_log": "ponn.anysize",
    "Settings": "ponn.settings",
    "value_by_group": "ponn.subgroups",
    "World": "ponn.world",
    "write_report": "ponn.report",
}
MODULES = ("datasets", "simulate")

__all__ = [
    "METHODS",
    "CurrentPractice",
    "Encoding",
    "Estimate",
    "FixedAction",
    "Log",
    "LogError",
    "LowOverlap",
    "Policy",
    "PonnError",
    "Sampled",
    "Settings",
    "ShardedLog",
    "SupportedOnly",
    "World",
    "check",
    "datasets",
    "evaluate",
    "hidden_confounding",
    "learn",
    "load",
    "read_log",
    "simulate",
    "value_by_group",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(importlib.import_module(PUBLIC[name]), name)
    if name in MODULES:
        return importlib.import_module(f"ponn.{name}")
    raise AttributeError(f"module 'ponn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
