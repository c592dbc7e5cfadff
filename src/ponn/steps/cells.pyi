"""Types of the compiled inner loops of Step B (cells.c)."""

from typing import Any

import numpy as np

def add_rows(
    levels: np.ndarray, A: np.ndarray, outcomes: np.ndarray, weights: np.ndarray | None, table: np.ndarray
) -> None: ...
def add_bins(
    features: list[tuple[Any, ...]],
    A: np.ndarray,
    outcomes: np.ndarray,
    weights: np.ndarray | None,
    first: int,
    last: int,
) -> None: ...
