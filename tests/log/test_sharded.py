"""Logs on disk: the survey finds what reading into memory finds, and every sum is the same however shards are cut."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logs_on_disk import ROLES, names, table, write
from ponn.engine.passes import Here, Passes
from ponn.errors import LogError, PonnError
from ponn.log.draft import read_log
from ponn.log.encoding import Encoding
from ponn.log.sharded import ShardedLog, read_sharded
from ponn.log.shards import uniform
from ponn.settings import Settings
from ponn.steps.logistic import log_probabilities, with_ones
from ponn.steps.propensity import propensities
from ponn.steps.relevance import relevance
from ponn.steps.shard_steps import Practice, fit_practice, fit_reward_models, shard_relevance


@pytest.fixture(scope="module")
def source():
    return table(6_000)


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    return write(tmp_path_factory.mktemp("log") / "log", source, 3)


def opened(path, shard_rows=1_000, **roles) -> ShardedLog:
    return read_sharded(path, Passes(Here()), shard_rows=shard_rows, **{**ROLES, **roles})


# What is found -------------------------------------------------------------------------------------------


def test_the_survey_finds_what_reading_into_memory_finds(folder):
    memory, disk = read_log(folder, **names()), opened(folder, **names())
    assert len(disk) == len(memory)
    assert disk.actions == memory.actions
    assert disk.features == memory.features == ("x", "y", "few", "word")
    assert disk.set_aside == memory.set_aside
    assert disk.reward_range == memory.reward_range
    assert disk.notes == memory.notes
    counts = np.bincount(memory.A)
    assert [rows for rows, _ in (disk.survey.actions[one] for one in disk.actions)] == counts.tolist()
    assert len(disk.shards) == 5
    assert "on disk" in repr(disk)


@pytest.mark.parametrize("bins", ["equal-width", "quantile"])
def test_the_encoding_is_that_of_the_rows_in_memory(folder, bins):
    memory, disk = read_log(folder, **names()), opened(folder, **names())
    settings = Settings(bins=bins)
    expected, found = Encoding.fit(memory, settings), disk.fit_encoding(Passes(Here()), settings)
    assert found.rows == expected.rows
    for one, other in zip(found.features, expected.features, strict=True):
        assert one.level_names == other.level_names
        assert one.b == other.b
    np.testing.assert_allclose(found.design(memory), expected.design(memory), atol=1e-6)  # single precision


def test_batches_are_the_rows_in_order(folder, source):
    disk = opened(folder, **names(propensity="known", weight="heavy", ignore=["person", "day"]))
    batches = [one for shard in disk.shards for one in disk.reader.batches(shard)]
    memory = read_log(source, **names(propensity="known", weight="heavy", ignore=["person", "day"]))
    for column in ("A", "R", "p0", "weight"):
        found = np.concatenate([getattr(one.log, column) for one in batches])
        assert np.array_equal(found, getattr(memory, column))
    assert np.array_equal(np.concatenate([one.units for one in batches]), np.arange(6_000))
    together = pa.concat_tables([one.log.X for one in batches], promote_options="permissive")
    assert together.column("y").to_pylist() == source.column("y").to_pylist()


def test_the_sample_is_a_sample(folder, monkeypatch):
    monkeypatch.setattr("ponn.log.sharded.SAMPLE_ROWS", 2_000)
    disk = opened(folder, **names())
    log, units = disk.sample
    assert 1_800 < len(log) < 2_200  # sd 37: beyond 5 of them
    assert len(np.unique(units)) == len(units)
    memory = read_log(folder, **names())
    assert np.array_equal(log.A, memory.A[units.astype(int)])


# Parts ---------------------------------------------------------------------------------------------------


def rows_of(log: ShardedLog) -> np.ndarray:
    return np.concatenate([one.units for shard in log.shards for one in log.reader.batches(shard)])


def test_parts_share_no_row_and_lack_none(folder):
    disk = opened(folder, **names())
    first, rest = disk.split(0.7, seed=3)
    inner, outer = first.split(0.7, seed=3)
    parts = [rows_of(one) for one in (inner, outer, rest)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(6_000))
    for found, share in zip(parts, (0.49, 0.21, 0.3), strict=True):
        assert abs(len(found) / 6_000 - share) < 5 * np.sqrt(share * (1 - share) / 6_000)
    assert len(rest) == 1_800
    assert set(rest.sample.units) <= set(parts[2])


def test_parts_do_not_depend_on_how_shards_are_cut(folder, source, tmp_path):
    other = write(tmp_path / "other", source, 5, group=117)
    first, second = (opened(path, rows, **names()).split(0.7, 1)[1] for path, rows in ((folder, 900), (other, 2_000)))
    assert np.array_equal(rows_of(first), rows_of(second))
    assert np.array_equal(first.sample.units, second.sample.units)


def test_rows_of_a_group_stay_together(folder, source):
    disk = opened(folder, **names(group="person", ignore=["day", "heavy", "known"]))
    first, rest = disk.split(0.6, 0)
    people = [
        {
            cell
            for shard in part.shards
            for one in part.reader.batches(shard)
            for cell in one.log.table["person"].to_pylist()
        }
        for part in (first, rest)
    ]
    assert not people[0] & people[1]
    assert people[0] | people[1] == set(source["person"].to_pylist())
    for shard in disk.shards:
        for batch in disk.reader.batches(shard):
            fold = batch.folds(5, 0)
            groups = batch.log.table["person"].to_pylist()
            assert len(set(zip(groups, fold.tolist(), strict=True))) == len(set(groups))


def test_a_time_column_splits_by_time(folder):
    disk = opened(folder, **names(time="day", ignore=["person", "heavy", "known"]))
    first, rest = disk.split(0.7)
    early, late = rows_of(first), rows_of(rest)
    assert early.max() < late.min()
    assert abs(len(early) / 6_000 - 0.7) < 0.001
    with pytest.raises(PonnError, match="by time or by group"):
        opened(folder, **names(time="day", group="person", ignore=["heavy", "known"])).split()


def test_hashes_are_even_and_independent():
    units = np.arange(200_000, dtype=np.uint64)
    u, v = uniform(units, 1, 0), uniform(units, 1, 1)
    counts = np.histogram2d(u, v, 10, [[0, 1], [0, 1]])[0]
    chi2 = float(((counts - 2_000) ** 2 / 2_000).sum())
    assert chi2 < 99 + 6 * np.sqrt(2 * 99)  # 99 degrees of freedom: false alarm below 1 in 10^6
    assert (u >= 0).all()
    assert (u < 1).all()


# Steps ---------------------------------------------------------------------------------------------------


def test_step_a_is_the_regression_of_scikit_learn(folder):
    memory, disk = read_log(folder, **names()), opened(folder, **names())
    encoding = Encoding.fit(memory)
    passes = Passes(Here())
    found = fit_practice(disk, encoding, passes, Settings())
    expected = propensities(memory, encoding, Settings())
    P = np.exp(log_probabilities(found.theta[0], with_ones(encoding.design(memory))))
    np.testing.assert_allclose(P, expected.P, atol=1e-6)  # scikit-learn's own stopping rule
    assert found.m == expected.m
    assert len(passes.done) <= 12


def test_step_a_from_a_small_sample_ends_at_the_same_place(folder, monkeypatch):
    memory = read_log(folder, **names())
    encoding = Encoding.fit(memory)
    whole = fit_practice(opened(folder, **names()), encoding, Passes(Here()), Settings())
    monkeypatch.setattr("ponn.log.sharded.SAMPLE_ROWS", 600)
    passes = Passes(Here())
    found = fit_practice(opened(folder, **names()), encoding, passes, Settings())
    X = with_ones(encoding.design(memory))
    one, other = (np.exp(log_probabilities(each.theta[0], X)) for each in (whole, found))
    np.testing.assert_allclose(one, other, atol=1e-7)
    assert 3 < len(passes.done) <= 12


def test_two_actions_too(folder, source, tmp_path):
    two = source.filter(pa.compute.not_equal(source["action"], "c"))
    path = write(tmp_path / "two", two, 2)
    memory, disk = read_log(path, **names()), opened(path, **names())
    encoding = Encoding.fit(memory)
    found = fit_practice(disk, encoding, Passes(Here()), Settings())
    P = np.exp(log_probabilities(found.theta[0], with_ones(encoding.design(memory))))
    np.testing.assert_allclose(P, propensities(memory, encoding, Settings()).P, atol=1e-6)


def test_a_fold_is_estimated_from_the_others(folder):
    """Moving the rewards or actions of a fold must not move that fold's own regression."""
    disk = opened(folder, **names())
    encoding = Encoding.fit(read_log(folder, **names()))
    found = fit_practice(disk, encoding, Passes(Here()), Settings(), folds=3, seed=1)
    rows = [one for shard in disk.shards for one in disk.reader.batches(shard)]
    X = with_ones(np.concatenate([encoding.design(one.log) for one in rows]))
    A, fold = np.concatenate([one.log.A for one in rows]), np.concatenate([one.folds(3, 1) for one in rows])
    from sklearn.linear_model import LogisticRegression

    for f in range(3):
        model = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-8).fit(X[fold != f, :-1], A[fold != f])
        expected = model.predict_proba(X[:, :-1])
        np.testing.assert_allclose(np.exp(log_probabilities(found.theta[f], X)), expected, atol=1e-6)


@pytest.mark.parametrize("rule", [{}, {"select": "fdr"}, {"select": "fdr", "even": True}], ids=str)
def test_step_b_is_that_of_the_rows_in_memory(folder, rule):
    settings = Settings(**rule)
    roles = names(propensity="known", weight="heavy", ignore=["person", "day"])
    memory, disk = read_log(folder, **roles), opened(folder, **roles)
    encoding = Encoding.fit(memory)
    found, summary = shard_relevance(disk, encoding, Practice(None, np.inf, 0), Passes(Here()), settings)
    step_a = propensities(memory, encoding, settings)
    expected = relevance(memory, encoding, step_a, settings)
    np.testing.assert_allclose(found.G, expected.G, rtol=1e-10)
    np.testing.assert_allclose(found.V_bar, expected.V_bar, rtol=1e-10)
    np.testing.assert_allclose(found.correlation, expected.correlation, rtol=1e-6)
    assert np.array_equal(found.selected, expected.selected)
    if "select" in rule:
        np.testing.assert_allclose(found.tested(), expected.tested(), rtol=1e-6)
    assert found.largest_weight == pytest.approx(expected.largest_weight, rel=1e-12)
    assert found.known_propensities
    assert float(summary.p[0]) == memory.p0.min()


def test_reward_models_are_those_of_scikit_learn(folder, monkeypatch):
    from ponn.steps.reward import fit_rewards

    monkeypatch.setattr("ponn.log.sharded.SAMPLE_ROWS", 3_000)
    memory, disk = read_log(folder, **names()), opened(folder, **names())
    encoding = Encoding.fit(memory)
    passes = Passes(Here())
    theta = fit_reward_models(disk, encoding, passes, Settings())[0]
    X = encoding.design(memory)
    expected = fit_rewards(X, memory.A, memory.R, memory.row_weights, 3, 1.0)
    np.testing.assert_allclose(with_ones(X) @ theta, np.log(expected.rewards(X) / (1 - expected.rewards(X))), atol=1e-3)
    assert len(passes.done) == 2


# Mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("reward", None, r"part-01\.parquet: The reward column 'reward' is missing in 1 row \(701\)"),
        ("reward", np.inf, r"part-01\.parquet: The reward column 'reward' is infinite in 1 row \(701\)"),
        ("action", None, r"part-01\.parquet: The action column 'action' is missing in 1 row \(701\)"),
        ("known", 1.5, r"part-01\.parquet: The propensity column 'known' is outside \(0, 1\] in 1 row \(701\)"),
        ("heavy", -1.0, r"part-01\.parquet: The weight column 'heavy' is not a positive number in 1 row \(701\)"),
    ],
)
def test_a_wrong_row_is_named_with_its_file(source, tmp_path, column, value, message):
    cells = source.column(column).to_pylist()
    cells[2_700] = value
    wrong = source.set_column(source.column_names.index(column), column, pa.array(cells))
    path = write(tmp_path / "wrong", wrong, 3)
    with pytest.raises(LogError, match=message):
        opened(path, **names(propensity="known", weight="heavy", ignore=["person", "day"]))


def test_rows_without_action_or_reward_can_be_left_out(source, tmp_path):
    cells = source.column("reward").to_pylist()
    cells[5] = cells[3_000] = None
    path = write(tmp_path / "some", source.set_column(11, "reward", pa.array(cells)), 2)
    memory, disk = (read(path, **names(drop_missing=True)) for read in (read_log, opened))
    assert len(disk) == len(memory) == 5_998
    assert any("2 rows without" in note for note in disk.notes)
    found = np.concatenate([one.log.R for shard in disk.shards for one in disk.reader.batches(shard)])
    assert np.array_equal(found, memory.R)


def test_wrong_names_and_contents_are_told_as_in_memory(folder):
    for wrong in ({"action": "acton"}, {"reward": "nothing"}, {"features": []}, {"reward_range": (3, 1)}):
        with pytest.raises(PonnError) as memory:
            read_log(folder, **names(**wrong))
        with pytest.raises(PonnError) as disk:
            opened(folder, **names(**wrong))
        assert str(disk.value) == str(memory.value)
    with pytest.raises(LogError, match="outside the declared range"):
        opened(folder, **names(reward_range=(0, 0.5)))


def test_a_file_that_changes_or_vanishes_is_named(source, tmp_path):
    path = write(tmp_path / "log", source, 3)
    disk = opened(path, **names())
    file = path / "part-01.parquet"
    content = file.read_bytes()
    pq.write_table(source.slice(0, 10), file)
    with pytest.raises(PonnError, match=r"part-01\.parquet changed while it was used"):
        disk.fit_encoding(Passes(Here()), Settings())
    file.unlink()
    with pytest.raises(PonnError, match=r"part-01\.parquet could not be read"):
        disk.fit_encoding(Passes(Here()), Settings())
    damaged = bytearray(content)
    damaged[200:40_000] = bytes(39_800)
    file.write_bytes(damaged)
    with pytest.raises(PonnError, match=r"part-01\.parquet"):
        opened(path, **names()).fit_encoding(Passes(Here()), Settings())
