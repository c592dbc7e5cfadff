"""What a policy file, a report and `GET /policy` tell of the people in the log: attacks that must come to nothing.

The long versions, with what protection costs, are in `benchmarks/reliability/privacy_attacks.py`. Chances that a test
fails though nothing is wrong are those of three standard errors, one side: about 1 in 700; seeds are fixed.
"""

import json
import zipfile

import numpy as np
import pyarrow as pa
import pytest

import ponn
from attacks import (
    by_shadow,
    differencing,
    log_of,
    membership_by_cells,
    membership_by_numbers,
    named_in,
    numbers_in,
    outcome_inference,
    patients,
    rebuilt_rows,
    single_people_in_cells,
    told,
    with_old_sketch,
)
from ponn.log.encoding import Encoding
from ponn.log.features import fit_category, summarise_texts
from ponn.methods import settings_of
from ponn.policy.disclosure import disclosed_range, disclosed_usual, rounded
from ponn.report.findings import findings
from ponn.report.page import report_page
from ponn.serving.advice import Adviser
from ponn.serving.openapi import described_paths
from ponn.storage import write_whole


@pytest.fixture(scope="module")
def log():
    return log_of(patients(1_000, 0))


@pytest.fixture(scope="module")
def policy(log):
    return ponn.learn(log, "lr-l1")


def file_of(policy, folder):
    policy.save(folder / "p.ponn")
    return told(folder / "p.ponn")


# Fingerprints -------------------------------------------------------------------------------------------------


def test_rows_are_rebuilt_from_a_file_of_before_and_not_from_one_of_now(log, policy, tmp_path):
    old = {"provenance": with_old_sketch(policy, log)}
    assert rebuilt_rows(old, log) == 256
    assert rebuilt_rows(file_of(policy, tmp_path), log) == 0
    assert rebuilt_rows(Adviser(policy).about, log) == 0


def test_nobody_is_recognised_by_a_number_in_the_file(log, policy, tmp_path):
    others = log_of(patients(1_000, 1))
    assert membership_by_numbers({"provenance": with_old_sketch(policy, log)}, log, others).value == 1
    assert membership_by_numbers(file_of(policy, tmp_path), log, others).is_noise


def test_all_rows_but_one_tell_hardly_anything_of_that_one():
    """One in n/8 is in the group that is sealed: an advantage of 0.02 for 400 rows, which 100 people cannot show."""
    assert differencing(400, 100, 7).is_noise


def test_the_file_beside_it_is_never_served(policy):
    served = json.dumps(Adviser(policy).about) + json.dumps(described_paths(Adviser(policy).about, False))
    source = policy.provenance["source"]
    for secret in (*source["digest"].split(":"), source["id"], str(policy.acquaintance.key)):
        assert secret not in served


# Rare levels and single values --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rare():
    """Names that a few people have, one of 103 years, exact values, an outcome far from all others."""
    columns = patients(600, 3, noise=1)
    one = np.arange(600) == log_of(columns).split_rows(0.7, 0)[0][5]  # of those that policies learn from
    columns["bed"] = np.where(one, 9_999, columns["bed"])
    columns["age"] = np.where(one, 103, columns["age"])
    columns["name"] = np.where(np.arange(600) % 97 == 0, np.char.add("person", np.arange(600).astype(str)), "nobody")
    columns["visit"] = np.datetime64("2020-01-01") + np.arange(600) % 365
    columns["visit"][one] = np.datetime64("1931-05-06")
    columns["days"] = np.random.default_rng(1).gamma(2, 5, 600).round(3)
    columns["days"][one] = 123.457
    del columns["well"]
    return columns


def rare_log(columns):
    return ponn.read_log(columns, action="drug", reward="days", minimize=True)


METHODS = {"lr-l1": {}, "direct-forest": {"trees": 10}, "ponn-b": {"epochs": 3, "hidden": (4,), "bins": "quantile"}}


@pytest.mark.parametrize("method", METHODS)
def test_no_single_value_is_in_a_policy_file(rare, tmp_path, method):
    log = rare_log(rare)
    file = file_of(ponn.learn(log, method, **METHODS[method]), tmp_path)
    assert not named_in(file, [*np.unique(rare["name"][rare["name"] != "nobody"]), "1931-", "123.45"]).any()
    file.pop("settings")
    born = (np.datetime64("1931-05-06") - np.datetime64("1970-01-01")).astype(int)
    assert not numbers_in(file, np.array([103, 9_999, 123.457, born])).any()
    labs = np.setdiff1d(rare["lab0"], [0.0, 0.3])  # of what is in the file by chance
    assert numbers_in(file, labs).sum() == 0
    everything = file_of(ponn.learn(log, method, **METHODS[method], min_cell=1), tmp_path)
    assert named_in(everything, ["person97", "123.45"]).all()
    assert numbers_in(everything, np.array([103, 9_999, born])).all()


def test_no_single_value_is_served_or_reported(rare):
    log = rare_log(rare)
    policy = ponn.learn(log, "lr-l1")
    about = Adviser(policy).about
    page = report_page(findings(policy, log, by=("name",)))
    for text in (json.dumps(about), json.dumps(described_paths(about, False)), page):
        assert not named_in(text, ["person97", "1931-05", "123.45", "9999", "9,999"]).any()
    assert "in row" not in page


def test_columns_that_tell_of_a_few_people_alone_have_no_effect():
    """Whoever has a level nobody else has, or the only missing cell, could be found by what the model says of it."""
    columns = patients(300, 5)
    columns["odd"] = np.where(np.arange(300) == 7, "odd", "even")
    columns["flag"] = np.arange(300) == 7
    log = log_of(columns | {"lab": pa.array(np.arange(300.0) % 50, mask=np.arange(300) == 7)})
    policy = ponn.learn(log, "lr-l1", l1=1e-6)
    one = log.table.slice(7, 1)
    for name, other in (("odd", "even"), ("flag", False)):
        place = one.column_names.index(name)
        changed = one.set_column(place, name, pa.array([other]))
        assert np.array_equal(policy.predict_proba(one), policy.predict_proba(changed))
        assert np.array_equal(policy.promised(policy.design(one)[0]), policy.promised(policy.design(changed)[0]))
    assert not any("(missing)" in name for name in policy.encoding.design_names)


def test_the_encoding_of_rows_is_the_one_that_was_learned_with(rare):
    """Only what is said of columns is coarser, not what is made of them."""
    log = rare_log(rare)
    policy = ponn.learn(log, "logging", seed=0)
    first = log.split_rows(0.7, 0)[0]
    exact = Encoding.fit(log.take(first), fewest=10)
    assert np.array_equal(policy.encoding.design(log), exact.design(log))
    assert policy.encoding != exact


@pytest.mark.parametrize(
    ("counts", "missing", "kept", "rest", "stand_in"),
    [
        ({"a": 50, "b": 20, "c": 3}, 0, ("a", "b"), 0, "a"),  # three are too few to be a level, even together
        ({"a": 50, "b": 6, "c": 6}, 0, ("a",), 12, "a"),  # twelve are enough, without their names
        ({"a": 50}, 4, ("a",), 0, "a"),
        ({"a": 50}, 40, ("a",), 0, "a"),
        ({"a": 3}, 40, (), 0, "(missing)"),
        ({"a": 3}, 4, (), 3, "(other)"),  # nothing else is there
        ({}, 4, (), 0, "(missing)"),
        ({str(i): 1 for i in range(40)}, 0, (), 40, "(other)"),
    ],
)
def test_levels_that_few_share_are_not_named(counts, missing, kept, rest, stand_in):
    cells = [text for text, count in counts.items() for _ in range(count)] + [None] * missing
    column = pa.chunked_array([pa.array(cells, pa.string())])
    found = fit_category("x", summarise_texts(column), 50, 10)
    assert (found.kept, found.rest, found.rest_rows, found.stand_in) == (kept, (), rest, stand_in)
    counted = np.bincount(found.codes(found.read(column)), minlength=found.b)
    assert counted.min() >= min(10, len(cells))  # so no column of the design speaks of fewer
    assert counted.sum() == len(cells)


@pytest.mark.parametrize(
    ("value", "spread", "expected"), [(73.2154, 12.0, 73), (0.012345, 0.3, 0.01), (1234.5, 900, 1230)]
)
def test_values_are_told_in_two_digits_of_their_spread(value, spread, expected):
    assert rounded(value, spread) == expected


def test_an_observed_range_is_rounded_outward_and_a_declared_one_is_not(rare):
    log = rare_log(rare)
    low, high = disclosed_range(log, 10)
    assert low <= rare["days"].min()
    assert (low, high) == (0.0, 130.0)
    assert disclosed_range(log, 1) == log.reward_range
    declared = ponn.read_log(rare, action="drug", reward="days", reward_range=(0, 200.5))
    assert disclosed_range(declared, 10) == (0, 200.5)
    policy = ponn.learn(log, "lr-l1")
    assert policy.provenance["reward"]["range"] == [0.0, 130.0]


def test_usual_values_are_those_of_many(rare):
    log = rare_log(rare)
    usual = disclosed_usual(Encoding.fit(log, fewest=10), log.X, 10)
    assert usual["name"] == "nobody"
    assert usual["lab0"] == round(usual["lab0"], 1)


# Cells, leaves, probabilities ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sides():
    return log_of(patients(500, 11, 6)), log_of(patients(500, 12, 6))


def test_no_cell_of_similar_rows_holds_fewer_than_ten_people(log):
    everything, now = (ponn.learn(log, "logging", min_cell=least).similar for least in (1, 10))
    N = everything.cells.rows
    assert ((N > 0) & (N < 10)).any()
    kept = now.cells.rows
    assert (kept[kept > 0] >= 10).all()
    for sums in now.cells:
        assert (sums[kept == 0] == 0).all()


def test_one_person_in_a_cell_is_found_without_the_smallest_cell_alone():
    columns = patients(400, 2)
    columns["drug"] = columns["drug"].astype(object)
    columns["drug"][:3] = "rare"
    policies = [ponn.learn(log_of(columns), "logging", min_cell=least) for least in (1, 10)]
    assert [single_people_in_cells(one) > 0 for one in policies] == [True, False]


def test_leaves_do_not_tell_outcomes_of_single_people(sides):
    """With leaves of one row a forest says the outcome of everybody it learned from."""
    inside, outside = (one.take(inside_rows(one)) for one in sides)
    exact, shared = (ponn.learn(sides[0], "direct-forest", trees=30, min_cell=least) for least in (1, 10))
    members, others, _ = outcome_inference(exact, inside, outside)
    assert members > 0.99 > 0.7 > others
    members, others, error = outcome_inference(shared, inside, outside)
    assert members < 0.85
    assert error < 0.04


def inside_rows(log):
    """The rows of a log that forests learn from."""
    return log.split_rows(0.7, 0)[0]


def test_smaller_leaves_must_be_asked_for():
    with pytest.raises(ponn.PonnError, match="leaves of so few rows"):
        settings_of("direct-forest", leaf=3)
    assert settings_of("direct-forest", leaf=3, min_cell=1).leaf == 3
    assert settings_of("direct-forest").leaf == 10
    assert settings_of("ponn-dr").leaf == 1  # its forests are not kept


@pytest.mark.parametrize("method", ["lr-l1", "ponn-b"])
def test_shadow_policies_do_not_tell_who_was_there(method, sides):
    logs = {"target": sides, "shadow": (log_of(patients(500, 13, 6)), log_of(patients(500, 14, 6)))}
    made = {name: ponn.learn(inside, method) for name, (inside, _) in logs.items()}
    parts = {name: tuple(one.take(inside_rows(one)) for one in both) for name, both in logs.items()}
    assert by_shadow(made["target"], made["shadow"], parts).is_noise
    assert membership_by_cells(made["target"], *parts["target"]).value < 0.2


def test_an_action_that_few_people_got_promises_the_mean(tmp_path):
    columns = patients(400, 2)
    columns["drug"] = columns["drug"].astype(object)
    columns["drug"][:6] = "rare"
    columns["well"][:6] = 1
    policy = ponn.learn(log_of(columns), "ponn-b", epochs=2, hidden=(4,))
    rewards = policy.companions["reward"].rewards(policy.encoding.design(log_of(columns)))
    assert np.ptp(rewards[:, policy.actions.index("rare")]) == 0
    assert rewards[0, policy.actions.index("rare")] < 0.8
    assert any("Fewer than 10 training rows each got 'rare'" in note for note in policy.provenance["notes"])


# Old files ----------------------------------------------------------------------------------------------------


def test_files_without_a_smallest_cell_are_still_read(policy, tmp_path):
    policy.save(tmp_path / "p.ponn")
    with zipfile.ZipFile(tmp_path / "p.ponn") as archive:
        found, weights = json.loads(archive.read("policy.json")), archive.read("weights.safetensors")
    del found["settings"]["min_cell"], found["companions"]["similar"]["least"]
    for one in found["encoding"]["features"]:
        one.pop("stand_in", None)
    write_whole(tmp_path / "old.ponn", b"")
    with zipfile.ZipFile(tmp_path / "old.ponn", "w") as archive:
        archive.writestr("policy.json", json.dumps(found))
        archive.writestr("weights.safetensors", weights)
    old = ponn.load(tmp_path / "old.ponn")
    assert old.similar.least == 1
    rows = log_of(patients(20, 9))
    assert np.array_equal(old.predict_proba(rows), policy.predict_proba(rows))
