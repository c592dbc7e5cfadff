"""Which rows of a log a policy learned from: known by a sketch that its file carries, whatever file they come in.

symbol   meaning
f        fingerprint of a row: 64 bits that depend on its features, action and reward
n        training rows; n_1 of their fingerprints stand there once, n_2 twice

The sketch holds the smallest of the n_1 fingerprints and how often a new row has one of them by chance: 2 n_2 / n, what
Good and Turing give to all that was seen once (Good 1953), with three standard errors more. Rows of a later log that
are known more often than that were learned from.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.log.log import Log
from ponn.log.profile import NUMBER, kind_of, numbers, texts
from ponn.log.rules import label_text
from ponn.log.shards import scramble, unit_codes

SIZE = 256  # fingerprints that are kept: 3 kB of a policy file
FOR_SURE = 3.0  # standard errors above chance


def fingerprints(log: Log) -> np.ndarray:
    """f of every row, the same in whatever order the columns stand and whatever file they were read from."""
    names = [*log.features, log.columns.reward]
    labels = pa.array([label_text(action) for action in log.actions]).take(pa.array(log.A))
    codes = {name: cell_codes(log.table.column(name)) for name in names}
    codes[log.columns.action] = unit_codes(pa.chunked_array([labels]))
    found = np.zeros(len(log), np.uint64)
    for name, code in codes.items():
        salt = unit_codes(pa.chunked_array([[name]]))[0]
        found += scramble(code + salt)  # sums of 64 bits wrap around
    return found


def cell_codes(column: pa.ChunkedArray) -> np.ndarray:
    """64 bits per cell; numbers by their value, whether a file holds 1 or 1.0; all else by its text."""
    if kind_of(column.type) == NUMBER:
        return scramble((numbers(column) + 0.0).view(np.uint64))  # -0.0 + 0.0 is 0.0
    return unit_codes(pc.fill_null(texts(column), ""))


def sketch(log: Log) -> dict[str, Any]:
    """What is kept of the rows that a policy learns from."""
    found, times = np.unique(fingerprints(log), return_counts=True)
    once, twice = found[times == 1][:SIZE], int((times == 2).sum())
    chance = min(2 * (twice + FOR_SURE * (math.sqrt(twice) + 1)) / len(log), 1.0)
    whole = len(once) == int((times == 1).sum())
    return {"fingerprints": base64.b64encode(once.tobytes()).decode(), "whole": whole, "chance": chance}


def known_share(log: Log, kept: Mapping[str, Any]) -> float:
    """About which share of the rows was learned from; 0 where that may be chance."""
    once = np.frombuffer(base64.b64decode(kept["fingerprints"]), np.uint64)
    f = fingerprints(log)
    if not kept["whole"]:
        f = f[f <= once[-1]]
    known, chance = int(np.isin(f, once).sum()), kept["chance"] * len(f)
    return known / len(f) if known > chance + FOR_SURE * (math.sqrt(chance) + 1) else 0.0
