"""From a biased log of past decisions to a better policy that people can trust."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ponn import simulate
    from ponn.errors import LogError, PonnError
    from ponn.evaluation.check import check
    from ponn.evaluation.confounding import hidden_confounding
    from ponn.evaluation.evaluate import evaluate
    from ponn.evaluation.intervals import Estimate, LowOverlap
    from ponn.evaluation.subgroups import value_by_group
    from ponn.evaluation.valuation import CurrentPractice, FixedAction, Sampled, SupportedOnly, compare_policies
    from ponn.learning.learn import compare_methods, learn, learn_with_holdout
    from ponn.log.encoding import Encoding
    from ponn.log.log import Log
    from ponn.log.reading import read_log
    from ponn.log.sharded import ShardedLog
    from ponn.methods import METHODS
    from ponn.policy.policy import Policy, load
    from ponn.report.charts import heat_map, relevance_bars
    from ponn.report.page import write_report
    from ponn.settings import Settings
    from ponn.simulate import datasets
    from ponn.simulate.worlds import World
    from ponn.steps.pairs import pair_relevance
    from ponn.steps.propensity import overlap, propensities
    from ponn.steps.relevance import relevance

__version__ = "0.1.0"

# Public name → module. Imported on first use, so that `import ponn` and `ponn --help` stay light.
PUBLIC = {
    "check": "ponn.evaluation.check",
    "CurrentPractice": "ponn.evaluation.valuation",
    "Encoding": "ponn.log.encoding",
    "Estimate": "ponn.evaluation.intervals",
    "evaluate": "ponn.evaluation.evaluate",
    "FixedAction": "ponn.evaluation.valuation",
    "hidden_confounding": "ponn.evaluation.confounding",
    "LowOverlap": "ponn.evaluation.intervals",
    "Sampled": "ponn.evaluation.valuation",
    "ShardedLog": "ponn.log.sharded",
    "SupportedOnly": "ponn.evaluation.valuation",
    "LogError": "ponn.errors",
    "PonnError": "ponn.errors",
    "learn": "ponn.learning.learn",
    "Log": "ponn.log.log",
    "load": "ponn.policy.policy",
    "METHODS": "ponn.methods",
    "Policy": "ponn.policy.policy",
    "read_log": "ponn.log.reading",
    "Settings": "ponn.settings",
    "value_by_group": "ponn.evaluation.subgroups",
    "World": "ponn.simulate.worlds",
    "write_report": "ponn.report.page",
    "compare_methods": "ponn.learning.learn",
    "compare_policies": "ponn.evaluation.valuation",
    "heat_map": "ponn.report.charts",
    "learn_with_holdout": "ponn.learning.learn",
    "overlap": "ponn.steps.propensity",
    "pair_relevance": "ponn.steps.pairs",
    "propensities": "ponn.steps.propensity",
    "relevance": "ponn.steps.relevance",
    "relevance_bars": "ponn.report.charts",
}
MODULES = {"datasets": "ponn.simulate.datasets", "simulate": "ponn.simulate"}

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
    "compare_methods",
    "compare_policies",
    "datasets",
    "evaluate",
    "heat_map",
    "hidden_confounding",
    "learn",
    "learn_with_holdout",
    "load",
    "overlap",
    "pair_relevance",
    "propensities",
    "read_log",
    "relevance",
    "relevance_bars",
    "simulate",
    "value_by_group",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(importlib.import_module(PUBLIC[name]), name)
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    raise AttributeError(f"module 'ponn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
