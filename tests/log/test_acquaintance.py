"""Rows that a policy learned from are known again in whatever file they come; new rows are not taken for them."""

import numpy as np
import pyarrow as pa
import pytest

import ponn
from ponn.evaluation.intervals import LowOverlap
from ponn.log.acquaintance import SIZE, fingerprints, known_share, sketch
from ponn.tables.files import write_table

ROLES = {"action": "drug", "reward": "days"}


def rows(n: int, seed: int, fine: bool = True) -> dict[str, np.ndarray]:
    """Patients; coarse ones have few values, so that many are alike by chance."""
    rng = np.random.default_rng(seed)
    return {
        "age": rng.normal(50, 10, n) if fine else rng.integers(0, 3, n),
        "ward": rng.choice(["north", "south", "west"], n),
        "smoker": rng.random(n) < 0.3,
        "drug": rng.choice(["1", "2", "x"], n),
        "days": rng.integers(1, 30 if fine else 3, n),
    }


def log_of(columns: dict[str, np.ndarray], order: np.ndarray | None = None) -> ponn.Log:
    return ponn.read_log({k: v if order is None else v[order] for k, v in columns.items()}, **ROLES)


def joined(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([one[name], other[name]]) for name in one}


@pytest.mark.parametrize("n", [100, 5_000])
@pytest.mark.parametrize("fine", [True, False])
def test_new_rows_are_not_taken_for_known_ones(n, fine):
    """200 pairs of logs of the same kind: three standard errors and three rows more are passed about never."""
    shares = [known_share(log_of(rows(n, 2 * s, fine)), sketch(log_of(rows(n, 2 * s + 1, fine)))) for s in range(50)]
    assert not any(shares)


@pytest.mark.parametrize("n", [100, 5_000])
def test_known_rows_are_counted_among_new_ones_in_any_order(n):
    before, later = rows(n, 1), rows(n, 2)
    mixed = log_of(joined(before, later), np.random.default_rng(3).permutation(2 * n))
    found = known_share(mixed, sketch(log_of(before)))
    assert found == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(min(2 * n, 2 * SIZE)))  # four standard errors


def test_a_row_has_the_same_fingerprint_in_every_file(tmp_path):
    columns = rows(60, 4)
    write_table(pa.table(columns), tmp_path / "log.csv")
    expected = fingerprints(log_of(columns))
    assert len(np.unique(expected)) == 60
    read = ponn.read_log(tmp_path / "log.csv", **ROLES)
    np.testing.assert_array_equal(fingerprints(read), expected)
    turned = ponn.read_log({name: columns[name] for name in reversed(columns)}, **ROLES)
    np.testing.assert_array_equal(fingerprints(turned), expected)
    np.testing.assert_array_equal(fingerprints(log_of(columns | {"days": columns["days"].astype(float)})), expected)


@pytest.mark.parametrize("name", ["age", "ward", "smoker", "drug", "days"])
def test_every_column_counts(name):
    columns = rows(60, 5)
    other = columns | {name: columns[name][::-1]}
    changed = columns[name] != other[name]
    assert changed.any()
    assert ((fingerprints(log_of(columns)) != fingerprints(log_of(other))) == changed).all()


def test_equal_cells_of_two_columns_do_not_stand_for_each_other():
    columns = rows(60, 9) | {"weight": np.random.default_rng(1).normal(size=60)}
    other = columns | {"weight": columns["age"], "age": columns["weight"]}
    assert (fingerprints(log_of(columns)) != fingerprints(log_of(other))).all()


def test_a_log_with_rows_of_the_training_is_not_a_test(tmp_path):
    """An export of this month that holds last month's rows: most of the value would be memory."""
    before, later = rows(300, 6), rows(60, 7)
    policy = ponn.learn(log_of(before), "direct-forest", seed=0)
    policy.save(tmp_path / "p.ponn")
    loaded = ponn.load(tmp_path / "p.ponn")
    with pytest.raises(LowOverlap, match=r"the policy learned from about 8.% of these rows"):
        ponn.evaluate(loaded, log_of(joined(before, later)))
    assert ponn.evaluate(loaded, log_of(rows(300, 8))).trusted
