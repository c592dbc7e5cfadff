"""Rows that a policy learned from are known again in whatever file they come; new rows are not taken for them."""

import json
import stat
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import ponn
from ponn.evaluation.intervals import LowOverlap
from ponn.log.acquaintance import SIZE, Acquaintance, acquaintance, beside, fingerprints, group_digests, seal, seals
from ponn.tables.files import write_table

KEY = 2**63 + 5
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


def kept(columns: dict[str, np.ndarray]) -> Acquaintance:
    return acquaintance(log_of(columns), "id")


def joined(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([one[name], other[name]]) for name in one}


@pytest.mark.parametrize("n", [100, 5_000])
@pytest.mark.parametrize("fine", [True, False])
def test_new_rows_are_not_taken_for_known_ones(n, fine):
    """200 pairs of logs of the same kind: three standard errors and three rows more are passed about never."""
    shares = [kept(rows(n, 2 * s + 1, fine)).known_share(log_of(rows(n, 2 * s, fine))) for s in range(50)]
    assert not any(shares)


@pytest.mark.parametrize("n", [100, 5_000])
def test_known_rows_are_counted_among_new_ones_in_any_order(n):
    before, later = rows(n, 1), rows(n, 2)
    mixed = log_of(joined(before, later), np.random.default_rng(3).permutation(2 * n))
    found = kept(before).known_share(mixed)
    assert found == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(min(2 * n, 2 * SIZE)))  # four standard errors


def test_a_row_has_the_same_fingerprint_in_every_file(tmp_path):
    columns = rows(60, 4)
    write_table(pa.table(columns), tmp_path / "log.csv")
    expected = fingerprints(log_of(columns), KEY)
    assert len(np.unique(expected)) == 60
    read = ponn.read_log(tmp_path / "log.csv", **ROLES)
    np.testing.assert_array_equal(fingerprints(read, KEY), expected)
    turned = ponn.read_log({name: columns[name] for name in reversed(columns)}, **ROLES)
    np.testing.assert_array_equal(fingerprints(turned, KEY), expected)
    for type in (float, np.float32):
        changed = columns | {"days": columns["days"].astype(type), "age": columns["age"].astype(type)}
        np.testing.assert_array_equal(fingerprints(log_of(changed), KEY), expected)


@pytest.mark.parametrize("name", ["age", "ward", "smoker", "drug", "days"])
def test_every_column_counts(name):
    columns = rows(60, 5)
    other = columns | {name: columns[name][::-1]}
    changed = columns[name] != other[name]
    assert changed.any()
    assert ((fingerprints(log_of(columns), KEY) != fingerprints(log_of(other), KEY)) == changed).all()


def test_equal_cells_of_two_columns_do_not_stand_for_each_other():
    columns = rows(60, 9) | {"weight": np.random.default_rng(1).normal(size=60)}
    other = columns | {"weight": columns["age"], "age": columns["weight"]}
    assert (fingerprints(log_of(columns), KEY) != fingerprints(log_of(other), KEY)).all()


def test_a_log_with_rows_of_the_training_is_not_a_test(tmp_path):
    """An export of this month that holds last month's rows: most of the value would be memory."""
    before, later = rows(300, 6), rows(60, 7)
    policy = ponn.learn(log_of(before), "direct-forest", seed=0)
    policy.save(tmp_path / "p.ponn")
    loaded = ponn.load(tmp_path / "p.ponn")
    with pytest.raises(LowOverlap, match=r"the policy learned from about 8.% of these rows"):
        ponn.evaluate(loaded, log_of(joined(before, later)))
    assert ponn.evaluate(loaded, log_of(rows(300, 8))).trusted


# Seals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 39, 300])
def test_a_log_is_known_by_its_seal_and_no_other_is(n, tmp_path):
    columns = rows(n, 1)
    sealed = seal(log_of(columns))
    write_table(pa.table(columns), tmp_path / "log.csv")
    assert seals(sealed, ponn.read_log(tmp_path / "log.csv", **ROLES))
    assert not seals(sealed, log_of(rows(n, 2)))
    assert not seals(sealed, log_of(columns, np.arange(n)[::-1]))  # parts are split by place, so places count
    assert not seals(None, log_of(columns))
    assert not seals("nonsense:", log_of(columns))


def test_digests_of_old_files_are_still_known():
    log = log_of(rows(50, 1))
    assert seals(log.digest, log)
    assert not seals(log.digest, log_of(rows(50, 2)))


def test_a_seal_tells_of_one_group_alone():
    """A change of one row changes the digest of its group and no other's, and the seal holds one of 37."""
    columns = rows(300, 3)
    one = group_digests(log_of(columns), b"key")
    columns["days"][17] += 1
    other = group_digests(log_of(columns), b"key")
    assert len(one) == 37
    assert sum(a != b for a, b in zip(one, other, strict=True)) == 1


def test_two_seals_of_one_log_have_nothing_in_common():
    log = log_of(rows(300, 3))
    assert not set(seal(log).split(":")) & set(seal(log).split(":"))


# The file beside the policy file ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy():
    return ponn.learn(log_of(rows(300, 6)), "logging", seed=0)


def test_what_knows_rows_stands_beside_the_policy_file_for_its_owner_alone(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    assert stat.S_IMODE(beside(tmp_path / "p.ponn").stat().st_mode) == 0o600
    loaded = ponn.load(tmp_path / "p.ponn")
    assert (loaded.acquaintance.fingerprints == policy.acquaintance.fingerprints).all()
    half = log_of(joined({k: v[:150] for k, v in rows(300, 6).items()}, rows(150, 7)))
    assert loaded.acquaintance.known_share(half) == pytest.approx(0.5)


def test_no_fingerprint_is_in_the_policy_file(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    source = json.loads(policy_json(tmp_path / "p.ponn"))["provenance"]["source"]
    assert set(source) == {"digest", "rows", "id"}


def test_without_that_file_a_value_says_that_rows_may_be_known(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    beside(tmp_path / "p.ponn").unlink()
    found = ponn.evaluate(ponn.load(tmp_path / "p.ponn"), log_of(rows(300, 8)))
    assert found.trusted
    assert any(".rows file" in one for one in found.warnings)
    assert not any(".rows file" in one for one in ponn.evaluate(policy, log_of(rows(300, 8))).warnings)
    with pytest.raises(LowOverlap, match="the very rows"):
        ponn.evaluate(ponn.load(tmp_path / "p.ponn"), log_of(rows(300, 6)))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"kind": "ponn rows"}', "another"])
def test_a_damaged_file_beside_it_is_as_good_as_none(policy, tmp_path, content):
    policy.save(tmp_path / "p.ponn")
    if content == "another":
        other = replace(policy, provenance={**policy.provenance, "source": {"id": "other"}})
        replace(other, acquaintance=acquaintance(log_of(rows(60, 1)), "other")).acquaintance.write(tmp_path / "p.ponn")
    else:
        beside(tmp_path / "p.ponn").write_text(content)
    assert ponn.load(tmp_path / "p.ponn").acquaintance is None


def test_a_policy_that_knows_no_rows_leaves_none_of_another_beside_it(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    replace(policy, acquaintance=None).save(tmp_path / "p.ponn")
    assert not beside(tmp_path / "p.ponn").exists()
    beside(tmp_path / "p.ponn").write_text("the user's own")
    replace(policy, acquaintance=None).save(tmp_path / "p.ponn")
    assert beside(tmp_path / "p.ponn").read_text() == "the user's own"


def test_fingerprints_of_an_old_file_are_dropped_and_this_is_told(policy, tmp_path):
    source = policy.provenance["source"] | {"sketch": {"fingerprints": "AAAA", "whole": True, "chance": 0.1}}
    old = replace(policy, provenance={**policy.provenance, "source": source}, acquaintance=None)
    old.save(tmp_path / "old.ponn")
    assert b"sketch" in policy_json(tmp_path / "old.ponn")
    loaded = ponn.load(tmp_path / "old.ponn")
    assert "sketch" not in loaded.provenance["source"]
    assert "fingerprints of single training rows" in loaded.provenance["notes"][-1]
    loaded.save(tmp_path / "new.ponn")
    assert b"sketch" not in policy_json(tmp_path / "new.ponn")


def policy_json(path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("policy.json")
