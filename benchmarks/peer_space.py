"""Who is compared, where each method lives, and everything that is tried for it: six trials each, as time allows.

A slow method may not get to its last trials, so those that seem the most promising stand first.

PONN-DR tunes itself and has one trial. Trials of our own methods are settings of `ponn.learn`, which keeps 30 % of its
rows to stop training (PONN-DR none) and does not refit: `direct-forest` and the direct method by extra trees differ in
that. What needs no learning (`STANDING`) is what any learned policy has to beat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

Trial = Mapping[str, Any]


@dataclass(frozen=True)
class Contender:
    """A method: its environment (a folder of .venv-peers; "" is ponn's own), runner, function and trials."""

    home: str
    runner: str
    fit: str
    trials: Sequence[Trial] = field(default_factory=lambda: ({},))
    edition: int = 1  # grows when code or a constant of the runner, not settings, changes what is learned


def all_of(**values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Every combination."""
    return tuple(dict(zip(values, point, strict=True)) for point in product(*values.values()))


STRENGTHS = (1e-3, 1e-2)
RELU: Trial = {"activation": "relu"}  # better and faster than the paper's sigmoid units, for every network
NETWORKS = all_of(learning_rate=(3e-3, 1e-2, 1e-3), hidden=((100,), (128, 128)))
FORESTS = all_of(leaf=(3, 10, 1), columns=(0.33, "sqrt"))
EXTRA_TREES = all_of(leaf=(3, 10, 1), columns=(0.5, 0.2))
BOOSTING = all_of(learning_rate=(0.03, 0.1), leaves=(4, 8, 31))
# Vowpal Wabbit: linear, all pairs of features, one hidden layer; each with a large and a small step
VOWPAL = tuple(
    {**kind, **pace}
    for kind in ({}, {"interactions": "xx"}, {"nn": 30})
    for pace in ({"learning_rate": 0.1, "passes": 3}, {"learning_rate": 0.01, "passes": 10})
)


def ours(name: str, *trials: Trial) -> Contender:
    """A method of ponn's own."""
    return Contender("", "run_ponn.py", name, trials or ({},))


METHODS: dict[str, Contender] = {
    "ponn-dr": Contender("", "run_ponn.py", "ponn-dr", edition=5),
    "ponn-b": ours("ponn-b", *({**RELU, **one} for one in all_of(lambda1=(0.03, 0.06, 0.2), l2=STRENGTHS))),
    "ponn": ours("ponn", *({**RELU, **one} for one in all_of(l2=(3e-4, 1e-3, 1e-2), learning_rate=(1e-3, 3e-3)))),
    "banditnet": ours("banditnet", *({**RELU, **one} for one in all_of(baseline=(0.0, 0.3, 0.6), l2=STRENGTHS))),
    "poem": ours(
        "poem", *({"clip": 0.0, **one} for one in all_of(variance=(0.0, 0.3, 1.0), learning_rate=(1e-2, 1e-1)))
    ),
    "poem-b": ours(
        "poem-b", *({"clip": 0.0, **one} for one in all_of(lambda1=(0.03, 0.06, 0.2), learning_rate=(1e-2, 1e-1)))
    ),
    "poem-l1": ours(
        "poem-l1", *({"clip": 0.0, **one} for one in all_of(l1=(1e-4, 1e-3, 1e-2), learning_rate=(1e-2, 1e-1)))
    ),
    "mlp-l1": ours("mlp-l1", *({**RELU, **one} for one in all_of(l1=(1e-5, 1e-4, 1e-3), learning_rate=(1e-3, 5e-3)))),
    "lr-l1": ours("lr-l1", *all_of(l1=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1))),
    "direct-forest": ours("direct-forest", *EXTRA_TREES),
    "ipw-forest": ours("ipw-forest", *EXTRA_TREES),
    "offset-tree": ours("offset-tree", *EXTRA_TREES),
    "obp NNPolicyLearner ipw": Contender("obp", "run_obp.py", "ipw", NETWORKS),
    "obp NNPolicyLearner dr": Contender("obp", "run_obp.py", "dr", NETWORKS),
    "obp NNPolicyLearner dm": Contender("obp", "run_obp.py", "dm", NETWORKS),
    "obp IPWLearner logistic": Contender(
        "obp", "run_obp.py", "logistic", all_of(C=(1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0))
    ),
    "obp IPWLearner forest": Contender("obp", "run_obp.py", "forest", FORESTS),
    "obp IPWLearner boosting": Contender("obp", "run_obp.py", "boosting", BOOSTING),
    "obp QLearner forest": Contender("obp", "run_obp.py", "q", FORESTS),
    "Vowpal Wabbit ips": Contender("vw", "run_vw.py", "ips", VOWPAL),
    "Vowpal Wabbit dm": Contender("vw", "run_vw.py", "dm", VOWPAL),
    "Vowpal Wabbit dr": Contender("vw", "run_vw.py", "dr", VOWPAL),
    "Vowpal Wabbit mtr": Contender("vw", "run_vw.py", "mtr", VOWPAL),
    "contextualbandits OffsetTree": Contender(
        "contextualbandits",
        "run_contextualbandits.py",
        "offset tree",
        (*all_of(base=("logistic",), C=(1e-2, 1.0)), *all_of(base=("forest",), leaf=(10, 1), columns=(0.33, "sqrt"))),
    ),
    "contextualbandits DoublyRobustEstimator": Contender(
        "contextualbandits",
        "run_contextualbandits.py",
        "doubly robust",
        (*all_of(base=("ridge",), alpha=(1.0, 100.0)), *all_of(base=("forest",), leaf=(10, 1), columns=(0.33, "sqrt"))),
    ),
    "EconML DRPolicyForest": Contender(
        "econml", "run_econml.py", "forest", all_of(max_depth=(None, 6), min_samples_leaf=(5, 20, 100))
    ),
    "EconML DRPolicyTree": Contender(
        "econml", "run_econml.py", "tree", all_of(max_depth=(3, 6, None), min_samples_leaf=(10, 50))
    ),
    "direct method, boosting": Contender("", "run_direct.py", "boosting", BOOSTING),
    "direct method, forest": Contender("", "run_direct.py", "forest", FORESTS),
    "direct method, extra trees": Contender("", "run_direct.py", "extra_trees", EXTRA_TREES),
    "direct method, ridge": Contender("", "run_direct.py", "ridge", all_of(alpha=(0.1, 1.0, 10.0, 100.0, 1e3, 1e4))),
}
# What needs no learning: the policy that made the log, and the action with the best value on the rows learned from
CURRENT_PRACTICE, BEST_FIXED = "current practice", "best fixed action"
STANDING = (CURRENT_PRACTICE, BEST_FIXED)
OURS = "ponn-dr"
