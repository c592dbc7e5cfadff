"""Values from sums over shards: in however many pieces, the same as from all rows in memory."""

from typing import NamedTuple

import numpy as np
import pytest

from ponn.evaluation.estimators import Terms, logged_value, terms, valuation
from ponn.evaluation.intervals import error_of
from ponn.evaluation.shard_evaluation import LOGGED, PRACTICE, Sums, Tail, bucket_sums, estimate_of, moments, moved_sums

ESTIMATORS = ("dr", "sndr", "ips", "snips", "dm")


class Rows(NamedTuple):
    """Logged rows under two policies; nine of ten outcomes are 1."""

    sides: list[Terms]
    R: np.ndarray
    weight: np.ndarray
    group: np.ndarray


def drawn(scale: float = 1.0, n: int = 400) -> Rows:
    """Random rows whose weights are around `scale`."""
    rng = np.random.default_rng(0)
    A, R, weight = rng.integers(3, size=n), (rng.random(n) < 0.9).astype(float), rng.uniform(0.2, 3, n) * scale
    p, Q = rng.uniform(0.1, 0.9, n), np.clip(rng.normal(0.85, 0.05, (n, 3)), 0, 1)
    sides = [terms(rng.dirichlet(np.ones(3), n), A, R, p, Q, weight) for _ in range(2)]
    return Rows(sides, R, weight, rng.integers(60, size=n))


def sums_of(rows: Rows, some: np.ndarray, grouped: bool) -> Sums:
    """The sums of some rows, as a shard gives them."""
    sides, R, weight = rows.sides, rows.R[some], rows.weight[some]
    unexpected = [R - sides[0].q[some], R - rows.R.mean()]
    columns, moved = [np.ones(len(some)), R, *unexpected], []
    for t in sides:
        w, (dm, error) = t.w[some], t.predictions()
        columns += [dm[some], w * error[some], w, w * R]
        moved.append(w * weight)
    V = np.column_stack(columns) * weight[:, None]
    nobody = (np.zeros(3), np.zeros((2, 3)), np.zeros(2))
    groups = bucket_sums(V, rows.group[some].astype(np.uint64)) if grouped else None
    u = np.column_stack([*moved, weight]) / rows.weight.mean()
    return Sums(moments(V), *nobody, [Tail.of(one, 1_000) for one in moved], moved_sums(u, unexpected), groups)


def merged(rows: Rows, pieces: int, grouped: bool) -> Sums:
    """The sums of all rows from so many pieces, each written and read again."""
    total = Sums.zero(2, 3, grouped)
    for some in np.array_split(np.arange(len(rows.R)), pieces):
        total += Sums.from_arrays(sums_of(rows, some, grouped).arrays(1_000))
    return total


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e-110, 1e105])
def test_values_and_errors_from_sums_are_those_of_the_rows(estimator, grouped, scale):
    rows = drawn(scale)
    total, group = merged(rows, 3, grouped), rows.group if grouped else None
    one, other = (valuation(estimator, t, group=group) for t in rows.sides)
    practice = logged_value(rows.R, rows.weight)
    expected = {None: one, LOGGED: one - practice, 1: one - other}
    for less, found in expected.items():
        told = estimate_of(total, estimator, 0, 0.95, less=less)
        assert told.value == pytest.approx(found.value, abs=1e-12)
        assert told.standard_error == pytest.approx(error_of(found, group), rel=1e-9)
    told = estimate_of(total, PRACTICE, 0, 0.95)
    assert (told.value, told.standard_error) == pytest.approx((practice.value, error_of(practice, group)), rel=1e-9)


def test_rewards_that_hardly_differ_lose_no_digits():
    """As where the declared range is far wider than the rewards: cubes around 0 would leave nothing of them."""
    rows = drawn()
    R = 0.5 + 1e-6 * rows.R
    Q = np.repeat(R.mean(), len(R))
    rows = rows._replace(R=R, sides=[Terms(t.w, R, t.weight, Q, Q) for t in rows.sides])
    found, total = logged_value(R, rows.weight), merged(rows, 3, grouped=False)
    assert estimate_of(total, PRACTICE, 0, 0.95).standard_error == pytest.approx(error_of(found), rel=1e-6)
