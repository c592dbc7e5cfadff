"""Step B: the vectorised sums are the paper's sums, merge like sums, and obey the laws that follow from them."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
import ponn
from ponn.log.encoding import Encoding
from ponn.settings import Settings
from ponn.steps.propensity import propensities
from ponn.steps.relevance import Loss, correlations, relevance, threshold_of_bins, threshold_of_levels
from ponn.steps.tally import Taken, Tally, tally_log
from tallies import tally_levels


def make_log(X: dict[str, object], A: list[int], R: list[float], p: list[float], **options: object) -> ponn.Log:
    """A log of the given rows; actions and rewards that the rows lack are added to the range, not to the rows."""
    table = pa.table({**X, "A": pa.array(A), "R": pa.array(R), "p": pa.array(p)})
    return ponn.read_log(
        table, action="A", reward="R", propensity="p", reward_range=(0, 1), features=list(X), **options
    )


@st.composite
def logs(draw: st.DrawFn) -> ponn.Log:
    """Small logs with numbers, categories, missing cells, single-row levels and rewards of every kind."""
    n = draw(st.integers(4, 40))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    k = draw(st.integers(2, 4))
    A = rng.integers(0, k, n)
    A[:2] = (0, 1)
    R = rng.integers(0, 2, n).astype(float) if draw(st.booleans()) else rng.random(n)
    R[:2] = (0.0, 1.0)
    if draw(st.booleans()):
        R = np.round(R * 1e-9 + 0.7, 12)  # nearly constant: squares would cancel
        R[0] = 0.0
    X = {
        "number": rng.normal(size=n),
        "few": rng.integers(0, 2, n),
        "text": rng.choice(["p", "q", "r"], n),
        "gaps": pa.array(rng.normal(size=n), mask=rng.random(n) < 0.3),
    }
    p = rng.uniform(0.05, 1.0, n) if draw(st.booleans()) else np.ones(n)
    return make_log(X, A.tolist(), R.tolist(), p.tolist())


def as_plain(log: ponn.Log, encoding: Encoding, m: float) -> oracles.Log:
    return oracles.Log(
        encoding.levels(log).tolist(),
        encoding.b.tolist(),
        log.A.tolist(),
        log.R.tolist(),
        log.p0.tolist(),
        len(log.actions),
        m,
    )


@settings(deadline=None, max_examples=60)
@given(logs(), st.sampled_from(["l1", "l2"]), st.sampled_from([np.inf, 3.0]))
def test_every_statistic_is_the_papers_nested_sum(log, loss, m):
    encoding = Encoding.fit(log)
    chosen = Settings(loss=loss, m=None if np.isinf(m) else m, lambda1=0.3, lambda2=0.1)
    found = relevance(log, encoding, propensities(log, encoding, chosen), chosen)
    plain, plain_loss = as_plain(log, encoding, m), {"l1": oracles.l1, "l2": oracles.l2}[loss]
    columns = [oracle_column(log, name) for name in log.features]
    numeric = [name != "text" for name in log.features]
    close = {"rtol": 1e-9, "atol": 1e-12}
    for a in range(len(log.actions)):
        assert np.isclose(found.R_hat[a], oracles.R_hat(plain, a), **close)
        assert np.isclose(found.V[a], oracles.V(plain, a), **close)
        place = 0
        for i, b in enumerate(encoding.b):
            correlation = oracles.mean_absolute_correlation(columns, numeric, i)
            assert np.isclose(found.correlation[i], correlation, rtol=1e-7, atol=1e-7)  # square roots near 0 and 1
            assert np.isclose(found.G[a, i], oracles.G_hat(plain, a, i, plain_loss), **close)
            assert np.isclose(found.V_bar[a, i], oracles.V_bar(plain, a, i), **close)
            tau = (oracles.tau_bins if found.binned[i] else oracles.tau_levels)(plain, a, i, 0.3, 0.1, correlation)
            assert np.isclose(found.tau[a, i], tau, rtol=1e-7, atol=1e-7)
            for x in range(b):
                assert found.levels.N[place] == oracles.N_level(plain, i, x)
                assert found.levels.N_taken[a, place] == oracles.N_action_level(plain, a, i, x)
                if found.levels.N[place]:
                    assert np.isclose(found.levels.U[a, place], oracles.R_hat_level(plain, a, i, x), **close)
                assert np.isclose(found.levels.V[a, place], oracles.V_level(plain, a, i, x), **close)
                place += 1
    assert np.array_equal(found.selected, found.G > found.tau)


def oracle_column(log: ponn.Log, name: str) -> list[object]:
    """A column as the correlation sees it: a number's missing cells count as its mean."""
    cells = log.table.column(name).to_pylist()
    known = [cell for cell in cells if cell is not None]
    mean = sum(known) / len(known) if known and name != "text" else 0.0
    return [mean if cell is None else cell for cell in cells]


# Exact by enumeration ------------------------------------------------------------------------------------


def test_R_hat_is_unbiased_exactly():
    """E[R_hat(a)] = r(a) over every log of two rows of a tiny world, with R_hat computed by the package's own tally."""
    world = tiny_world()
    expected = np.zeros(2)
    for probability, plain, _ in oracles.every_log(world, 2):
        expected += probability * np.array([tally_of(plain)[a] for a in range(2)])
    assert np.allclose(expected, [oracles.true_r(world, a) for a in range(2)], atol=1e-14)


def tiny_world() -> oracles.World:
    return oracles.World(x=[(0,), (1,)], P=[0.3, 0.7], p0=[(0.9, 0.1), (0.2, 0.8)], r=[(0.2, 0.7), (0.9, 0.4)], b=[2])


def tally_of(plain: oracles.Log) -> np.ndarray:
    u = np.array(plain.R) / np.array(plain.p)
    levels = np.array(plain.levels, dtype=np.int16)[:, 0]
    found = tally_levels(levels, 2, Taken(np.array(plain.A), u, 2))
    return (found.U * found.N).sum(axis=1) / len(plain.A)


def test_level_means_are_unbiased_exactly():
    """E[R_hat(a, x_i) | N(x_i) > 0] = r(a, x_i)."""
    world = tiny_world()
    total, weight = np.zeros((2, 2)), np.zeros(2)
    for probability, plain, _ in oracles.every_log(world, 2):
        levels = np.array(plain.levels, dtype=np.int16)[:, 0]
        taken = Taken(np.array(plain.A), np.array(plain.R) / np.array(plain.p), 2)
        U = tally_levels(levels, 2, taken).U
        seen = np.bincount(levels, minlength=2) > 0
        total += probability * np.where(seen, U, 0)
        weight += probability * seen
    truth = [[oracles.true_r_level(world, a, 0, x) for x in range(2)] for a in range(2)]
    assert np.allclose(total / weight, truth, atol=1e-14)


# Kidney stones -------------------------------------------------------------------------------------------

GOLDEN = {"open surgery": 634983 / 762700, "percutaneous nephrolithotomy": 6231 / 8000}


def test_kidney_stones_with_cell_frequencies_as_propensities():
    log = ponn.simulate.world("kidney-stones", known_propensity=True).log
    encoding = Encoding.fit(log)
    found = relevance(log, encoding, propensities(log, encoding))
    assert found.R_hat == pytest.approx([GOLDEN[action] for action in found.actions], abs=1e-12)


def test_kidney_stones_with_unpenalised_step_a():
    log = ponn.simulate.world("kidney-stones").log
    encoding = Encoding.fit(log)
    found = relevance(log, encoding, propensities(log, encoding, Settings(propensity_penalty=0.0)))
    assert found.R_hat == pytest.approx([GOLDEN[action] for action in found.actions], abs=1e-6)


# Laws ----------------------------------------------------------------------------------------------------


def same(first: Tally, second: Tally, **close: float) -> None:
    for name in ("N", "N_taken", "U", "M2"):
        assert np.allclose(getattr(first.levels, name), getattr(second.levels, name), **close), name
    for name in ("n", "mean", "C"):
        assert np.allclose(getattr(first.gram, name), getattr(second.gram, name), **close), name


def world_log(rows: int = 3_000) -> ponn.Log:
    return ponn.simulate.world("breast-cancer", rows=rows, known_propensity=True).log


def test_tally_of_parts_is_the_tally_of_the_whole():
    log = world_log()
    encoding = Encoding.fit(log)
    u = log.R / log.p0
    whole = tally_log(encoding, log, u)
    cuts = [0, 1, 500, 1_700, 3_000]
    parts = [
        tally_log(encoding, log.take(np.arange(start, stop)), u[start:stop]) for start, stop in itertools.pairwise(cuts)
    ]
    total = Tally.zero(encoding, len(log.actions))
    for part in parts:
        total += part
    same(total, whole, rtol=1e-10, atol=1e-10)
    same((parts[0] + parts[1]) + (parts[2] + parts[3]), whole, rtol=1e-10, atol=1e-10)
    same(whole + Tally.zero(encoding, len(log.actions)), whole, rtol=0, atol=0)


def test_row_order_does_not_matter():
    log = world_log()
    encoding = Encoding.fit(log)
    order = np.random.default_rng(0).permutation(len(log))
    turned = log.take(order)
    same(
        tally_log(encoding, turned, turned.R / turned.p0),
        tally_log(encoding, log, log.R / log.p0),
        rtol=1e-9,
        atol=1e-9,
    )


def test_renaming_actions_permutes_the_rows_of_G():
    log = world_log()
    table = log.table.to_pandas()
    names = dict(zip(log.actions, reversed(log.actions), strict=True))
    table["regimen"] = [names[one] for one in table["regimen"]]
    renamed = ponn.read_log(table, action="regimen", reward="survived", propensity="propensity", reward_range=(0, 1))
    encoding = Encoding.fit(log)
    first, second = (relevance(one, encoding, propensities(one, encoding)) for one in (log, renamed))
    assert np.allclose(first.G, second.G[::-1], rtol=1e-12)


def test_doubling_the_log_keeps_G_and_doubles_the_sums():
    log = world_log()
    double = log.take(np.tile(np.arange(len(log)), 2))
    encoding = Encoding.fit(log)
    once, twice = (relevance(one, encoding, propensities(one, encoding)) for one in (log, double))
    assert np.allclose(once.G, twice.G, rtol=1e-9)
    assert np.array_equal(2 * once.levels.N, twice.levels.N)
    assert np.allclose(2 * once.levels.M2, twice.levels.M2, rtol=1e-9)
    assert np.all(threshold_of_levels(twice) < threshold_of_levels(once))


def test_row_weights_count_rows_as_often_as_they_say():
    log = world_log(400)
    weights = np.random.default_rng(0).integers(1, 4, 400)
    table = log.table.append_column("weight", pa.array(weights))
    roles = {"action": "regimen", "reward": "survived", "propensity": "propensity", "reward_range": (0, 1)}
    weighted = ponn.read_log(table, **roles, weight="weight")
    repeated = log.take(np.repeat(np.arange(400), weights))
    encoding = Encoding.fit(log)
    first = tally_log(encoding, weighted, weighted.R / weighted.p0)
    second = tally_log(encoding, repeated, repeated.R / repeated.p0)
    same(first, second, rtol=1e-9, atol=1e-9)


def test_truncation_at_infinity_changes_nothing_and_below_one_weight_everything():
    log = world_log()
    encoding = Encoding.fit(log)
    free = relevance(log, encoding, propensities(log, encoding))
    huge = relevance(log, encoding, propensities(log, encoding, Settings(m=1e12)))
    cut = propensities(log, encoding, Settings(m=2.0))
    assert np.array_equal(free.G, huge.G)
    assert cut.weights.max() == 2.0
    assert relevance(log, encoding, cut).R_hat.sum() < free.R_hat.sum()


def test_a_constant_feature_has_relevance_zero():
    rng = np.random.default_rng(0)
    X = {"x": rng.normal(size=50), "one": np.ones(50), "text": ["same"] * 50}
    log = make_log(X, [0, 1] * 25, rng.integers(0, 2, 50).tolist(), [0.5] * 50)
    encoding = Encoding.fit(log)
    found = relevance(log, encoding, propensities(log, encoding))
    assert np.allclose(found.G[:, 1:], 0, atol=1e-30)
    assert found.G[:, 0].min() > 0
    assert not found.selected[:, 1:].any()


def test_an_action_never_taken_in_these_rows_has_relevance_zero():
    log = world_log()
    only = log.take(np.flatnonzero(log.A != 2))
    encoding = Encoding.fit(only)
    found = relevance(only, encoding, propensities(only, encoding))
    assert not found.G[2].any()
    assert not found.selected[2].any()
    assert np.all(found.tested()[2] == 1)


def test_both_thresholds_coincide_when_b_is_the_cube_root_of_n():
    rng = np.random.default_rng(0)
    n = 1_000
    log = make_log({"x": rng.random(n), "y": rng.random(n)}, [0, 1] * 500, rng.random(n).tolist(), [0.5] * n)
    encoding = Encoding.fit(log)
    assert encoding.b.tolist() == [10, 10]
    found = relevance(log, encoding, propensities(log, encoding), Settings(lambda1=0.7, lambda2=0.2))
    assert np.allclose(threshold_of_levels(found), threshold_of_bins(found), rtol=1e-12)


def test_a_loss_of_ones_own():
    log = world_log(500)
    encoding = Encoding.fit(log)
    huber = Loss("huber", lambda z: np.where(np.abs(z) < 0.1, z * z / 0.2, np.abs(z) - 0.05), lambda largest: 1.0)
    found = relevance(log, encoding, propensities(log, encoding), loss=huber)
    plain = as_plain(log, encoding, np.inf)
    for a, i in ((0, 0), (3, 5), (5, 13)):
        expected = oracles.G_hat(plain, a, i, lambda z: z * z / 0.2 if abs(z) < 0.1 else abs(z) - 0.05)
        assert found.G[a, i] == pytest.approx(expected, rel=1e-9)


def test_thresholds_move_without_another_pass():
    log = world_log()
    encoding = Encoding.fit(log)
    step_a = propensities(log, encoding)
    moved = relevance(log, encoding, step_a).under(Settings(lambda1=0.1, lambda2=0.01))
    fresh = relevance(log, encoding, step_a, Settings(lambda1=0.1, lambda2=0.01))
    assert np.array_equal(moved.tau, fresh.tau)
    assert np.array_equal(moved.selected, fresh.selected)
    nothing = moved.under(Settings(lambda1=1e9))
    assert not nothing.selected.any()
    assert nothing.sets() == dict.fromkeys(log.actions, ())


# Correlations --------------------------------------------------------------------------------------------


def test_correlations_are_pearson_correlation_ratio_and_cramer():
    rng = np.random.default_rng(0)
    n = 400
    u = rng.normal(size=n)
    category = np.where(u + rng.normal(size=n) > 0.5, "hi", np.where(rng.random(n) < 0.5, "mid", "lo"))
    other = np.where(category == "hi", "A", np.where(rng.random(n) < 0.3, "B", "C"))
    X = {"u": u, "v": -u + rng.normal(size=n), "category": category, "other": other}
    log = make_log(X, [0, 1] * 200, rng.integers(0, 2, n).tolist(), [0.5] * n)
    encoding = Encoding.fit(log)
    rho = correlations(tally_log(encoding, log, log.R).gram, encoding)
    numeric = [True, True, False, False]
    for i, j in itertools.combinations(range(4), 2):
        one, two = list(X.values())[i].tolist(), list(X.values())[j].tolist()
        assert rho[i, j] == pytest.approx(oracles.association(one, numeric[i], two, numeric[j]), abs=1e-9)


# Bounds and the table ------------------------------------------------------------------------------------


def test_no_bound_without_known_propensities_and_the_reason_is_told():
    log = ponn.simulate.world("breast-cancer", rows=1_000).log
    encoding = Encoding.fit(log)
    bound = relevance(log, encoding, propensities(log, encoding)).bound(0.05)
    assert np.isnan(bound.total).all()
    assert not bound.certified.any()
    assert all("estimated" in reason for reason in bound.reasons)


def test_binned_features_have_a_bound_only_with_L():
    log = world_log()
    encoding = Encoding.fit(log)
    found = relevance(log, encoding, propensities(log, encoding), Settings(loss="l1"))
    without, given_L = found.bound(0.05), found.bound(0.05, L=1.0)
    assert np.array_equal(np.isnan(without.total).all(axis=0), found.binned)
    assert [bool(reason) for reason in without.reasons] == found.binned.tolist()
    assert not np.isnan(given_L.total).any()


def test_levels_have_the_bound_of_theorem_1():
    log = world_log(800)
    encoding = Encoding.fit(log)
    found = relevance(log, encoding, propensities(log, encoding), Settings(loss="l1"))
    plain = as_plain(log, encoding, np.inf)
    i = int(np.flatnonzero(~found.binned)[0])
    M = float((1 / log.p0).max())
    expected = oracles.theorem1_corrected(plain, 1, i, M, 1.0, 0.05, *found.G.shape)
    assert found.bound(0.05).total[1, i] == pytest.approx(sum(expected.values()), rel=1e-9)


def test_something_is_certified_when_there_is_plenty_of_evidence():
    rng = np.random.default_rng(0)
    n = 60_000
    x, A = rng.integers(0, 2, n), rng.integers(0, 2, n)
    R = np.where(A == 0, x, rng.integers(0, 2, n)).astype(float)
    log = make_log({"x": x.astype(str), "noise": rng.choice(["u", "v"], n)}, A.tolist(), R.tolist(), [0.5] * n)
    encoding = Encoding.fit(log)
    bound = relevance(log, encoding, propensities(log, encoding), Settings(loss="l1")).bound(0.05)
    assert bound.certified.tolist() == [[True, False], [False, False]]
    printed = relevance(log, encoding, propensities(log, encoding), Settings(loss="l1")).bound(0.05, form="printed")
    assert not printed.certified.any()


def test_table_has_one_row_per_pair_most_relevant_first():
    log = world_log()
    encoding = Encoding.fit(log)
    found = relevance(log, encoding, propensities(log, encoding))
    rows = found.table().to_pylist()
    assert len(rows) == 6 * 14
    for action in log.actions:
        mine = [row for row in rows if row["action"] == action]
        assert [row["relevance"] for row in mine] == sorted((row["relevance"] for row in mine), reverse=True)
        assert {row["feature"] for row in mine if row["selected"]} == set(found.sets()[action])


def test_selecting_by_a_test_that_was_left_out_is_refused():
    log = world_log(500)
    encoding = Encoding.fit(log)
    found = relevance(log, encoding, propensities(log, encoding), test=False)
    with pytest.raises(ponn.PonnError, match="test=True"):
        found.tested()
