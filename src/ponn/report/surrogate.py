"""What a policy does in a few questions: a shallow tree that imitates it, and how often both agree on other rows."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ponn.errors import PonnError, install_line
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature, NumberFeature
from ponn.log.log import Log
from ponn.log.profile import BOOLEAN, NUMBER
from ponn.policy.policy import Policy

FIT_SHARE = 0.7  # of the rows given; on the others the agreement is measured
MOST_ROWS = 50_000  # a tree of a few questions is settled long before
FEWEST_ROWS = 20  # with fewer nothing can be measured
LEAF_SHARE = 0.01  # of the rows: the smallest kind of case worth a line
DEPTH = {2: 3, 12: 4}  # questions in a row: 3 for two actions, 4 for up to 12, else 5


@dataclass(frozen=True)
class Leaf:
    """A kind of case, and the action that most of its rows are recommended."""

    action: Any
    rows: int  # of those that the tree was fitted on
    share: float  # of them that are recommended this action


@dataclass(frozen=True)
class Question:
    """A question about one feature; rows go one of two ways."""

    yes_if: str
    no_if: str
    yes: "Leaf | Question"
    no: "Leaf | Question"


@dataclass(frozen=True)
class Surrogate:
    """A tree that imitates a policy, and its fidelity: how often it agrees with the policy on rows it never saw."""

    root: Leaf | Question
    fidelity: float
    constant: float  # fidelity of always saying the action recommended most, for comparison
    rows_fitted: int
    rows_measured: int


def imitate(policy: Policy, log: Log, seed: int = 0, fewest: int = 5) -> Surrogate:
    """Fit a shallow tree to what the policy recommends for rows of the log; measure its agreement on the others.

    fewest: rows that every kind of case must have.
    """
    try:
        from sklearn.tree import DecisionTreeClassifier
    except ImportError as error:
        raise PonnError(f"The summary of a policy as a tree needs scikit-learn: {install_line('learn')}.") from error
    if len(log) < FEWEST_ROWS:
        raise PonnError(f"A summary of the policy needs at least {FEWEST_ROWS} rows; these are {len(log)}.")
    first, rest = (rows[:MOST_ROWS] for rows in log.split_rows(FIT_SHARE, seed))
    X, eligible = policy.design(log)
    A = policy.decide(X, None, eligible=eligible).first
    depth = next((depth for most, depth in DEPTH.items() if len(policy.actions) <= most), 5)
    smallest = max(fewest, round(LEAF_SHARE * len(first)))
    tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=smallest, random_state=seed)
    tree.fit(X[first], A[first])
    usual = np.bincount(A[first]).argmax()
    return Surrogate(
        root=simplest(node_in_words(tree, 0, policy)),
        fidelity=float(np.mean(tree.predict(X[rest]) == A[rest])),
        constant=float(np.mean(A[rest] == usual)),
        rows_fitted=len(first),
        rows_measured=len(rest),
    )


def node_in_words(fitted: Any, node: int, policy: Policy) -> Leaf | Question:
    """A node of a fitted tree and everything below it."""
    tree = fitted.tree_
    if tree.children_left[node] < 0:
        shares = tree.value[node][0]
        action = policy.actions[fitted.classes_[shares.argmax()]]
        return Leaf(action, int(tree.n_node_samples[node]), float(shares.max() / shares.sum()))
    below, above = (
        node_in_words(fitted, int(side[node]), policy) for side in (tree.children_left, tree.children_right)
    )
    at_most, more = sides(policy.encoding, int(tree.feature[node]), float(tree.threshold[node]))
    return Question(at_most, more, below, above)


def simplest(node: Leaf | Question) -> Leaf | Question:
    """The tree without questions whose answer changes nothing."""
    if isinstance(node, Leaf):
        return node
    yes, no = simplest(node.yes), simplest(node.no)
    if isinstance(yes, Leaf) and isinstance(no, Leaf) and yes.action == no.action:
        rows = yes.rows + no.rows
        return Leaf(yes.action, rows, (yes.share * yes.rows + no.share * no.rows) / rows)
    return Question(node.yes_if, node.no_if, yes, no)


def sides(encoding: Encoding, column: int, threshold: float) -> tuple[str, str]:
    """A split of a design column in words: for values up to the threshold, and above it."""
    feature = encoding.features[encoding.owner[column]]
    place = column - int(np.flatnonzero(encoding.owner == encoding.owner[column])[0])
    if isinstance(feature, CategoryFeature):
        level, others = feature.level_names[place], [*feature.level_names[:place], *feature.level_names[place + 1 :]]
        other = others[0] if len(others) == 1 else f"not {level}"
        return f"{feature.name} is {other}", f"{feature.name} is {level}"
    if place == 1:
        return f"{feature.name} is known", f"{feature.name} is missing"
    if feature.kind == BOOLEAN:
        return f"{feature.name} is false", f"{feature.name} is true"
    cut = cut_in_words(feature, feature.mean + threshold * feature.scale)
    return f"{feature.name} is under {cut}", f"{feature.name} is {cut} or more"


def cut_in_words(feature: NumberFeature, cut: float) -> str:
    """The smallest value above the cut where the values are few and known, else the cut with few digits."""
    if feature.values is not None:
        return feature.say(min((value for value in feature.values if value > cut), default=cut))
    if feature.kind != NUMBER:
        return feature.say(cut)
    return feature.say(round(cut, 2 - math.floor(math.log10(feature.scale))))
