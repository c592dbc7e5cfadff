"""Columns in pieces, against plain loops and what their sums must be."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ponn.learning.dr import pieces
from ponn.learning.dr.pieces import PIECES, Pieces

NUMBERS = st.integers(-50, 50).map(lambda number: np.float32(number / 4))


@given(arrays(np.float32, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=NUMBERS))
def test_pieces_are_those_between_quantiles_as_plain_loops_find_them(X):
    made = Pieces.of(X, len(X))
    column, low, high = [], [], []
    for i in range(X.shape[1]):
        edges = sorted({np.float32(np.quantile(X[:, i], share / PIECES)) for share in range(PIECES + 1)})
        for first, second in pairwise(edges):
            if len(edges) > 2 and len(set(X[:, i])) > 2:
                column.append(i), low.append(first), high.append(second)
    assert (made.column.tolist(), made.low.tolist(), made.high.tolist()) == (column, low, high)
    for row, found in zip(X, made.beside(X), strict=True):
        own = [min(max((row[i] - a) / (b - a), 0), 1) for i, a, b in zip(column, low, high, strict=True)]
        np.testing.assert_allclose(found, [*row, *own], atol=1e-6)


def test_pieces_add_up_to_any_function_that_is_linear_between_quantiles_and_constant_outside():
    rng = np.random.default_rng(0)
    seen, new = rng.normal(size=(400, 1)).astype(np.float32), np.linspace(-9, 9, 700, dtype=np.float32)[:, None]
    made = Pieces.of(seen, 400)
    assert len(made) == PIECES
    edges = np.append(made.low, made.high[-1])
    heights = rng.normal(size=PIECES + 1)
    wanted = np.interp(new[:, 0], edges, heights)
    np.testing.assert_allclose(heights[0] + made.beside(new)[:, 1:] @ np.diff(heights), wanted, atol=1e-5)


@pytest.mark.parametrize("n", [3, 9, 10, 180])
def test_a_column_that_takes_one_or_two_values_has_no_pieces(n):
    """A quantile may fall between the two: of ten rows that alternate, the median is a half."""
    X = np.column_stack([np.ones(n), np.arange(n) % 2, np.arange(n)]).astype(np.float32)
    assert set(Pieces.of(X, len(X)).column) == {2}
    assert len(Pieces.of(X[:, :2], len(X))) == 0
    assert np.array_equal(Pieces.of(X[:, :2], len(X)).beside(X[:, :2]), X[:, :2])


def test_a_single_piece_is_left_out():
    """All quantiles but the last are 0: the piece from 0 to 2 would say what the column says."""
    assert len(Pieces.of(np.array([*[0] * 98, 1, 2], np.float32)[:, None], 100)) == 0
    assert Pieces.of(np.array([*[0] * 80, *[1] * 19, 2], np.float32)[:, None], 100).high.tolist() == [1, 2]


@pytest.mark.parametrize(("limit", "three_each", "one_each"), [("MOST_PIECES", 6, 2), ("MOST_NUMBERS", 600, 200)])
def test_many_columns_or_rows_to_read_have_fewer_pieces_each(monkeypatch, limit, three_each, one_each):
    X = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    X = np.column_stack([X, X > 0])  # columns that have no pieces do not count
    assert len(Pieces.of(X, 100)) == 2 * PIECES
    monkeypatch.setattr(pieces, limit, three_each)
    assert len(Pieces.of(X, 100)) == 2 * 3
    monkeypatch.setattr(pieces, limit, one_each)  # a single piece says what its column says
    assert len(Pieces.of(X, 100)) == 0
