"""Step B's sums of one feature whose levels are given."""

import numpy as np

from ponn.steps.tally import LevelTally, Sums, Taken, add_levels, level_tally


def tally_levels(levels: np.ndarray, b: int, taken: Taken) -> LevelTally:
    """The tally of one feature with b levels."""
    sums = Sums.zero(taken.k, [b])
    add_levels(sums.of(0), levels, taken)
    return level_tally(sums, lambda i: levels, taken)
