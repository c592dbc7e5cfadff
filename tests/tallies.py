"""Step B's sums of one feature whose levels are given."""

import numpy as np

from ponn.tally import CELL, LevelTally, Taken, add_levels, level_tally


def tally_levels(levels: np.ndarray, b: int, taken: Taken) -> LevelTally:
    """The tally of one feature with b levels."""
    sums = np.zeros((taken.k, b, CELL))
    add_levels(sums, levels, taken)
    return level_tally([sums], lambda i: levels, taken)
