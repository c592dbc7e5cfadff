"""`check`: everything odd about a log is found, nothing ordinary is called odd."""

import json

import numpy as np
import pyarrow as pa
import pytest

import ponn
from ponn.simulate.synthetic import synthetic

ROLES = {"action": "drug", "reward": "days"}


def ordinary(n: int = 2_000, seed: int = 0) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    return {
        "age": rng.normal(50, 10, n),
        "ward": rng.choice(["north", "south"], n),
        "drug": rng.choice(["a", "b", "c"], n),
        "days": rng.integers(0, 2, n),
    }


def test_an_ordinary_log_is_ready_and_nothing_is_suspicious():
    found = ponn.check(ordinary(), **ROLES)
    assert found.ready
    assert found.rows == 2_000
    assert not found.suspicious
    assert [one.action for one in found.actions] == ["a", "b", "c"]
    assert sum(one.rows for one in found.actions) == 2_000
    assert [(one.name, one.kind, one.levels) for one in found.features] == [
        ("age", "number", 13),
        ("ward", "category", 2),
    ]


def test_no_false_alarm_on_the_worlds():
    for name in ("pendigits", "breast-cancer", "actg175", "synthetic"):
        log = ponn.simulate.world(name).log
        found = ponn.check(
            log.table,
            action=log.columns.action,
            reward=log.columns.reward,
            ignore=["propensity"] if log.p0 is not None else [],
        )
        assert found.ready
        assert not [told for told in found.suspicious if "determines" in told or "known before" in told], name


def test_means_are_in_the_users_unit():
    table = ordinary()
    table["days"] = np.where(np.array(table["drug"]) == "a", 30.0, 10.0) + np.arange(2_000) % 2
    found = ponn.check(table, **ROLES, minimize=True)
    assert found.actions[0].mean_reward == pytest.approx(30.5, abs=0.1)


def test_a_feature_that_knows_the_outcome_is_found():
    table = ordinary()
    table["discharge"] = np.array(table["days"]) * 3.0 + 1
    assert any("'discharge' all but determines the reward" in told for told in ponn.check(table, **ROLES).suspicious)


def test_a_level_in_which_the_outcome_never_varies_is_found():
    table = ordinary()
    table["bought"] = np.where((np.array(table["days"]) == 1) & (np.arange(2_000) % 5 == 0), "yes", "no")
    assert any("'bought': in all" in told for told in ponn.check(table, **ROLES).suspicious)


def test_a_feature_that_tells_the_action_is_found():
    table = ordinary()
    table["form"] = np.array(["form " + one for one in table["drug"]])
    assert any("'form' all but determines the action" in told for told in ponn.check(table, **ROLES).suspicious)


@pytest.mark.parametrize(("p", "told"), [(1 / 3, False), (0.32, False), (0.05, True), (0.9, True)])
def test_known_propensities_that_do_not_fit_how_often_actions_were_taken_are_told(p, told):
    found = ponn.check(ordinary() | {"p": np.full(2_000, p)}, propensity="p", **ROLES)
    assert any("do not fit how often it was taken" in one for one in found.suspicious) == told


def test_repeated_rows_are_counted():
    table = pa.table(ordinary())
    found = ponn.check(pa.concat_tables([table, table.slice(0, 7)]), **ROLES)
    assert any(told.startswith("7 rows repeat an earlier row") for told in found.suspicious)


def test_levels_that_differ_only_in_capitals_or_spaces_are_told():
    n = 60
    table = {"x": ["yes", "Yes", "no "] * (n // 3), "y": ["a", "b"] * (n // 2), "act": ["u", "v", "V"] * (n // 3)}
    table |= {"z": ["one  two", "One two", "q", "Q", "r", "s"] * (n // 6), "reward": [0, 1] * (n // 2)}
    told = [one for one in ponn.check(table, action="act", reward="reward").suspicious if "capitals" in one]
    assert [one.split("'")[1] for one in told] == ["act", "x", "z"]
    assert "'V', 'v', which" in told[0]
    assert "'Yes', 'yes', which" in told[1]
    assert "'One two', 'one  two' and 1 more such groups" in told[2]


def test_texts_that_are_mostly_numbers_or_mangled_ranges_are_told():
    table = ordinary()
    table["weight"] = ["unknown" if j % 50 == 0 else str(60 + j % 40) for j in range(2_000)]
    table["class"] = ["19-Oct" if j % 3 else "20 - 29" for j in range(2_000)]
    found = ponn.check(table, **ROLES).suspicious
    assert any("'weight' is text because of cells like 'unknown'" in told for told in found)
    assert any("'class' holds '19-Oct'" in told for told in found)


def test_every_problem_is_told_at_once_and_what_could_be_read_is_shown():
    table = ordinary()
    table["days"] = np.ones(2_000)
    table["p"] = np.full(2_000, 1.5)
    found = ponn.check(table, **ROLES, propensity="p")
    assert not found.ready
    assert "never varies" in found.why
    assert "outside (0, 1]" in found.why
    assert len(found.actions) == 3
    assert len(found.features) == 2


def test_wrong_names_are_an_error_not_a_verdict():
    with pytest.raises(ponn.PonnError, match="Did you mean 'drug'"):
        ponn.check(ordinary(), action="drugs", reward="days")


def test_too_few_rows_of_all_but_one_action_is_not_ready():
    table = ordinary()
    table["drug"] = ["b"] * 3 + ["a"] * 1_997
    found = ponn.check(table, **ROLES)
    assert not found.ready
    assert any("'b' (3)" in note for note in found.notes)


def test_json_is_plain():
    found = json.loads(json.dumps(ponn.check(ordinary(), **ROLES).as_json()))
    assert {"rows", "actions", "features", "notes", "ready", "why"} <= set(found)


def test_means_of_huge_outcomes_are_finite():
    table = ordinary()
    table["days"] = np.where(np.array(table["days"]) == 1, 1.7e308, 1.6e308)
    found = ponn.check(table, **ROLES)
    assert all(np.isfinite(one.mean_reward) for one in found.actions)


def test_what_an_action_would_be_worth_to_everyone_shows_what_the_bias_did():
    """Kidney stones: the treatment with the lower success rate would do better if everyone got it."""
    log = ponn.simulate.world("kidney-stones", known_propensity=True).log
    roles = {"action": "treatment", "reward": "success", "propensity": "propensity"}
    found = ponn.check(log.table, **roles)
    worth = dict(found.everyone)
    assert worth["open surgery"].value == pytest.approx(634983 / 762700, abs=1e-12)
    assert found.actions[0].mean_reward < found.actions[1].mean_reward
    assert worth["open surgery"].value > worth["percutaneous nephrolithotomy"].value
    assert all(one.trusted and one.low < one.value < one.high for one in worth.values())
    told = json.loads(json.dumps(found.as_json(), default=str))["everyone"]
    assert told[0]["action"] == "open surgery"
    cost = dict(ponn.check(log.table, **roles, minimize=True).everyone)
    assert cost["open surgery"].value == pytest.approx(worth["open surgery"].value, abs=1e-12)


def test_an_action_that_few_rows_speak_for_is_marked():
    hard = synthetic(rows=2_000, features=4, actions=4, relevant=2, bias=3.0)
    everyone = [one for _, one in ponn.check(hard.log.table, action="action", reward="reward").everyone]
    assert len(everyone) == 4
    assert not all(one.trusted for one in everyone)
