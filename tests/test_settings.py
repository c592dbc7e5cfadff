"""Settings: every field has a help text and a legal range, and refuses what is outside."""

import sys
from dataclasses import fields, replace

import numpy as np
import pytest

import ponn
from ponn.methods import METHODS, changed, search_of, settings_of, settings_of_each, used_by
from ponn.settings import check_seed


def test_every_field_says_what_it_is():
    for one in fields(ponn.Settings):
        assert len(one.metadata["help"]) > 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bins": "round"}, "bins is 'round'; expected one of equal-width, quantile"),
        ({"bins": 3}, "bins is 3; expected str"),
        ({"max_levels": 1}, "max_levels is 1; expected a number from 2"),
        ({"max_levels": 2.5}, "max_levels is 2.5; expected int"),
        ({"lambda1": "much"}, "lambda1 is 'much'; expected a number"),
        ({"lambda1": float("nan")}, "lambda1 is nan"),
        ({"m": 0.5}, "m is 0.5; expected a number from 1"),
        ({"fdr": 1.5}, "fdr is 1.5; expected a number from 0 to 1"),
        ({"calibrate": 1}, "calibrate is 1; expected bool"),
        ({"l2": float("inf")}, "l2 is inf; expected a number from 0 on, and finite"),
        ({"lambda1": -float("inf")}, "lambda1 is -inf"),
        ({"temperature": 1e4}, "temperature is 10000.0; expected a number from 0.001 to 1000"),
    ],
)
def test_illegal_values_are_refused(wrong, message):
    with pytest.raises(ponn.PonnError, match=message):
        ponn.Settings(**wrong)


def test_whole_numbers_are_numbers():
    found = ponn.Settings(temperature=1, m=20, trees=7)
    assert [type(one) for one in (found.temperature, found.m, found.trees)] == [float, float, int]


@pytest.mark.parametrize("seed", [-1, 2**31, 1.5, "1", None])
def test_seeds_that_some_library_would_refuse_are_refused(seed):
    with pytest.raises(ponn.PonnError, match=r"The seed is .*expected a whole number from 0 to 2,147,483,647"):
        check_seed(seed)


def test_seeds_may_come_from_numpy():
    check_seed(np.int64(3))
    check_seed(2**31 - 1)


def test_legal_values_pass_and_settings_are_frozen():
    one = ponn.Settings(lambda1=1, m=20, select="fdr")
    assert replace(one, m=None).m is None
    with pytest.raises(AttributeError):
        one.m = 3


@pytest.mark.parametrize(
    ("changes", "select"),
    [
        ({}, "auto"),
        ({"lambda1": 0.1}, "threshold"),
        ({"lambda2": 1}, "threshold"),
        ({"fdr": 0.2}, "fdr"),
        ({"even": True}, "fdr"),
        ({"pooled": True}, "fdr"),
    ],
)
def test_a_rule_that_is_spoken_of_is_taken(changes, select):
    assert settings_of("ponn-dr", **changes).select == select
    assert changed("ponn-dr", {**changes, "select": "auto"}).select == "auto"
    assert changed("ponn-b", changes).select == "threshold"


# Settings that make no difference ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("lr-l1", {"trees": 500}, r"Method lr-l1 has no use for the setting trees\. It uses .*, l1\."),
        ("ponn-dr", {"criterion": "ips"}, "Method ponn-dr has no use for the setting criterion"),
        ("logging", {"epochs": 3}, "Method logging has no use for the setting epochs"),
        ("ponn", {"lambda1": 0.1}, "belongs to the selection of features, which method ponn leaves out"),
        ("ponn-b", {"clip": 2.0}, "clip only counts with criterion=ips; here it is 'cross-entropy'"),
        ("ponn-b", {"lambda1": 0.2, "select": "fdr"}, "lambda1 only counts with select=threshold; here it is 'fdr'"),
        ("ponn-b", {"fdr": 0.2}, "fdr only counts with select=fdr or auto; here it is 'threshold'"),
        ("ponn-dr", {"fdr": 0.2, "select": "threshold"}, "fdr only counts with select=fdr"),
    ],
)
def test_a_setting_that_makes_no_difference_is_refused(method, changes, message):
    with pytest.raises(ponn.PonnError, match=message):
        settings_of(method, **changes)


def test_settings_that_count_under_others_pass():
    assert settings_of("ponn", relevance=True, lambda1=0.1).lambda1 == 0.1
    assert settings_of("ponn-b", criterion="ips", clip=2.0).clip == 2
    assert settings_of("ponn-dr", fdr=0.2).select == "fdr"


def test_every_method_may_be_given_what_it_tunes():
    for name, row in METHODS.items():
        for setting, values in search_of(row, settings_of(name), {}).items():
            settings_of(name, **{setting: values[0]})


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_is_said_to_use_is_what_it_reads(method, monkeypatch):
    """Reads of settings are watched while the method learns, with and without the selection of features."""
    read, watched = set(), {one.name for one in fields(ponn.Settings)}

    def watch(self, name):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if name in watched and caller.startswith("ponn.") and caller not in ("ponn.settings", "ponn.methods"):
            read.add(name)
        return object.__getattribute__(self, name)

    log = ponn.simulate.world("breast-cancer", rows=300).log
    quick = {"epochs": 1, "trees": 2, "folds": 2}
    given = {name: value for name, value in quick.items() if name in used_by(method)}
    monkeypatch.setattr(ponn.Settings, "__getattribute__", watch)
    ponn.learn(log, method, workers=1, relevance=True, select="fdr", **given)
    monkeypatch.undo()
    by_valuation = {"reward_model", "reward_penalty"}  # which every policy gets
    beside = {"criterion", "variance", "clip", "baseline"}  # read by the loop that all networks share, at their zero
    assert read - set(used_by(method)) <= beside
    assert set(used_by(method)) - read <= by_valuation


def test_methods_that_are_compared_each_get_what_counts_for_them():
    given = settings_of_each(["ponn-b", "lr-l1", "direct-forest"], {"trees": 7, "l1": 0.5, "bins": "quantile"})
    assert given["lr-l1"] == {"l1": 0.5, "bins": "quantile"}
    assert given["ponn-b"] == {"l1": 0.5, "bins": "quantile"}
    assert given["direct-forest"] == {"trees": 7, "bins": "quantile"}
    with pytest.raises(ponn.PonnError, match="Method lr-l1 has no use for the setting trees"):
        settings_of_each(["ponn-b", "lr-l1"], {"trees": 7})
