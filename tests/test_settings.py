"""Settings: every field has a help text and a legal range, and refuses what is outside."""

from dataclasses import fields, replace

import numpy as np
import pytest

import ponn
from ponn.settings import check_seed, settings_of


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
    assert settings_of("ponn-dr", **changes, select="auto").select == "auto"
    assert settings_of("ponn-b", **changes).select == "threshold"
