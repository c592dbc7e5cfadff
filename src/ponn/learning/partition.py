"""The training rows in cells of alike cases, learned with scikit-learn; `similar.py` uses them.

symbol   meaning                                                  shape
X        design columns                                           [n, D]
A        actions taken                                            [n]
R        rewards in [0, 1]                                        [n]
r        r_hat(A_j, x_j) of the logistic reward model             [n]
Y        what rows of one cell share: action taken and reward     [n, k + 1]
"""

import numpy as np

from ponn.learning.forests import flat, joined
from ponn.policy.similar import SimilarRows

MOST_CELLS = 64  # 12 kB for 6 actions; the file stays small whatever the log
# Fewest rows in a cell, per action: 5 to 20 were tried. With fewer, 1 to 5 % of the supported actions had nobody
# similar, and intervals were wider; with 20 hardly any (breast-cancer and synthetic worlds, 245 to 4,900 rows).
ROWS_PER_ACTION = 20
MOST_ROWS = 100_000  # rows that the tree is grown on; all rows are counted


def fit_similar(X: np.ndarray, A: np.ndarray, R: np.ndarray, r: np.ndarray, k: int, least: int = 1) -> SimilarRows:
    """A shallow tree on the action taken and the reward together, and what happened in each of its leaves.

    least: rows of a leaf that must have taken an action for anything to be kept of them.
    """
    from sklearn.tree import DecisionTreeRegressor

    smallest = max(ROWS_PER_ACTION * k, least)
    tree = DecisionTreeRegressor(max_leaf_nodes=MOST_CELLS, min_samples_leaf=smallest, random_state=0)
    rows = some_rows(len(X))
    tree.fit(X[rows], shared(A[rows], R[rows], k))
    cell = tree.apply(X) * k + A  # node and action of each row
    error = R - r
    sums = [
        np.bincount(cell, weight, tree.tree_.node_count * k).reshape(-1, k) for weight in (None, R, error, error**2)
    ]
    told = sums[0] >= least  # [nodes, k]
    grown = flat(tree.tree_, np.hstack([one * told for one in sums]).astype(float))
    return SimilarRows(joined([[grown]], 4 * k), k, X.shape[1], least)


def some_rows(n: int) -> np.ndarray:
    """All rows, or as many of them at random as the tree is grown on."""
    return np.arange(n) if n <= MOST_ROWS else np.sort(np.random.default_rng(0).permutation(n)[:MOST_ROWS])


def shared(A: np.ndarray, R: np.ndarray, k: int) -> np.ndarray:
    """Y: the action as 0 and 1, and the reward, each with variance 1 in all."""
    taken = np.eye(k)[A]
    return np.column_stack([one / (np.sqrt(one.var(axis=0).sum()) or 1.0) for one in (taken, R[:, None])])
