"""A log on disk for tests: its rows, its files, its columns."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROLES = {"action": "action", "reward": "reward"}


def table(rows: int, seed: int = 0) -> pa.Table:
    """A log with numbers, few whole numbers, texts, missing cells, an identifier, a constant, groups and times."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=rows), rng.random(rows)
    word = rng.choice(["red", "green", "blue"], rows)
    logits = np.column_stack([0.5 * x, -0.5 * x, 0.8 * (word == "red")])
    P = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    A = (P.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    r = 1 / (1 + np.exp(-np.column_stack([x, 0.2 + 0 * x, -x + (word == "blue")])))
    j = np.arange(rows)
    return pa.table(
        {
            "x": pa.array(np.where(y < 0.1, np.nan, x), from_pandas=True),
            "y": y.astype(np.float32),
            "few": rng.integers(0, 4, rows).astype(np.int8),
            "word": pa.array(word).dictionary_encode(),
            "number": j + 10**9,
            "same": np.full(rows, 7),
            "person": [f"p{one}" for one in rng.integers(0, rows // 3, rows)],
            "day": j.astype("datetime64[D]"),
            "heavy": rng.integers(1, 4, rows).astype(float),
            "known": P[j, A],
            "action": np.array(["a", "b", "c"])[A],
            "reward": (rng.random(rows) < r[j, A]).astype(np.int8),
        }
    )


def write(folder, source: pa.Table, files: int, group: int = 400):
    """The table in so many files of several row groups each."""
    edges = np.linspace(0, len(source), files + 1).astype(int)
    folder.mkdir()
    for number, (first, last) in enumerate(pairwise(edges)):
        pq.write_table(source.slice(first, last - first), folder / f"part-{number:02d}.parquet", row_group_size=group)
    return folder


def names(**others):
    return {**ROLES, "ignore": ["person", "day", "heavy", "known"], **others}
