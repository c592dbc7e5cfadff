"""A world: a log together with the truth that real logs hide, so that every claim can be checked.

symbol         meaning                                                      shape
propensities   p0(a | X_j), the logging policy                              [n, k]
rewards        R_j(a), the reward of every action, taken or not             [n, k], NaN where nobody knows
expected       r(a, X_j) = E[R(a) | X_j]                                    [n, k], NaN where nobody knows
relevance      g(a, i) per loss ("l1", "l2")                                [k, d]
causes         does feature i enter r(a, x) itself (not through a proxy)?   [k, d]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError, listing
from ponn.log.draft import read_log
from ponn.log.log import Log
from ponn.policy.inference import softmax

LOSSES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"l1": np.abs, "l2": np.square}
TRAIN_SHARE = 0.7  # the paper's protocol: 70 % training, 30 % test ...
VALID_SHARE = 0.3  # ... and 30 % of the training rows sequestered for validation


@dataclass(frozen=True, eq=False)
class World:
    """A log with known truth. `train`, `valid` and `test` are row numbers, disjoint and complete."""

    name: str
    about: str  # what is real and what is invented; shown wherever the world is shown
    log: Log
    propensities: np.ndarray  # [n, k]
    rewards: np.ndarray  # [n, k]
    expected: np.ndarray  # [n, k]
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    relevance: Mapping[str, np.ndarray] = field(default_factory=dict)
    causes: np.ndarray | None = None

    @property
    def best(self) -> np.ndarray:
        """A*_j = arg max_a r(a, X_j), as action numbers."""  # [n]
        return np.asarray(np.argmax(self.expected, axis=1))

    def value(self, h: np.ndarray) -> float:
        """The true value of a policy on these rows: mean_j sum_a h(a | X_j) r(a, X_j)."""
        return float(np.mean(np.sum(h * self.expected, axis=1)))

    def accuracy(self, h: np.ndarray) -> float:
        """Acc of section 7: the policy's mean probability of the best action A*_j."""
        return float(np.mean(h[np.arange(len(h)), self.best]))

    def truth_table(self) -> pa.Table:
        """What the log hides, row by row: part, p_<action>, reward_<action>, expected_<action>."""
        part = np.full(len(self.log), "train")
        part[self.valid], part[self.test] = "valid", "test"
        columns: dict[str, np.ndarray] = {"part": part}
        for title, values in (
            ("p", self.propensities),
            ("reward", self.rewards),
            ("expected", self.expected),
        ):
            columns |= {f"{title}_{a}": values[:, j] for j, a in enumerate(self.log.actions)}
        return pa.table({name: pa.array(column, from_pandas=True) for name, column in columns.items()})

    def part(self, *names: str) -> "World":
        """The rows of the named parts ("train", "valid", "test") as a world of their own."""
        return self.rows(np.concatenate([getattr(self, name) for name in names]))

    def rows(self, rows: np.ndarray) -> "World":
        """The given rows, in increasing order, as a world of their own."""
        rows = np.sort(rows)
        return replace(
            self,
            log=self.log.take(rows),
            propensities=self.propensities[rows],
            rewards=self.rewards[rows],
            expected=self.expected[rows],
            train=np.flatnonzero(np.isin(rows, self.train)),
            valid=np.flatnonzero(np.isin(rows, self.valid)),
            test=np.flatnonzero(np.isin(rows, self.test)),
        )


def softmax_policy(Z: np.ndarray, k: int, kappa: float, rng: np.random.Generator) -> np.ndarray:
    """The paper's logging policy: p0(a | z) = softmax_a(theta_a . z) with theta_a ~ N(0, kappa I)."""
    theta = rng.normal(0.0, np.sqrt(kappa), (Z.shape[1], k))
    return softmax(Z @ theta)  # [n, k]


class Split(NamedTuple):
    """Row numbers of three parts."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def split_rows(n: int, rng: np.random.Generator) -> Split:
    """The paper's random training, validation and test parts."""
    order = rng.permutation(n)
    outer = round(TRAIN_SHARE * n)
    inner = round((1 - VALID_SHARE) * outer)
    return Split(np.sort(order[:inner]), np.sort(order[inner:outer]), np.sort(order[outer:]))


def read_only(tables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tables, which many worlds share, guarded against changes."""
    for table in tables.values():
        table.setflags(write=False)
    return tables


def observe(
    features: pa.Table,
    actions: np.ndarray,
    outcomes: np.ndarray,
    *,
    names: tuple[str, str],
    propensity: np.ndarray | None = None,
    labels: Sequence[object],
) -> Log:
    """The log an outsider sees: features, the action taken, its reward, and the propensity if it was kept."""
    action, reward = names
    never = [label for a, label in enumerate(labels) if not (actions == a).any()]
    if never:
        raise PonnError(
            f"Action {listing(never)} was never taken in the {len(actions)} rows drawn. "
            "Ask for more rows or a weaker bias."
        )
    table = features.append_column(action, pa.array(labels).take(pa.array(actions)))
    table = table.append_column(reward, pa.array(outcomes))
    if propensity is not None:
        table = table.append_column("propensity", pa.array(propensity))
    return read_log(
        table,
        action=action,
        reward=reward,
        propensity=None if propensity is None else "propensity",
        reward_range=(0.0, 1.0),
        features=features.column_names,
    )
