"""The compiled loops of Step B do what numpy's do, to the last bit, and refuse what does not fit."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import ponn
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature, NumberFeature, is_divisible
from ponn.log.profile import without_infinite
from ponn.steps import tally
from ponn.steps.tally import GRAM_ROWS, GramTally, Sums, Taken, Tally, add_levels, add_values, equal_bins, numpy_sums
from tallies import tally_levels

needs_compiled = pytest.mark.skipif(not tally.COMPILED, reason="the package was built without a C compiler")


@pytest.fixture
def without_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "COMPILED", False)


# Bins ----------------------------------------------------------------------------------------------------

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def number(low: float, high: float, bins: int, missing: bool) -> NumberFeature:
    return NumberFeature("x", "number", low, high, bins, None, None, missing, 0.0, 1.0)


@st.composite
def binned(draw: st.DrawFn) -> tuple[NumberFeature, np.ndarray]:
    """A feature of equal bins and values of every kind: on the cuts and beside them, outside, missing, infinite."""
    near = st.floats(-1000, 1000)
    low, high = sorted((draw(near | FINITE), draw(near | FINITE)))
    bins = draw(st.integers(1, 300) | st.just(np.iinfo(np.int16).max))
    assume(low < high and is_divisible(low, high, bins))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    cuts = [low + (high - low) * (j / bins) for j in draw(st.lists(st.integers(0, bins), max_size=20))]
    others = draw(st.lists(st.floats(low, high) | FINITE | st.sampled_from([np.nan, np.inf, -np.inf]), max_size=20))
    with np.errstate(all="ignore"):
        x = np.array([low, high, *cuts, *others]).astype(dtype)
        x = np.concatenate([x, np.nextafter(x, dtype(-np.inf)), np.nextafter(x, dtype(np.inf))])
    if draw(st.booleans()):
        x = x[(np.float64(low) <= x) & (x <= np.float64(high))]  # nothing but ordinary values, or nothing at all
    return number(low, high, bins, draw(st.booleans())), x[:: draw(st.sampled_from([1, 2]))]


def compiled_bins(feature: NumberFeature, x: np.ndarray, taken: Taken) -> tuple[np.ndarray, np.ndarray]:
    """The sums of one feature, and its values less the mean, by the compiled loop."""
    sums, X = Sums.zero(taken.k, [feature.b, 1]), np.full((2, len(x)), np.nan)
    bins = equal_bins(Encoding((feature,), len(x)), [x], sums, X)
    tally.kernel.add_bins(list(bins.values()), taken.actions, taken.outcomes, taken.weights, 0, len(x))
    assert not sums.of(1).any()
    return sums.of(0), X[0]


@needs_compiled
@settings(deadline=None, max_examples=400)
@given(binned(), st.integers(0, 10_000))
def test_the_compiled_bins_are_those_of_the_encoding(case, seed):
    feature, x = case
    rng = np.random.default_rng(seed)
    taken = Taken(rng.integers(0, 3, len(x)), rng.normal(size=len(x)), 3, rng.random(len(x)) if seed % 2 else None)
    sums, centred = compiled_bins(feature, x, taken)
    x = without_infinite(x)
    assert sums.tobytes() == numpy_sums(feature.codes(x), feature.b, taken).tobytes()
    assert np.array_equal(centred, np.where(np.isnan(x), 0, x.astype(float) - feature.mean))


@needs_compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("missing", "counts"), [(True, [1, 1, 2]), (False, [1, 1])])
def test_a_missing_value_has_the_last_level_or_none(dtype, missing, counts):
    x = np.array([0.1, np.nan, 0.9, np.nan], dtype)
    sums, _ = compiled_bins(number(0.0, 1.0, 2, missing), x, Taken(np.zeros(4, int), np.ones(4), 1))
    assert sums[0, :, 2].tolist() == counts


@needs_compiled
def test_bins_of_values_that_are_not_aligned_in_memory():
    x = np.frombuffer(b"." + np.linspace(-1, 2, 50, dtype=np.float32).tobytes(), np.float32, offset=1)
    feature, taken = number(0.0, 1.0, 7, False), Taken(np.arange(50) % 2, np.ones(50), 2)
    assert np.array_equal(compiled_bins(feature, x, taken)[0], numpy_sums(feature.codes(x), 7, taken))


@needs_compiled
def test_some_of_the_rows_are_added_and_no_others():
    rng = np.random.default_rng(0)
    x, taken = rng.random(5_000), Taken(rng.integers(0, 2, 5_000), rng.random(5_000), 2)
    feature, sums, X = number(0.0, 1.0, 9, False), Sums.zero(2, [9]), np.full((2, 3_000), np.nan)
    bins = equal_bins(Encoding((feature,), 5_000), [x], sums, X)
    tally.kernel.add_bins(list(bins.values()), taken.actions, taken.outcomes, None, 1_500, 4_000)
    part = slice(1_500, 4_000)
    assert np.array_equal(sums.cells, numpy_sums(feature.codes(x[part]), 9, taken.rows(part)))
    assert np.array_equal(X[0, :2_500], x[part])
    assert np.isnan(X[0, 2_500:]).all()


# Sums ----------------------------------------------------------------------------------------------------


@st.composite
def outcomes(draw: st.DrawFn) -> tuple[np.ndarray, int, Taken]:
    """Levels, some of them none, and what was done: also no rows at all, one action, one level, strided arrays."""
    n, k, b, step = draw(st.tuples(st.integers(0, 60), st.integers(1, 4), st.integers(1, 6), st.integers(1, 2)))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    levels = rng.integers(draw(st.integers(-1, 0)), b, n).astype(np.int16)
    u = rng.normal(size=n) * 10.0 ** rng.integers(-8, 8, n) * rng.integers(0, 2, n)  # -0.0 among the zeros
    weight = rng.random(n) if draw(st.booleans()) else None
    taken = Taken(rng.integers(0, k, n).astype(draw(st.sampled_from([np.int8, np.int64]))), u, k, weight)
    return levels[::step], b, taken.rows(slice(None, None, step))


@needs_compiled
@settings(deadline=None, max_examples=300)
@given(outcomes())
def test_the_compiled_sums_are_those_of_numpy(case):
    levels, b, taken = case
    sums = Sums.zero(taken.k, [2, b, 3])
    add_levels(sums.of(1), levels, taken)
    assert sums.of(1).tobytes() == numpy_sums(levels, b, taken).tobytes()
    assert not sums.of(0).any()
    assert not sums.of(2).any()


@given(outcomes())
def test_the_sums_are_plain_loops(case):
    levels, b, taken = case
    expected = np.zeros((taken.k, b, 3))
    for j, level in enumerate(levels):
        weight = 1.0 if taken.weight is None else taken.weight[j]
        if level >= 0:
            expected[taken.A[j], level] += (taken.u[j] * weight, taken.u[j] * weight * taken.u[j], weight)
    assert np.array_equal(numpy_sums(levels, b, taken), expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_squares_that_cancel_are_summed_around_the_mean_and_without_the_rows_of_no_level(weighted):
    rng = np.random.default_rng(0)
    levels, noise = rng.integers(-1, 3, 200).astype(np.int16), rng.integers(-8, 9, 200) * 2.0**-30
    weight = rng.integers(1, 5, 200).astype(float) if weighted else None
    found = tally_levels(levels, 3, Taken(np.zeros(200, int), 1 + noise, 1, weight))
    w = np.ones(200) if weight is None else weight
    for level in range(3):
        mine = levels == level
        mean = np.average(noise[mine], weights=w[mine])
        assert found.U[0, level] == pytest.approx(1 + mean, rel=1e-15)
        assert found.M2[0, level] == pytest.approx(
            w[mine] @ (noise[mine] - mean) ** 2, rel=1e-6
        )  # of differences of 2^-30


@needs_compiled
@pytest.mark.parametrize("weighted", [False, True])
def test_a_tally_is_the_same_without_the_compiled_loops(weighted, request):
    world = ponn.simulate.world("breast-cancer", rows=3_000, known_propensity=True).log
    table = world.table.append_column("weight", pa.array(np.random.default_rng(0).random(3_000)))
    roles = {"action": "regimen", "reward": "survived", "propensity": "propensity"}
    log = ponn.read_log(table, **roles, **({"weight": "weight"} if weighted else {"ignore": ["weight"]}))
    encoding = Encoding.fit(log.take(np.arange(2_000)))  # the rest has values out of range
    compiled = tally.tally_log(encoding, log, log.R / log.p0)
    request.getfixturevalue("without_compiled")
    plain = tally.tally_log(encoding, log, log.R / log.p0)
    for one, other in zip(arrays(compiled), arrays(plain), strict=True):
        assert one.tobytes() == other.tobytes()


@needs_compiled
def test_infinite_cells_are_missing_with_and_without_the_compiled_loops(request):
    """Also where squares cancel, so that the levels are looked up a second time."""
    x = np.array([0.1, np.inf, 0.2, -np.inf, 0.9, np.nan, 0.15, 0.95], np.float32)
    taken = Taken(np.zeros(8, int), np.full(8, 3.0), 1)  # one action, one outcome: M2 is exactly 0
    found = []
    for missing in (True, False):
        encoding = Encoding((number(0.0, 1.0, 2, missing),), 8)
        found.append(tally.tally_batch(encoding, [pa.chunked_array([x])], taken))
    request.getfixturevalue("without_compiled")
    for missing, compiled in zip((True, False), found, strict=True):
        encoding = Encoding((number(0.0, 1.0, 2, missing),), 8)
        plain = tally.tally_batch(encoding, [pa.chunked_array([x])], taken)
        for one, other in zip(arrays(compiled), arrays(plain), strict=True):
            assert one.tobytes() == other.tobytes()
        assert compiled.levels.N.tolist() == [3, 2, *([3] if missing else []), 8]
        assert not compiled.levels.M2.any()
        assert np.isfinite(compiled.gram.C).all()


def arrays(found: Tally) -> Iterator[np.ndarray]:
    yield from (found.levels.N, found.levels.N_taken, found.levels.U, found.levels.M2, found.gram.mean, found.gram.C)


def test_no_rows_are_a_tally_of_zeros():
    encoding = Encoding((number(0.0, 1.0, 3, False),), 10)
    none = Taken(np.zeros(0, int), np.zeros(0), 2)
    found = tally.tally_batch(encoding, [pa.chunked_array([], pa.float32())], none)
    assert not any(array.any() for array in arrays(found))


# What the compiled loops refuse --------------------------------------------------------------------------

ROWS = {"levels": np.zeros(4, np.int16), "A": np.zeros(4, np.intc), "u": np.ones(4)}
FITTING = ROWS | {"weights": None, "table": np.zeros((2, 3, 3))}
NOT_FITTING = {
    "level beyond the last": ({"levels": np.array([0, 3, 0, 0], np.int16)}, "outside"),
    "level below none": ({"levels": np.array([0, -2, 0, 0], np.int16)}, "outside"),
    "action beyond the last": ({"A": np.array([0, 2, 0, 0], np.intc)}, "outside"),
    "negative action": ({"A": np.array([0, -1, 0, 0], np.intc)}, "outside"),
    "huge action": ({"A": np.full(4, np.iinfo(np.intc).max, np.intc)}, "outside"),
    "too few actions": ({"A": np.zeros(3, np.intc)}, "belong together"),
    "too few outcomes": ({"u": np.ones(3)}, "belong together"),
    "outcomes in columns": ({"u": np.ones((4, 1))}, "expected are"),
    "too few weights": ({"weights": np.ones(3)}, "belong together"),
    "narrow table": ({"table": np.zeros((2, 3, 2))}, "belong together"),
    "table without cells": ({"table": np.zeros((0, 3, 3))}, "outside"),
    "flat table": ({"table": np.zeros((6, 3))}, "expected are"),
    "every other level of a table": ({"table": np.zeros((2, 6, 3))[:, ::2]}, "belong together"),
    "levels before actions": ({"table": np.zeros((3, 2, 3)).transpose(1, 0, 2)}, "belong together"),
    "sums before cells": ({"table": np.zeros((3, 2, 3)).transpose(1, 2, 0)}, "belong together"),
    "table that repeats an action": ({"table": np.broadcast_to(np.zeros((1, 3, 3)), (2, 3, 3))}, "read-only"),
    "actions that overlap": ({"table": as_strided(np.zeros(40), (2, 3, 3), (48, 24, 8))}, "belong together"),
    "actions between cells": ({"table": as_strided(np.zeros(40), (2, 3, 3), (80, 24, 8))}, "belong together"),
    "table of singles": ({"table": np.zeros((2, 3, 3), np.float32)}, "expected are"),
    "levels of another type": ({"levels": np.zeros(4, np.int32)}, "expected are"),
    "levels of the other byte order": ({"levels": np.zeros(4, np.int16).astype(">i2")}, "expected are"),
    "strided levels": ({"levels": np.zeros(8, np.int16)[::2]}, "contiguous"),
    "no array": ({"levels": None}, "bytes-like"),
}


@needs_compiled
@pytest.mark.parametrize("name", NOT_FITTING)
def test_rows_that_do_not_fit_the_table_are_refused(name):
    changes, message = NOT_FITTING[name]
    with pytest.raises((TypeError, ValueError), match=message):
        tally.kernel.add_rows(*(FITTING | changes).values())


@needs_compiled
def test_a_table_that_is_only_for_reading_is_refused():
    table = np.zeros((2, 3, 3))
    table.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        tally.kernel.add_rows(*ROWS.values(), None, table)


X_FITTING = np.array([0.1, 0.6, 0.2, 0.9])
BINS = {"x": X_FITTING, "low": 0.0, "scale": 2.0, "bins": 2, "missing": -1, "mean": 0.5}
BINS |= {"table": np.zeros((2, 2, 3)), "centred": np.zeros(4)}
BINS_NOT_FITTING = {
    "no bins": ({"bins": 0}, "do not fit"),
    "more bins than the table has": ({"bins": 3}, "do not fit"),
    "missing beyond the table": ({"missing": 2}, "do not fit"),
    "fewer values than rows": ({"x": X_FITTING[:3]}, "do not fit"),
    "too little room": ({"centred": np.zeros(3)}, "do not fit"),
    "narrow room": ({"centred": np.zeros(4, np.float32)}, "do not fit"),
    "fewer actions than were taken": ({"table": np.zeros((1, 2, 3))}, "do not fit"),
    "narrow table": ({"table": np.zeros((2, 2, 2))}, "belong together"),
    "values of another type": ({"x": np.zeros(4, int)}, "expected are"),
    "strided values": ({"x": np.zeros(8)[::2]}, "contiguous"),
    "room of another type": ({"centred": np.zeros(4, int)}, "expected are"),
}


@needs_compiled
@pytest.mark.parametrize("name", BINS_NOT_FITTING)
def test_bins_that_do_not_fit_are_refused(name):
    changes, message = BINS_NOT_FITTING[name]
    A = np.array([0, 1, 0, 0], np.intc)
    with pytest.raises((TypeError, ValueError), match=message):
        tally.kernel.add_bins([tuple((BINS | changes).values())], A, np.ones(4), None, 0, 4)


@needs_compiled
@pytest.mark.parametrize("rows", [(-1, 2), (3, 2), (0, 5)])
def test_rows_that_are_not_there_are_refused(rows):
    with pytest.raises(ValueError, match="are not among 4"):
        tally.kernel.add_bins([tuple(BINS.values())], np.zeros(4, np.intc), np.ones(4), None, *rows)


# The Gram matrix over several blocks ---------------------------------------------------------------------


def moments_of(encoding: Encoding, columns: list[np.ndarray], weight: np.ndarray | None) -> GramTally:
    taken = Taken(np.zeros(len(columns[0]), int), np.zeros(len(columns[0])), 1, weight)
    sums = Sums.zero(1, (*encoding.b.tolist(), 1))
    return add_values(encoding, columns, taken, sums, gram=True)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_compiled), False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_missing_cells_count_as_the_mean_in_every_block(dtype, weighted, compiled, monkeypatch):
    """Also where training had none missing, and whatever the block before left behind."""
    monkeypatch.setattr(tally, "COMPILED", compiled)
    n, rng = 2 * GRAM_ROWS + 100, np.random.default_rng(0)
    expected_gap, surprise = rng.normal(5, 2, n), rng.normal(-3, 1, n)
    category = rng.integers(-1, 2, n).astype(np.int16)
    expected_gap[rng.random(n) < 0.2], surprise[GRAM_ROWS + 7] = np.nan, np.nan
    features = (
        NumberFeature("p", "number", 0.0, 9.0, 4, None, None, True, 5.0, 2.0),
        NumberFeature("q", "number", 0.0, 9.0, 4, None, None, False, -3.0, 1.0),
    )
    columns = [expected_gap.astype(dtype), surprise.astype(dtype)]
    rows = [np.nan_to_num(x.astype(float) - one.mean) for x, one in zip(columns, features, strict=True)]
    if dtype == np.float64:
        features, columns = (*features, CategoryFeature("c", ("u", "v"), (), 0, False)), [*columns, category]
        rows += [category == level for level in range(2)]
    weight = rng.random(n) if weighted else None
    found = moments_of(Encoding(features, n), columns, weight)
    w = np.ones(n) if weight is None else weight
    X = np.array(rows, float)
    mean = X @ w / w.sum()
    close = {"rtol": 1e-4, "atol": 1e-4 * n**0.5} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-9}
    assert found.n == pytest.approx(w.sum())
    assert np.allclose(found.mean, mean, rtol=1e-5, atol=1e-6)
    assert np.allclose(found.C, ((X - mean[:, None]) * w) @ (X - mean[:, None]).T, **close)


def test_a_gram_tally_of_no_rows_is_zero():
    found = moments_of(Encoding((number(0.0, 1.0, 3, False),), 10), [np.zeros(0)], None)
    zero = GramTally.zero(1)
    assert (found.n, found.mean.tolist(), found.C.tolist()) == (zero.n, zero.mean.tolist(), zero.C.tolist())
