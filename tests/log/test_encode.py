"""From the user's columns to levels and design columns (section 6 for the bins)."""

import math
from dataclasses import replace
from datetime import date, datetime
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ponn
from ponn import Encoding, PonnError, Settings
from ponn.log import encoding as encode
from ponn.log.features import COUNTED_CUTS, MISSING, NO_LEVEL, OTHER, bin_count, cuts_not_above
from ponn.log.log import Log

QUANTILE = Settings(bins="quantile")
anything = st.floats(width=64)  # NaN and infinite ones among them
moderate = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))  # squares neither vanish nor overflow
quick = settings(deadline=None, max_examples=40)
cells = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 0.1, 1.0, 2.0]), moderate)


def log_of(**columns: Any) -> Log:
    """A log of these features, kept even if constant or unlike a feature, with some actions and rewards."""
    table = pa.table({name: as_column(values) for name, values in columns.items()})
    row = np.arange(table.num_rows)
    table = table.append_column("action", pa.array(row % 2)).append_column("reward", pa.array(row % 3))
    return ponn.read_log(table, action="action", reward="reward", features=list(columns))


def as_column(values: Any) -> Any:
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)


def fit_one(values: Any, how: Settings | None = None) -> tuple[Any, Log]:
    log = log_of(x=values)
    return Encoding.fit(log, how).features[0], log


def rows_of(**columns: Any) -> pa.Table:
    return pa.table({name: as_column(values) for name, values in columns.items()})


def levels_of(encoding: Encoding, **columns: Any) -> Any:
    return encoding.levels(rows_of(**columns)).tolist()


# Levels or bins ------------------------------------------------------------------------------------------


@given(st.integers(1, 10**15))
@example(64_000_000_000_000)  # 40000^3, where floating-point cube roots go wrong
@example(64_000_000_000_001)
def test_the_bin_count_is_the_smallest_number_whose_cube_reaches_n(n: int) -> None:
    s = bin_count(n)
    assert (s - 1) ** 3 < n <= s**3


@pytest.mark.parametrize(("n", "distinct", "binned"), [(27, 3, False), (27, 4, True), (28, 4, False), (28, 5, True)])
def test_a_feature_is_binned_when_it_has_more_than_s_distinct_values(n: int, distinct: int, binned: bool) -> None:
    feature, _ = fit_one([float(j % distinct) for j in range(n)])
    assert (feature.values is None) == binned
    assert feature.b == (bin_count(n) if binned else distinct)


def test_levels_or_bins_is_decided_per_feature_and_from_the_distinct_known_values_alone() -> None:
    n = 64  # s = 4
    few = [None, *(float(j % 4) for j in range(n - 1))]
    many = [None, *(float(j) for j in range(n - 1))]
    encoding = Encoding.fit(log_of(few=few, many=many))
    assert [getattr(one, "values", ()) for one in encoding.features] == [(0.0, 1.0, 2.0, 3.0), None]
    assert encoding.b.tolist() == [5, 5]  # 4 levels or bins, and missing


def test_zero_and_minus_zero_are_one_value() -> None:
    feature, log = fit_one([0.0, -0.0, 1.0, 1.0, -0.0, 0.0, 1.0, 0.0])  # s = 2, and Arrow sees three values
    assert feature.level_names == ("0", "1")
    assert Encoding.fit(log).levels(log)[:, 0].tolist() == [0, 0, 1, 1, 0, 0, 1, 0]


def test_bins_are_of_equal_width_over_the_training_range_and_empty_ones_count() -> None:
    x = [*np.linspace(0.0, 1.0, 63), 100.0]  # s = 4: 0-25, 25-50, 50-75, 75-100
    feature, log = fit_one(x)
    assert feature.b == 4
    assert feature.level_names == ("0 to 25", "25 to 50", "50 to 75", "75 to 100")
    assert np.bincount(Encoding.fit(log).levels(log)[:, 0], minlength=4).tolist() == [63, 0, 0, 1]


def test_a_value_on_an_edge_opens_the_upper_bin_and_the_highest_stays_in_the_last() -> None:
    encoding = Encoding.fit(log_of(x=np.linspace(0.0, 4.0, 64)))
    below = np.nextafter([1.0, 2.0, 3.0, 4.0], 0)
    assert levels_of(encoding, x=[0.0, 1.0, 2.0, 3.0, 4.0]) == [[0], [1], [2], [3], [3]]
    assert levels_of(encoding, x=below) == [[0], [1], [2], [3]]


def test_values_out_of_range_go_to_the_end_bins() -> None:
    for how in (Settings(), QUANTILE):
        feature, log = fit_one(np.linspace(-0.03, 0.05, 100), how)
        encoding = Encoding((feature,), len(log))
        assert levels_of(encoding, x=[-3.1, -1e308, 5.1, 1e308]) == [[0], [0], [feature.b - 1], [feature.b - 1]]


def test_levels_take_the_nearest_value_and_the_upper_one_half_way() -> None:
    encoding = Encoding.fit(log_of(x=[0.0, 1.0, 4.0] * 9))  # s = 3
    seen = [-9.0, 0.0, 0.49, 0.5, 1.0, 2.4, 2.5, 4.0, 9.0]
    assert levels_of(encoding, x=seen) == [[0], [0], [0], [1], [1], [1], [2], [2], [2]]


def test_quantile_bins_hold_equal_shares_whatever_the_scale() -> None:
    n = 1_000  # s = 10
    x = np.random.default_rng(1).permutation(np.exp(np.linspace(0.0, 50.0, n)))
    feature, log = fit_one(x, QUANTILE)
    counts = np.bincount(Encoding.fit(log, QUANTILE).levels(log)[:, 0])
    assert feature.b == 10
    assert abs(counts - n / 10).max() <= 1
    assert np.bincount(Encoding.fit(log).levels(log)[:, 0])[0] > 0.9 * n  # equal width: nearly all in one


@pytest.mark.parametrize("sign", [1, -1])
def test_where_most_rows_share_one_value_the_others_get_quantile_bins_of_their_own(sign: int) -> None:
    x = [0.0] * 950 + [sign * (1.0 + j) for j in range(50)]  # every quantile asked for is 0
    feature, log = fit_one(x, QUANTILE)
    codes = Encoding.fit(log, QUANTILE).levels(log)[:, 0]
    assert feature.b == 2  # repeated cuts are left out, and b counts what is left
    assert set(codes[:950]).isdisjoint(codes[950:])


# The bin rule against plain loops ------------------------------------------------------------------------


def level_by_loop(value: float | None, feature: Any) -> int:
    """The rule of section 6 for one cell, with nothing vectorised."""
    if value is None or not math.isfinite(value):
        return feature.bins if feature.missing else NO_LEVEL
    if feature.cuts is not None:
        return sum(1 for cut in feature.cuts if cut <= value)
    position = (value - feature.low) * (feature.bins / (feature.high - feature.low))
    return int(min(max(position, 0.0), feature.bins - 1))


def edges_and_their_neighbours(feature: Any) -> list[float]:
    edges = [feature.low, feature.high, *feature.inner_cuts()]
    return [float(near) for edge in edges for near in (np.nextafter(edge, -np.inf), edge, np.nextafter(edge, np.inf))]


@quick
@given(
    st.lists(cells, min_size=2, max_size=60), st.lists(anything, max_size=20), st.sampled_from([Settings(), QUANTILE])
)
def test_levels_equal_a_plain_loop_over_the_cells(
    train: list[float | None], others: list[float], how: Settings
) -> None:
    feature, log = fit_one(pa.array(train, pa.float64()), how)
    encoding = Encoding((feature,), len(log))
    seen = [*train, *others, *edges_and_their_neighbours(feature)]
    expected = [[level_by_loop(one, feature)] for one in seen]
    assert levels_of(encoding, x=pa.array(seen, pa.float64())) == expected


@given(st.lists(moderate, unique=True, max_size=COUNTED_CUTS + 5), st.lists(moderate))
@example([float(j) for j in range(COUNTED_CUTS + 1)], [-1.0, 0.0, 50.0, 50.5, 100.0, 101.0])
@example([float(j) for j in range(COUNTED_CUTS)], [-1.0, 0.0, 50.0, 50.5, 99.0, 101.0])
def test_counting_cuts_and_searching_them_agree(cuts: list[float], x: list[float]) -> None:
    cuts = sorted(cuts)
    found = cuts_not_above(np.array([*x, *cuts], float), tuple(cuts))
    assert found.tolist() == [sum(1 for cut in cuts if cut <= one) for one in (*x, *cuts)]


@quick
@given(st.lists(st.one_of(st.none(), anything), min_size=2, max_size=60), st.sampled_from([Settings(), QUANTILE]))
@example([-1.7e308, 1.7e308, 0.0, 1.0, 2.0], Settings())  # neither the range nor the squares are finite
@example([1e200, 2e200, 3e200, 4e200], Settings())  # the squares are not
@example([5e-324, 1e-323, 0.0, 2e-323], Settings())  # the inverse of the range is not
@example([1.0, float(np.nextafter(1, 2))], Settings())  # no number lies between the two
def test_any_numbers_give_levels_below_b_a_finite_design_and_codes_in_order(
    train: list[float | None], how: Settings
) -> None:
    feature, log = fit_one(pa.array(train, pa.float64()), how)
    encoding = Encoding((feature,), len(log))
    codes, design = encoding.levels(log)[:, 0], encoding.design(log)
    known = np.array([one is not None and math.isfinite(one) for one in train])
    assert ((codes >= 0) & (codes < feature.b)).all()
    assert ((codes == feature.bins) == ~known).all()
    assert len(feature.level_names) == feature.b
    assert np.isfinite(design).all()
    x = np.array([one if is_known else 0.0 for one, is_known in zip(train, known, strict=True)])[known]
    assert (np.diff(codes[known][np.argsort(x)]) >= 0).all()
    if feature.values is not None:
        assert codes[known].tolist() == [feature.values.index(one) for one in x]


def test_a_range_too_wide_for_a_float_is_cut_all_the_same() -> None:
    log = log_of(x=[-1.7e308, -1.0, 0.0, 1.0, 1.7e308])  # s = 2
    assert Encoding.fit(log).levels(log)[:, 0].tolist() == [0, 0, 1, 1, 1]


# Missing, constant, boolean, date ------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [None, math.nan, math.inf, -math.inf])
def test_missing_is_the_last_level_and_an_indicator_beside_a_neutral_zero(gap: float | None) -> None:
    encoding = Encoding.fit(log_of(x=[1.0, 2.0, 3.0, gap, 2.0, 2.0, 1.0, 3.0] * 8))  # s = 4
    assert encoding.features[0].level_names == ("1", "2", "3", MISSING)
    assert levels_of(encoding, x=[3.0, gap, 1.0]) == [[2], [3], [0]]
    assert encoding.design_names == ("x", f"x {MISSING}")
    design = encoding.design(rows_of(x=[2.0, gap]))
    np.testing.assert_array_equal(design, [[0, 0], [0, 1]])  # 2 is the mean


def test_a_missing_number_that_training_never_had_has_no_level_and_the_neutral_value() -> None:
    encoding = Encoding.fit(log_of(x=np.arange(64.0)))
    assert levels_of(encoding, x=[None, 0.0]) == [[NO_LEVEL], [0]]
    assert encoding.design(rows_of(x=pa.array([None], pa.float64()))).tolist() == [[0.0]]
    assert encoding.surprises(rows_of(x=[None, 0.0, math.nan])) == {"x": {"missing": 2}}


@quick
@given(moderate, st.integers(2, 500))
@example(0.1, 10)  # 0.1 added up ten times and divided by ten is not 0.1
def test_a_constant_column_has_one_level_and_a_design_of_zeros(value: float, n: int) -> None:
    encoding = Encoding.fit(log_of(x=[value] * n))
    assert encoding.b.tolist() == [1]
    assert not encoding.design(rows_of(x=[value] * n)).any()
    assert encoding.design(rows_of(x=[value + 2.0]))[0, 0] == pytest.approx(2.0)  # not divided by a tiny rounding error


def test_an_empty_column_is_nothing_but_missing() -> None:
    encoding = Encoding.fit(log_of(x=pa.nulls(9, pa.float64()), y=pa.nulls(9, pa.string())))
    rows = rows_of(x=pa.nulls(2, pa.float64()), y=pa.nulls(2, pa.string()))
    assert encoding.levels(rows).tolist() == [[1, 0], [1, 0]]  # x has one level, defined and empty
    np.testing.assert_array_equal(encoding.design(rows), [[0, 1, 1]] * 2)


def test_booleans_are_two_levels_with_names() -> None:
    encoding = Encoding.fit(log_of(x=[True, False, False, None] * 8))
    assert encoding.features[0].level_names == ("false", "true", MISSING)
    assert levels_of(encoding, x=[False, True, None]) == [[0], [1], [2]]
    assert encoding.design(rows_of(x=[True]))[0, 0] == pytest.approx((1 - 1 / 3) / math.sqrt(2 / 9))


def test_dates_are_binned_by_day_and_named_as_dates() -> None:
    days = [date.fromordinal(date(2024, 1, 1).toordinal() + j) for j in range(64)]
    feature, log = fit_one(days)
    assert feature.kind == "date"
    assert feature.b == 4
    assert feature.level_names[0] == "2024-01-01 to 2024-01-16 18:00:00".replace(" 18", "T18")
    same_as_moments = pa.array([datetime(one.year, one.month, one.day) for one in days])
    for type in (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.date64()):
        other = rows_of(x=same_as_moments.cast(type))
        np.testing.assert_array_equal(Encoding((feature,), 64).levels(other), Encoding((feature,), 64).levels(log))


def test_few_dates_are_levels() -> None:
    feature, _ = fit_one([date(2024, 2, 29), date(2025, 3, 1), None] * 3)
    assert feature.level_names == ("2024-02-29", "2025-03-01", MISSING)


# Categories ----------------------------------------------------------------------------------------------


def test_each_text_is_a_level_and_a_design_column() -> None:
    encoding = Encoding.fit(log_of(stage=["II", "I", None, "II"] * 2))
    assert encoding.features[0].level_names == ("I", "II", MISSING)
    assert encoding.design_names == ("stage=I", "stage=II", f"stage={MISSING}")
    assert levels_of(encoding, stage=["I", "II", None]) == [[0], [1], [2]]
    np.testing.assert_array_equal(encoding.design(rows_of(stage=["I", "II", None])), np.eye(3))


def test_many_levels_are_capped_to_the_most_frequent_and_the_count_is_said() -> None:
    cells = ["a"] * 5 + ["b"] * 3 + ["c"] * 3 + ["d", "e"]  # b before c: ties by name
    encoding = Encoding.fit(log_of(town=cells), Settings(max_levels=2))
    assert encoding.features[0].level_names == ("a", "b", OTHER)
    assert levels_of(encoding, town=["a", "b", "c", "d", "e"]) == [[0], [1], [2], [2], [2]]
    (note,) = encoding.notes
    assert "'town' has 5 levels" in note
    assert "the other 3 (5 rows)" in note


def test_levels_up_to_the_limit_are_not_capped() -> None:
    encoding = Encoding.fit(log_of(town=["a", "b", "a", "b"]), Settings(max_levels=2))
    assert encoding.features[0].level_names == ("a", "b")
    assert encoding.notes == ()


def test_unseen_texts_have_no_level_and_no_design_column_and_are_counted() -> None:
    encoding = Encoding.fit(log_of(stage=["I", "II"] * 4, age=np.arange(8.0)))
    rows = rows_of(stage=["III", "I", None, "IV"], age=[0.0, 9.0, -1.0, None])
    assert encoding.levels(rows)[:, 0].tolist() == [NO_LEVEL, 0, NO_LEVEL, NO_LEVEL]
    np.testing.assert_array_equal(encoding.design(rows)[:, :2], [[0, 0], [1, 0], [0, 0], [0, 0]])
    assert encoding.surprises(rows) == {"stage": {"unseen": 2, "missing": 1}, "age": {"outside": 2, "missing": 1}}


def test_unseen_texts_of_a_capped_column_count_as_other_and_are_counted() -> None:
    encoding = Encoding.fit(log_of(town=["a"] * 5 + ["b"] * 3 + ["c", "d"]), Settings(max_levels=2))
    rows = rows_of(town=["a", "c", "nowhere"])
    assert encoding.levels(rows)[:, 0].tolist() == [0, 2, 2]
    np.testing.assert_array_equal(encoding.design(rows), [[1, 0, 0], [0, 0, 1], [0, 0, 1]])
    assert encoding.surprises(rows) == {"town": {"unseen": 1}}


def test_values_far_outside_stay_finite_in_single_precision() -> None:
    encoding = Encoding.fit(log_of(x=np.arange(8.0)))
    rows = rows_of(x=[1e300, -1e300])
    assert np.isfinite(encoding.design(rows)).all()
    assert encoding.surprises(rows) == {"x": {"outside": 2}}


def test_rows_to_predict_may_be_any_frame() -> None:
    log = log_of(x=np.arange(8.0), y=["a", "b"] * 4)
    encoding = Encoding.fit(log)
    np.testing.assert_array_equal(encoding.design(log.X.to_pandas()), encoding.design(log))


def test_training_rows_are_no_surprise() -> None:
    log = log_of(x=[1.0, None, 2.0, 5.0], y=["a", None, "b", "a"], z=[True, False, True, None])
    assert Encoding.fit(log).surprises(log) == {}


# The whole encoding --------------------------------------------------------------------------------------

mixed_rows = st.lists(
    st.tuples(
        cells,
        st.sampled_from(["a", "b", "c", "d", None]),
        st.sampled_from([True, False, None]),
        st.one_of(st.none(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    ),
    min_size=2,
    max_size=40,
)


def mixed_table(rows: list[Any]) -> dict[str, pa.Array]:
    types = {"x": pa.float64(), "town": pa.string(), "yes": pa.bool_(), "day": pa.date32()}
    return {name: pa.array([row[i] for row in rows], type) for i, (name, type) in enumerate(types.items())}


@quick
@given(mixed_rows)
def test_one_hot_columns_add_up_to_one_and_numbers_are_standardised(rows: list[Any]) -> None:
    log = log_of(**mixed_table(rows))
    encoding = Encoding.fit(log, Settings(max_levels=2))
    design = encoding.design(log)
    assert design.shape == (len(log), len(encoding.design_names))
    assert design.dtype == np.float32
    for i, feature in enumerate(encoding.features):
        mine = design[:, encoding.owner == i]
        if feature.kind == "category":
            assert (mine.sum(axis=1) == 1).all()
            assert (mine.argmax(axis=1) == encoding.levels(log)[:, i]).all()
            continue
        known = mine[mine[:, 1] == 0, 0] if feature.missing else mine[:, 0]
        if known.any():  # float32 holds 7 digits, of values up to the square root of the row count
            assert known.mean() == pytest.approx(0, abs=1e-5)
            assert known.std() == pytest.approx(1, rel=1e-5)


@quick
@given(mixed_rows, st.integers(0, 3), st.randoms(use_true_random=False))
def test_only_the_columns_owned_by_a_feature_depend_on_it(rows: list[Any], i: int, random: Any) -> None:
    columns = mixed_table(rows)
    encoding = Encoding.fit(log_of(**columns))
    name = encoding.features[i].name
    order = random.sample(range(len(rows)), len(rows))
    shuffled = {**columns, name: columns[name].take(pa.array(order))}
    before, after = encoding.design(rows_of(**columns)), encoding.design(rows_of(**shuffled))
    mine = encoding.owner == i
    np.testing.assert_array_equal(after[:, ~mine], before[:, ~mine])
    np.testing.assert_array_equal(after[:, mine], before[order][:, mine])
    assert all(one.startswith(name) for one, is_mine in zip(encoding.design_names, mine, strict=True) if is_mine)
    levels_before, levels_after = encoding.levels(rows_of(**columns)), encoding.levels(rows_of(**shuffled))
    np.testing.assert_array_equal(levels_after[:, i], levels_before[order, i])


def test_the_encoding_knows_only_the_training_rows() -> None:
    x = [*np.linspace(0.0, 1.0, 30), 50.0]
    town = [*("a", "b") * 15, "c"]
    log = log_of(x=x, town=town)
    train = log.take(np.arange(30))
    encoding = Encoding.fit(train)
    assert encoding == Encoding.fit(log_of(x=x[:30], town=town[:30]))
    assert encoding != Encoding.fit(log)
    assert encoding.rows == 30
    assert encoding.levels(log)[-1].tolist() == [encoding.b[0] - 1, NO_LEVEL]
    np.testing.assert_array_equal(encoding.design(log)[:30], encoding.design(train))
    assert encoding.design(log)[-1, 0] > 100  # in units of the training rows


@quick
@given(mixed_rows, st.lists(st.integers(0, 40), max_size=6))
def test_chunks_make_no_difference(rows: list[Any], cuts: list[int]) -> None:
    columns = mixed_table(rows)
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    chunked = {
        name: pa.chunked_array([column.slice(one, next_ - one) for one, next_ in pairwise(edges)], column.type)
        for name, column in columns.items()
    }
    with pytest.MonkeyPatch.context() as patch:  # so that chunks and pieces overlap in every way
        patch.setattr(encode, "READ_ROWS", 7)
        whole, pieces = log_of(**columns), log_of(**chunked)
        encoding = Encoding.fit(whole)
        assert Encoding.fit(pieces) == encoding
        np.testing.assert_array_equal(encoding.levels(pieces), encoding.levels(whole))
        np.testing.assert_array_equal(encoding.design(pieces), encoding.design(whole))


@quick
@given(mixed_rows, st.integers(1, 9), st.integers(1, 9))
def test_the_size_of_the_blocks_makes_no_difference(rows: list[Any], read: int, block: int) -> None:
    log = log_of(**mixed_table(rows))
    encoding = Encoding.fit(log)
    levels, design, odd = encoding.levels(log), encoding.design(log), log.table.slice(1)
    surprises = replace(encoding, features=Encoding.fit(log.take(np.array([0]))).features).surprises(odd)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "READ_ROWS", read)
        patch.setattr(encode, "BLOCK_ROWS", block)
        np.testing.assert_array_equal(Encoding.fit(log).levels(log), levels)
        np.testing.assert_array_equal(encoding.levels(log), levels)
        np.testing.assert_array_equal(encoding.design(log), design)
        again = replace(encoding, features=Encoding.fit(log.take(np.array([0]))).features).surprises(odd)
    assert again == surprises


@quick
@given(st.lists(st.integers(-120, 120), min_size=2, max_size=60))
def test_whole_numbers_of_every_type_agree(x: list[int]) -> None:
    logs = [log_of(x=pa.array(x, type)) for type in (pa.int8(), pa.int64(), pa.float32(), pa.float64())]
    encodings = [Encoding.fit(log) for log in logs]
    assert all(one == encodings[0] for one in encodings)
    for log in logs:
        np.testing.assert_array_equal(encodings[0].levels(log), encodings[0].levels(logs[0]))
        np.testing.assert_array_equal(encodings[0].design(log), encodings[0].design(logs[0]))


@quick
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=60))
def test_single_precision_is_encoded_in_double_precision(x: list[float]) -> None:
    single, double = log_of(x=pa.array(x, pa.float32())), log_of(x=pa.array(x, pa.float64()))
    encoding = Encoding.fit(double)
    assert Encoding.fit(single) == encoding
    np.testing.assert_array_equal(encoding.levels(single), encoding.levels(double))
    np.testing.assert_array_equal(encoding.design(single), encoding.design(double))


def test_large_numbers_close_together_keep_their_differences() -> None:
    x = 2.0**40 + np.arange(64.0)  # a float32 would make one value of them
    log = log_of(x=x)
    encoding = Encoding.fit(log)
    assert np.bincount(encoding.levels(log)[:, 0]).tolist() == [16] * 4
    np.testing.assert_allclose(encoding.design(log)[:, 0], (x - x.mean()) / x.std(), rtol=1e-6)


def test_no_rows_give_arrays_of_no_rows() -> None:
    log = log_of(x=np.arange(8.0), y=["a", "b"] * 4)
    encoding = Encoding.fit(log)
    assert encoding.levels(log.table.slice(0, 0)).shape == (0, 2)
    assert encoding.design(log.table.slice(0, 0)).shape == (0, 3)


# Rows that do not fit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trained", "seen"),
    [
        ([1.0, 2.0], ["1", "two"]),
        ([1.0, 2.0], [date(2024, 1, 1), date(2024, 1, 2)]),
        ([1.0, 2.0], [[1.0], [2.0]]),
        ([date(2024, 1, 1), date(2024, 1, 2)], [1.0, 2.0]),
        ([date(2024, 1, 1), date(2024, 1, 2)], [True, False]),
        ([date(2024, 1, 1), date(2024, 1, 2)], ["2024-01-01", "next week"]),
        ([True, False], ["yes", "no"]),
        (["a", "b"], [["a"], ["b"]]),
        (["a", "b"], [{"a": 1}, {"a": 2}]),
    ],
)
def test_a_column_of_another_type_is_an_error_that_names_it(trained: list[Any], seen: list[Any]) -> None:
    encoding = Encoding.fit(log_of(**{"the column": trained * 4}))
    for use in (encoding.levels, encoding.design, encoding.surprises):
        with pytest.raises(PonnError, match=r"'the column'.*learned from a"):
            use(rows_of(**{"the column": seen}))


@pytest.mark.parametrize(
    ("trained", "seen"),
    [
        ([1.0, 2.5], ["1", "2.5"]),
        ([1.0, 0.0], [True, False]),
        ([date(2024, 1, 1), date(2024, 1, 2)], ["2024-01-01", "2024-01-02"]),
        ([True, False], ["true", "false"]),
        (["1", "2"], [1, 2]),
        (["a", "b"], pa.array(["a", "b"]).dictionary_encode()),
        (["a", "b"], pa.array(["a", "b"], pa.large_string())),
    ],
)
def test_the_same_values_written_another_way_are_understood(trained: list[Any], seen: Any) -> None:
    encoding = Encoding.fit(log_of(x=trained * 4))
    assert levels_of(encoding, x=seen) == levels_of(encoding, x=trained)
    np.testing.assert_array_equal(encoding.design(rows_of(x=seen)), encoding.design(rows_of(x=trained)))


def test_a_column_that_is_not_there_is_named_and_others_are_not_minded() -> None:
    encoding = Encoding.fit(log_of(x=[1.0, 2.0], y=["a", "b"]))
    with pytest.raises(PonnError, match="lack the columns 'y'"):
        encoding.levels(rows_of(x=[1.0]))
    assert levels_of(encoding, z=[0], y=["b"], x=[2.0]) == [[1, 1]]


# Summaries merge -----------------------------------------------------------------------------------------


def summary_of(cells: list[float | None], most: int = 3) -> Any:
    return encode.summarise_numbers(pa.chunked_array([pa.array(cells, pa.float64())]), most)


@given(st.lists(cells), st.lists(cells), st.lists(cells))
def test_summaries_of_shards_add_up_to_the_summary_of_all(a: list[Any], b: list[Any], c: list[Any]) -> None:
    whole = summary_of(a + b + c)
    merged = summary_of(a) + summary_of(b) + summary_of(c)
    assert replace(merged, mean=0.0, M2=0.0) == replace(whole, mean=0.0, M2=0.0)
    size = max(map(abs, (whole.low, whole.high)), default=0.0) if whole.count else 0.0
    assert merged.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-12 * size)
    assert merged.M2 == pytest.approx(whole.M2, rel=1e-9, abs=1e-12 * size**2)  # rounding of a shard's mean


@given(st.lists(st.one_of(st.none(), st.floats(-1e300, 1e300))))
@example([1e200, 2e200])  # whose squares are infinite
def test_an_empty_shard_changes_nothing(cells: list[float | None]) -> None:
    one, nothing = summary_of(cells), summary_of([])
    for merged in (one + nothing, nothing + one):
        for name in ("count", "missing", "low", "high", "values", "mean", "M2"):
            np.testing.assert_equal(getattr(merged, name), getattr(one, name))


def test_merging_large_equal_values_leaves_no_deviation() -> None:
    assert summary_of([1e200, 1e200]).M2 == 0  # infinity times zero rows would not be a number


def test_the_variance_of_large_numbers_survives_merging() -> None:
    x = 1e9 + np.random.default_rng(0).normal(size=10_000)  # sums of squares would lose it entirely
    merged = reduce(add, (summary_of(shard.tolist()) for shard in np.array_split(x, 17)))
    assert merged.M2 / merged.count == pytest.approx(np.var(x), rel=1e-6)  # eps * 1e9 per value, averaged


@given(st.lists(st.sampled_from(["a", "b", None])), st.lists(st.sampled_from(["b", "c", None])))
def test_counts_of_texts_add_up(a: list[str | None], b: list[str | None]) -> None:
    first, second, both = (
        encode.summarise_texts(pa.chunked_array([pa.array(cells, pa.string())])) for cells in (a, b, a + b)
    )
    assert first + second == both
    assert both.missing == (a + b).count(None)
    assert all(both.counts[text] == (a + b).count(text) for text in "abc")


def test_the_smallest_and_the_latest_values_do_not_break_anything() -> None:
    encoding = Encoding.fit(log_of(x=[0.0, 5e-324, 0.0, 5e-324]))
    assert np.isfinite(encoding.design(rows_of(x=[0.0, 5e-324]))).all()
    latest = pa.array([2**63 - 1, 0, 1, 2], pa.int64()).cast(pa.timestamp("s"))
    assert len(Encoding.fit(log_of(x=latest)).features[0].level_names[0]) > 0


def test_a_moment_at_midnight_is_said_as_a_day():
    feature = Encoding.fit(ponn.read_log(dated_table(), action="a", reward="r")).features[0]
    assert feature.say(20_230.0) == "2025-05-22"
    assert feature.say(20_230.0 - 1e-9) == "2025-05-22"  # a cut between two days, as trees make them
    assert feature.say(20_230.5) == "2025-05-22T12:00:00"


def dated_table():
    days = [date(2025, 1 + j % 9, 1 + j // 9) for j in range(40)]
    return pa.table({"seen": pa.array(days), "a": ["x", "y"] * 20, "r": [0.0, 1.0, 1.0, 0.0] * 10})
