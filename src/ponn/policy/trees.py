"""Policies made of decision trees: their arrays and their decisions, with numpy alone.

symbol      meaning                                                              shape
X           design columns (encode.py), single precision                         [n, D]
column      what a node asks about; -1 at a leaf                                 [nodes]
threshold   of the inner nodes: a row goes left where x <= threshold             [inner nodes]
value       of the leaves                                                        [leaves, m]
nodes       how many nodes each tree has                                         [trees]
trees       how many trees each forest has; 0: nothing was known                 [forests]

The nodes of a tree stand level by level, the root first. So the children of its r-th inner node (r = 0, 1, ...) are its
nodes 2r + 1 and 2r + 2: no pointer is stored, and where every child stands behind its parent there can be no cycle.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np

from ponn.errors import PonnError
from ponn.policy.inference import restricted
from ponn.policy.schema import Fields, OneOf, Schema, Whole

LEAF = -1
BLOCK_ROWS = 4_096  # rows that walk down together; with D = 50 their columns take 0.8 MB
BLOCK_PAIRS = 1 << 15  # (row, tree) pairs that walk down together: their arrays stay in the cache
BLOCK_VALUES = 1 << 20  # numbers read from their leaves together: 8 MB
LEVELS = 4  # steps between two looks at who has arrived, which cost as much as half a step
ROUNDING = 1e-9  # by which the shares in a leaf may miss a sum of 1
DTYPES = {"column": np.int32, "threshold": np.float32, "value": np.float64, "nodes": np.int32, "trees": np.int32}
FOREST_SHAPES: Mapping[str, tuple[None, ...]] = {name: (None,) * (2 if name == "value" else 1) for name in DTYPES}
DEEPEST = 10_000  # levels of a tree: every row may walk down all of them, which takes 0.1 s


# Forests -------------------------------------------------------------------------------------------------


class Walk(NamedTuple):
    """The nodes of all trees, ready to walk down: left to `left`, right to the node behind it; leaves stay."""

    column: np.ndarray  # [nodes], 0 at a leaf
    threshold: np.ndarray  # [nodes], infinite at a leaf
    left: np.ndarray  # [nodes], the leaf itself at a leaf
    leaf: np.ndarray  # [nodes] bool
    place: np.ndarray  # [nodes], the row of `value` at a leaf


@dataclass(frozen=True, eq=False)
class Forests:
    """Several forests on the same columns; what cannot be walked down does not come into being."""

    column: np.ndarray
    threshold: np.ndarray
    value: np.ndarray
    nodes: np.ndarray
    trees: np.ndarray

    def __post_init__(self) -> None:
        check_arrays(self)
        check_trees(self)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Name → array, as a policy file holds them."""
        return {name: getattr(self, name) for name in DTYPES}

    @cached_property
    def starts(self) -> np.ndarray:
        """The root of each tree, and the end of the last: [trees + 1]."""
        return offsets(self.nodes)

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first tree of each forest, and the end of the last: [forests + 1]."""
        return offsets(self.trees)

    @cached_property
    def walk(self) -> Walk:
        """What a row needs on its way down."""
        leaf = self.column == LEAF
        threshold = np.full(len(leaf), np.inf, np.float32)
        threshold[~leaf] = self.threshold
        left = np.where(leaf, np.arange(len(leaf)), left_children(self))
        return Walk(np.where(leaf, 0, self.column).astype(np.intp), threshold, left, leaf, np.cumsum(leaf) - 1)

    def means(self, X: np.ndarray, first: int = 0, last: int | None = None) -> np.ndarray:
        """The mean over each forest's trees of the leaves that rows end in, for forests first to last; 0 without trees.

        A column is compared in single precision, as scikit-learn does. X holds no NaN.
        """
        X = np.asarray(X, np.float32)
        last = len(self.trees) if last is None else last
        out = np.zeros((last - first, len(X), self.value.shape[1]))
        owner = np.repeat(np.arange(last - first), self.trees[first:last])  # the forest of each tree
        roots = self.starts[self.firsts[first] : self.firsts[last]]
        for rows in blocks(len(X), BLOCK_ROWS):
            flat = np.ascontiguousarray(X[rows].T).ravel()
            n = len(flat) // X.shape[1]
            for trees in blocks(len(roots), max(1, min(BLOCK_PAIRS, BLOCK_VALUES // self.value.shape[1]) // n)):
                leaves = self.leaves(flat, n, roots[trees])  # [trees, n]
                add_by_owner(out[:, rows], owner[trees], self.value.take(self.walk.place.take(leaves), axis=0))
        return out.swapaxes(0, 1) / np.maximum(self.trees[first:last], 1)[:, None]  # [n, forests, m]

    def leaves(self, flat: np.ndarray, n: int, roots: np.ndarray) -> np.ndarray:
        """The leaf, as a node, in which each row ends in each tree; flat: the columns of n rows, one behind another."""
        walk = self.walk
        node, row = np.repeat(roots, n), np.tile(np.arange(n), len(roots))
        waiting = np.flatnonzero(~walk.leaf[node])  # the pairs that have not arrived
        ends = node.copy()
        node, row = node[waiting], row[waiting]
        while len(waiting):
            for _ in range(LEVELS):
                right = flat.take(walk.column.take(node) * n + row) > walk.threshold.take(node)
                node = walk.left.take(node)
                node += right
            ends[waiting] = node
            on = np.flatnonzero(~walk.leaf.take(node))
            waiting, node, row = waiting.take(on), node.take(on), row.take(on)
        return ends.reshape(len(roots), n)


def offsets(counts: np.ndarray) -> np.ndarray:
    """Where each run of counts begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.intp)])


def blocks(length: int, size: int) -> Iterator[slice]:
    """Neighbouring slices of at most so many."""
    return (slice(start, start + size) for start in range(0, length, size))


def add_by_owner(out: np.ndarray, owner: np.ndarray, values: np.ndarray) -> None:
    """Add the values [trees, n, m] of each tree to its forest's sum in out [forests, n, m]; owners stand in order."""
    begins = np.flatnonzero(np.diff(owner, prepend=-1))
    out[owner[begins]] += np.add.reduceat(values, begins, axis=0)


def left_children(forests: Forests) -> np.ndarray:
    """The left child of every inner node, as a node; leaves get a number without meaning."""
    starts = forests.starts[:-1]
    inner = np.cumsum(forests.column != LEAF) - (forests.column != LEAF)  # inner nodes before, in all trees
    rank = inner - np.repeat(inner[starts], forests.nodes)
    return np.repeat(starts, forests.nodes) + 2 * rank + 1


def check_arrays(forests: Forests) -> None:
    """Raise PonnError unless the arrays have their types and shapes and hold numbers."""
    for name, dtype in DTYPES.items():
        array, dimensions = getattr(forests, name), 2 if name == "value" else 1
        if array.dtype != dtype or array.ndim != dimensions:
            refuse(f"{name} is {array.dtype} in {array.ndim} dimensions, not {np.dtype(dtype)} in {dimensions}")
        if not np.isfinite(array).all():
            refuse(f"{name} holds values that are not finite")
    if not forests.value.shape[1]:
        refuse("its leaves hold nothing")


def check_trees(forests: Forests) -> None:
    """Raise PonnError unless the counts fit and every child stands behind its parent."""
    column, nodes, trees = forests.column, forests.nodes, forests.trees
    if not len(nodes) or nodes.min() < 1 or trees.min(initial=0) < 0:
        refuse("it has no tree, or one without nodes")
    if nodes.sum(dtype=np.int64) != len(column) or trees.sum(dtype=np.int64) != len(nodes):
        refuse("the numbers of trees and nodes do not fit")
    inner = column != LEAF
    if (2 * np.add.reduceat(inner, forests.starts[:-1], dtype=np.int64) + 1 != nodes).any():
        refuse("a tree has more or fewer leaves than its inner nodes ask for")
    if len(forests.threshold) != inner.sum() or len(forests.value) != len(column) - inner.sum():
        refuse("there are more or fewer thresholds or values than nodes for them")
    if (left_children(forests) <= np.arange(len(column)))[inner].any():
        refuse("a node stands before its parent")
    if column.min() < LEAF:
        refuse("a node asks about a column below 0")
    check_depth(forests)


def check_depth(forests: Forests) -> None:
    """Raise PonnError where a tree is deeper than rows should have to walk."""
    inner = offsets(forests.column != LEAF)  # inner nodes before each node
    start, size = forests.starts[:-1], np.ones(len(forests.nodes), np.intp)  # of a level of each tree
    for _ in range(DEEPEST):
        below = 2 * (inner[start + size] - inner[start])  # nodes of the next level
        start, size = (start + size)[below > 0], below[below > 0]
        if not len(size):
            return
    refuse(f"a tree has more than {DEEPEST:,} levels")


def refuse(what: str) -> NoReturn:
    """Raise the error of a model that cannot be used."""
    raise PonnError(f"The tree model is damaged: {what}. Learn the policy again or take another copy of its file.")


# Decisions -----------------------------------------------------------------------------------------------

Eligible = np.ndarray | None  # [n, k] bool: may the action be taken? None: always


def vote(forests: Forests, X: np.ndarray, k: int, eligible: Eligible = None) -> np.ndarray:
    """One forest with a share per action in its leaves: h(a | x) is the mean share.

    Eligible actions share what they have in proportion; where no tree votes for any of them, they share alike.
    """
    shares = forests.means(X)[:, 0]  # [n, k]
    if eligible is None:
        return shares
    return restricted(shares, eligible, eligible / eligible.sum(axis=1, keepdims=True))


def best(forests: Forests, X: np.ndarray, k: int, eligible: Eligible = None) -> np.ndarray:
    """One forest of rewards per action: the action with the largest mean, the first of equals.

    An action whose forest has no trees was never seen; it is taken only where no other is eligible.
    """
    means = np.where(forests.trees > 0, forests.means(X)[:, :, 0], -1.0)  # [n, k]
    return one_hot((means if eligible is None else np.where(eligible, means, -np.inf)).argmax(axis=1), k)


def tournament(forests: Forests, X: np.ndarray, k: int, eligible: Eligible = None) -> np.ndarray:
    """One forest per duel with the probability that the right side wins: from the root down to one action.

    It is the action that wins all its duels on the way up; 1/2 is for the left side. A side without an eligible action
    loses.
    """
    low, high = np.zeros(len(X), np.intp), np.full(len(X), k)
    for number, duel in enumerate(duels(k)):
        rows = np.flatnonzero((low == duel.low) & (high == duel.high))
        if len(rows):
            right = forests.means(X[rows], number, number + 1)[:, 0, 0] > 0.5
            if eligible is not None:
                sides = (eligible[rows, duel.low : duel.middle], eligible[rows, duel.middle : duel.high])
                left_can, right_can = (side.any(axis=1) for side in sides)
                right = (right | ~left_can) & right_can
            low[rows[right]] = duel.middle
            high[rows[~right]] = duel.middle
    return one_hot(low, k)


class Duel(NamedTuple):
    """An inner node of the binary tree over actions: low to middle - 1 against middle to high - 1."""

    low: int
    middle: int
    high: int


def duels(k: int) -> list[Duel]:
    """The tree over k actions, halved in their order; every duel stands before those below it."""

    def below(low: int, high: int) -> Iterator[Duel]:
        if high - low > 1:
            middle = (low + high) // 2
            yield Duel(low, middle, high)
            yield from below(low, middle)
            yield from below(middle, high)

    return list(below(0, k))


def one_hot(actions: np.ndarray, k: int) -> np.ndarray:
    """The policy that takes these actions for sure."""
    h = np.zeros((len(actions), k))
    h[np.arange(len(actions)), actions] = 1
    return h  # [n, k]


DECISIONS: Mapping[str, Callable[[Forests, np.ndarray, int, Eligible], np.ndarray]] = {
    "vote": vote,
    "best": best,
    "tournament": tournament,
}


@dataclass(frozen=True, eq=False)
class TreeModel:
    """A policy that decides by forests: kind, arrays and description are what a policy file keeps of it."""

    kind: ClassVar[str] = "trees"
    schema: ClassVar[Schema] = Fields({"k": Whole(), "D": Whole(), "decision": OneOf(tuple(DECISIONS))}, closed=True)
    forests: Forests
    k: int
    D: int
    decision: str  # one of DECISIONS

    def __post_init__(self) -> None:
        if self.decision not in DECISIONS:
            refuse(f"it decides by {self.decision!r}, which is none of {', '.join(DECISIONS)}")
        if any(type(size) is not int for size in (self.k, self.D)) or self.k < 2 or self.D < 1:
            refuse(f"it has {self.k!r} actions and {self.D!r} columns")
        if self.forests.column.max() >= self.D:
            refuse(f"a node asks about column {self.forests.column.max()} of {self.D}")
        check_decision(self)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Everything large."""
        return self.forests.arrays

    @property
    def description(self) -> dict[str, Any]:
        """Everything small, in plain values."""
        return {"k": self.k, "D": self.D, "decision": self.decision}

    @classmethod
    def shapes(cls, description: Mapping[str, Any], names: Collection[str]) -> Mapping[str, tuple[int | None, ...]]:
        """As many nodes as there are."""
        return FOREST_SHAPES

    @classmethod
    def build(cls, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """The model from a policy file's parts; whatever does not fit is refused."""
        if set(arrays) != set(DTYPES) or set(description) != {"k", "D", "decision"}:
            refuse(f"it holds {', '.join(sorted(map(str, {*arrays, *description})))}")
        return cls(Forests(**arrays), **description)

    def probabilities(self, X: np.ndarray, eligible: Eligible = None) -> np.ndarray:
        """h(a | x) for every row, over the eligible actions."""
        return DECISIONS[self.decision](self.forests, self.fitting(X), self.k, eligible)  # [n, k]

    def rewards(self, X: np.ndarray) -> np.ndarray | None:
        """The expected reward of every action where the model predicts one, 0 for actions never seen; else None."""
        return self.forests.means(self.fitting(X))[:, :, 0] if self.decision == "best" else None  # [n, k]

    def fitting(self, X: np.ndarray) -> np.ndarray:
        """The rows, if they have the columns that the trees ask about."""
        if X.ndim != 2 or X.shape[1] != self.D:
            raise PonnError(f"The rows have shape {X.shape}; expected {self.D} columns, as in training.")
        return X


def check_decision(model: TreeModel) -> None:
    """Raise PonnError unless there are as many forests as the decision needs, with values it can use."""
    forests, k = model.forests, model.k
    count, m = {"vote": (1, k), "best": (k, 1), "tournament": (k - 1, 1)}[model.decision]
    if (len(forests.trees), forests.value.shape[1]) != (count, m):
        refuse(f"deciding by {model.decision} among {k} actions needs {count} forests with {m} values in a leaf")
    if model.decision == "tournament" and not forests.trees.all():
        refuse("a duel has no trees")
    if forests.value.min() < 0 or forests.value.max() > 1:
        refuse("its leaves hold values outside 0 to 1")
    if model.decision == "vote" and np.abs(forests.value.sum(axis=1) - 1).max() > ROUNDING:
        refuse("the shares in a leaf do not add up to 1")
