"""Types of the compiled inner loops of Step B (cells.c)."""

import numpy as np

def equal_bins(x: np.ndarray, low: float, scale: float, bins: int, missing: int, out: np.ndarray) -> None: ...
def add_rows(
    levels: np.ndarray, first_cells: np.ndarray, outcomes: np.ndarray, weights: np.ndarray | None, table: np.ndarray
) -> None: ...
