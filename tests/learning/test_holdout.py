"""Learning with rows kept aside: what is told, what is chosen by what, and the commands that do it."""

import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy.stats import t as student

import estimator_oracles as oracles
import ponn
from commands import PONN
from ponn.cli.learn_commands import print_outcome
from ponn.evaluation.valuation import compare_policies, evaluate, nuisances, read_same_log
from ponn.evaluation.worth import worth
from ponn.learning.holdout import best_fixed_action, compare_methods, learn_with_holdout, valued
from ponn.simulate.synthetic import synthetic
from ponn.tables.files import write_table

QUICK = {"hidden": (8,), "epochs": 30, "patience": 5}


@pytest.fixture(scope="module")
def world() -> ponn.World:
    return synthetic(rows=3_000, features=5, actions=3, relevant=2, effect=0.25, bias=0.3, seed=2)


@pytest.fixture(scope="module")
def outcome(world):
    return learn_with_holdout(world.log, "ponn-b", seed=1, **QUICK)


def test_a_clearly_better_policy_is_called_better(world, outcome):
    assert outcome.verdict.kind == "better"
    kept = world.rows(world.log.split_rows(0.7, 1)[1])
    h = outcome.policy.predict_proba(kept.log)
    truth = kept.value(np.eye(3)[h.argmax(axis=1)])
    found = outcome.value["policy"]
    assert found.n == len(kept.log) == 900
    assert abs(found.value - truth) < 4 * found.standard_error


def test_the_json_has_the_shape_of_the_contract(outcome):
    told = outcome.as_json()
    assert set(told["value"]) == {"policy", "logging", "best_fixed", "drawn"}
    for one in told["value"].values():
        assert {"value", "low", "high", "n", "ess", "estimator", "level"} <= set(one)
    assert told["value"]["best_fixed"]["action"] in outcome.policy.actions
    assert told["verdict"] == "better"
    json.dumps(told)


def test_the_file_remembers_what_it_was_worth(outcome, tmp_path):
    outcome.policy.save(tmp_path / "p.ponn")
    assert ponn.load(tmp_path / "p.ponn").evaluation == outcome.as_json()


def test_on_the_log_it_was_learned_from_only_rows_kept_aside_are_used(world, outcome):
    found = evaluate(outcome.policy, world.log)
    assert found.n == 900
    assert found.value == pytest.approx(outcome.value["policy"].value, abs=0.02)  # other folds


def test_the_best_fixed_action_is_the_best_one(world):
    assert best_fixed_action(world.log) == world.log.actions[int(world.expected.mean(axis=0).argmax())]


def test_an_action_that_training_rows_lack_is_not_the_best_one(world):
    few = world.log.take(np.flatnonzero(world.log.A != 1))
    assert best_fixed_action(few) in (world.log.actions[0], world.log.actions[2])


# Against the best single action --------------------------------------------------------------------------


def plain_gain(found, level):
    """value, low, high of the doubly robust difference policy - best fixed action, row by row, rewards in [0, 1]."""
    rows, p, Q = found.kept, found.corrections.p, found.corrections.Q
    fixed = rows.actions.index(found.best_fixed)
    gains, moves = [], []
    for j, label in enumerate(found.policy.predict(rows)):
        recommended, taken = rows.actions.index(label), rows.A[j]
        gain = Q[j, recommended] - Q[j, fixed]
        moves.append(((recommended == taken) - float(fixed == taken)) / p[j])
        gains.append(gain + moves[-1] * (rows.R[j] - Q[j, taken]))
    value = sum(gains) / len(gains)
    error = math.sqrt(sum((one - value) ** 2 for one in gains) / (len(gains) - 1) / len(gains))
    n = len(gains)
    unexpected = [rows.R[j] - Q[j, rows.A[j]] for j in range(n)]
    error = math.hypot(error, oracles.unseen_error(moves, unexpected, [1] * n, range(n)))
    reach = student.ppf(level, n - 1) * error  # each end by itself holds with `level`
    return value, value - reach, value + reach


def ends(one):
    return one.value, one.low, one.high


def test_the_gain_over_the_best_single_action_is_paired_row_by_row(outcome):
    found = outcome.over_best_fixed
    assert ends(found) == pytest.approx(plain_gain(outcome, 0.95), abs=1e-12)
    assert found.value == pytest.approx(outcome.value["policy"].value - outcome.value["best_fixed"].value)
    assert (found.level, found.estimator, found.n) == (pytest.approx(0.9), "dr", 900)
    assert found.ess == min(outcome.value[name].ess for name in ("policy", "best_fixed"))


def test_a_gain_is_above_0_also_where_small_outcomes_are_good(world):
    """The log with its rewards as costs of 0 to 50 says the same, in that unit."""
    table = world.log.table
    place = table.column_names.index("reward")
    cost = pa.array(50.0 * (1 - world.log.R))
    turned = table.set_column(place, "reward", cost)
    log = ponn.read_log(turned, action="action", reward="reward", minimize=True)
    found = learn_with_holdout(log, "lr-l1", seed=1)
    gain, costs = found.over_best_fixed, found.value
    assert ends(gain) == pytest.approx([50 * one for one in plain_gain(found, 0.95)], abs=1e-10)
    assert gain.value == pytest.approx(costs["best_fixed"].value - costs["policy"].value)
    assert gain.low > 0
    assert found.as_json()["over_best_fixed"]["verdict"] == "better"
    assert found.worth.verdict.difference.value < 0  # which is as it was: policy minus current practice


def shown(capsys, found):
    """What `ponn learn` prints of an outcome, in one line."""
    print_outcome(found)
    return " ".join(capsys.readouterr().out.split())


def test_a_policy_that_beats_the_best_single_action_says_so(outcome, capsys):
    told, gain = outcome.as_json()["over_best_fixed"], outcome.over_best_fixed
    assert told["verdict"] == "better"
    assert [told[end] for end in ("value", "low", "high", "n", "ess", "estimator", "level")] == [
        *ends(gain),
        *(900, gain.ess, "dr", gain.level),
    ]
    assert outcome.policy.evaluation["over_best_fixed"] == told
    value, low, high = (f"{one:.3f}" for one in ends(gain))
    said = f"Better than giving everyone {outcome.best_fixed} by {value} (90 %: {low} to {high})."
    assert shown(capsys, outcome).endswith(said)


def same_for_all(n, noise):
    """A log in which action b is best for everyone; noise: a feature that seems to matter in few rows."""
    rng = np.random.default_rng(4)
    A, x = rng.integers(2, size=n), rng.integers(2, size=n)
    R = rng.random(n) < np.where(A == 1, 0.6 - noise * x, 0.4)
    return ponn.read_log(pa.table({"x": x, "A": np.array(["a", "b"])[A], "R": R}), action="A", reward="R")


def test_a_policy_that_gives_everyone_the_best_single_action_is_not_better(capsys):
    found = learn_with_holdout(same_for_all(1_000, 0.0), "lr-l1")
    assert set(found.policy.predict(found.kept)) == {found.best_fixed} == {"b"}
    assert ends(found.over_best_fixed) == (0.0, 0.0, 0.0)
    assert found.verdict.kind == "better"
    assert found.as_json()["over_best_fixed"]["verdict"] == "not better"
    assert "Not better than giving everyone b: 0.000 (90 %: 0.000 to 0.000);" in shown(capsys, found)


def test_a_small_gain_over_the_best_single_action_is_not_clear(capsys):
    found = learn_with_holdout(same_for_all(1_000, 0.25), "lr-l1")
    assert set(found.policy.predict(found.kept)) == {"a", "b"}
    assert found.over_best_fixed.low < 0 < found.over_best_fixed.high
    assert found.as_json()["over_best_fixed"]["verdict"] == "not enough evidence"
    told = shown(capsys, found)
    assert "No clear gain over giving everyone b: " in told
    assert told.endswith("that simpler rule may do as well.")


def test_a_single_action_that_cannot_be_valued_is_said(world, outcome, capsys):
    kept = outcome.kept.take(np.flatnonzero(outcome.kept.A != 1))
    lacking = world.log.actions[1]
    found = valued(outcome.policy, lacking, kept, 0.95, 1)
    assert not found.over_best_fixed.trusted
    assert found.as_json()["over_best_fixed"]["verdict"] == "not enough evidence"
    json.dumps(found.as_json(), allow_nan=False)
    told = shown(capsys, found)
    assert f"Whether it is better than giving everyone {lacking} cannot be told: " in told
    assert "the log only in 0 of them" in told


def test_the_help_of_compare_names_every_method(here):
    told = here("compare", "--help").stdout
    assert all(f" {name}" in told for name in ponn.METHODS)


def test_a_contest_names_its_best_by_validation_rows(world):
    found = compare_methods(world.log, ("ponn-b", "logging"), seed=1, **QUICK)
    assert found.best == "ponn-b"
    told = found.as_json()
    assert [one["method"] for one in told["methods"]] == ["ponn-b", "logging", "current practice"]
    assert told["methods"][0]["verdict"] == "better"
    assert told["methods"][0]["seconds"] > 0
    (pair,) = told["differences"]
    assert (pair["method"], pair["minus"]) == ("ponn-b", "logging")
    assert pair["value"] == pytest.approx(told["methods"][0]["value"] - told["methods"][1]["value"])
    with pytest.raises(ponn.PonnError, match="no method 'magic'"):
        compare_methods(world.log, ("magic",))


def test_a_log_is_read_as_the_policys_own_was(world, tmp_path):
    write_table(world.log.table, tmp_path / "log.csv")
    log = ponn.read_log(tmp_path / "log.csv", action="action", reward="reward", minimize=True, reward_range=(0, 2))
    again = read_same_log(ponn.learn(log, "ponn-b", **QUICK), tmp_path / "log.csv")
    assert again.digest == log.digest
    assert again.minimize
    assert again.reward_range == (0.0, 2.0)


def test_rows_that_were_left_out_in_learning_are_left_out_again_and_counted(world, tmp_path):
    table, empty = world.log.table, np.arange(3_000) % 10 == 0
    reward = pc.if_else(pa.array(empty), None, table["reward"])
    table = table.set_column(table.column_names.index("reward"), "reward", reward)
    log = ponn.read_log(table, action="action", reward="reward", drop_missing=True, ignore=["x1"])
    made = learn_with_holdout(log, "lr-l1", seed=1)
    made.policy.save(tmp_path / "p.ponn")
    again = read_same_log(ponn.load(tmp_path / "p.ponn"), table, also=("x1",))
    assert again.digest == log.digest
    assert again.table["x1"].to_pylist() == table["x1"].filter(pa.array(~empty)).to_pylist()
    found = worth(made.policy, again, by="x1", allow_low_overlap=True, seed=1)
    assert "300 of 3000 rows without 'action' or 'reward' were left out, as asked." in found.notes
    assert found.policy == made.value["policy"]


# What speaks against a value -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def biased():
    """A log in which some actions are hardly ever taken in some cases, and what was learned from it."""
    made = synthetic(rows=2_500, features=4, actions=3, relevant=2, effect=0.2, bias=2.5, seed=5)
    return made, learn_with_holdout(made.log, "lr-l1", seed=1)


def test_unsupported_recommendations_are_counted_and_the_safer_policy_is_valued(biased):
    made, found = biased
    kept = made.log.take(made.log.split_rows(0.7, 1)[1])
    supported = found.policy.recommend(kept).column("supported").to_numpy()
    assert 0 < (~supported).sum() == found.worth.unsupported
    told = found.as_json()
    assert told["unsupported"] == {"rows": int((~supported).sum()), "share": float((~supported).mean())}
    safer = evaluate(ponn.SupportedOnly(found.policy), kept, allow_low_overlap=True, seed=1)
    assert told["value"]["supported_only"]["value"] == safer.value
    assert found.value["supported_only"].ess > found.value["policy"].ess


def test_one_bootstrap_serves_all_that_is_said(biased, monkeypatch):
    import ponn.evaluation.valuation as module

    monkeypatch.setattr(module, "BOOTSTRAPS", 5)
    made, found = biased
    kept = made.log.take(made.log.split_rows(0.7, 1)[1])
    how = {"interval": "bootstrap", "corrections": nuisances(kept), "allow_low_overlap": True}
    said = worth(found.policy, kept, **how)
    assert said.policy == evaluate(found.policy, kept, **how)
    assert said.supported_only == evaluate(ponn.SupportedOnly(found.policy), kept, **how)
    again = compare_policies({"it": found.policy}, kept, interval="bootstrap", corrections=how["corrections"])
    assert said.verdict == again.verdicts["it"]


def test_a_fully_supported_policy_has_no_safer_one(world, outcome):
    assert outcome.worth.unsupported == 0
    assert outcome.worth.supported_only is None
    drawn = worth(ponn.Sampled(outcome.policy), world.log)
    assert (drawn.unsupported, drawn.variants) == (None, {})


def test_drawing_from_the_policy_is_valued_beside_its_recommendations(world, outcome, monkeypatch):
    kept = world.log.take(world.log.split_rows(0.7, 1)[1])
    assert outcome.value["drawn"] == evaluate(ponn.Sampled(outcome.policy), kept, seed=1)
    assert outcome.value["drawn"].ess > outcome.value["policy"].ess
    monkeypatch.setattr("ponn.evaluation.valuation.BOOTSTRAPS", 5)
    how = {"interval": "bootstrap", "corrections": nuisances(kept)}
    said = worth(outcome.policy, kept, **how)
    assert said.drawn == evaluate(ponn.Sampled(outcome.policy), kept, **how)
    assert said.policy == evaluate(outcome.policy, kept, **how)


def test_draws_are_not_valued_where_they_are_the_recommendations_or_where_the_log_lacks_an_action(world, outcome):
    sure = ponn.learn(world.log.take(np.arange(1_500)), "direct-forest", trees=5, seed=0)
    assert worth(sure, world.log.take(np.arange(1_500, 3_000))).variants == {}
    rest = world.log.take(world.log.split_rows(0.7, 1)[1])
    fewer = rest.take(np.flatnonzero(rest.A != least_recommended(outcome.policy, rest)))
    narrow = ponn.read_log(fewer.table, action="action", reward="reward")
    easy = narrow.take(np.flatnonzero(np.isin(outcome.policy.predict(narrow), narrow.actions)))
    assert len(narrow.actions) == 2
    assert worth(outcome.policy, easy, allow_low_overlap=True).drawn is None


def least_recommended(policy, log) -> int:
    labels = policy.predict(log)
    return int(np.argmin([np.sum(labels == one) for one in log.actions]))


def test_a_better_policy_says_what_would_overturn_it(outcome):
    found = outcome.worth.sensitivity
    assert found.breaking_gamma > 1
    assert outcome.policy.evaluation["sensitivity"]["breaking_gamma"] == found.breaking_gamma


def test_a_policy_that_cannot_be_valued_is_not_lost(world, tmp_path, monkeypatch):
    from click.testing import CliRunner

    import ponn.learning.holdout as module
    from ponn.cli.program import ponn as command

    def fails(*_, **__):
        raise ponn.PonnError("no value today.")

    monkeypatch.chdir(tmp_path)
    write_table(world.log.table, tmp_path / "log.csv")
    monkeypatch.setattr(module, "worth", fails)
    done = CliRunner().invoke(command, ["learn", "log.csv", *FLAGS, "--method", "ponn-b", "--out", "kept.ponn"])
    assert isinstance(done.exception, ponn.PonnError)
    assert "is in kept.ponn, but it could not be valued: no value today." in str(done.exception)
    kept = ponn.load("kept.ponn")
    assert kept.evaluation is None
    monkeypatch.undo()
    log = read_same_log(kept, tmp_path / "log.csv")
    assert evaluate(kept, log, allow_low_overlap=True).n == 900  # it still knows the rows that were kept aside


def test_subgroups_by_a_column_that_the_policy_does_not_look_at(world, tmp_path):
    write_table(world.log.table, tmp_path / "log.csv")
    log = ponn.read_log(tmp_path / "log.csv", action="action", reward="reward", ignore=["x1"])
    policy = learn_with_holdout(log, "lr-l1").policy
    again = read_same_log(policy, tmp_path / "log.csv", also=("x1", "x2"))
    assert again.digest == log.digest
    found = worth(policy, again, by=("x1", "x2"), allow_low_overlap=True)
    assert [one.column for one in found.subgroups.groups] == ["x1"] * 4 + ["x2"] * 4
    assert sum(one.rows for one in found.subgroups.groups) == 2 * 900
    with pytest.raises(ponn.PonnError, match="no column 'ward'"):
        read_same_log(policy, tmp_path / "log.csv", also=("ward",))


# Commands ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("holdout")
    write_table(world.log.table, folder / "log.csv")
    return folder


ROLES = ("--action", "action", "--reward", "reward")
FLAGS = (*ROLES, "--set", "epochs=30", "--set", "hidden=(8,)", "--json")


def test_learn_evaluate_and_compare_on_the_command_line(folder, here):
    learned = here("learn", "log.csv", *FLAGS, "--method", "ponn-b", "--require-improvement", cwd=folder)
    assert learned.returncode == 0, learned.stderr
    told = json.loads(learned.stdout)
    assert {"policy", "method", "rows", "actions", "seconds", "value", "verdict", "over_best_fixed"} <= set(told)
    assert told["over_best_fixed"]["verdict"] == "better"
    valued = here("evaluate", "policy.ponn", "log.csv", "--json", "--require-improvement", cwd=folder)
    assert valued.returncode == 0, valued.stderr
    assert json.loads(valued.stdout)["n"] == told["value"]["policy"]["n"]
    assert json.loads(valued.stdout)["logging"]["value"] == told["value"]["logging"]["value"]
    looked = here("evaluate", "policy.ponn", "log.csv", "--by", "x1", "--gamma", "1.2", "--json", cwd=folder)
    more = json.loads(looked.stdout)
    assert [one["column"] for one in more["subgroups"]["groups"]] == ["x1"] * 4
    assert more["sensitivity"]["gamma"] == 1.2
    shown = here("evaluate", "policy.ponn", "log.csv", "--by", "x1", "--gamma", "1.2", cwd=folder).stdout
    assert "all 12 intervals hold together with 95 %" in shown
    assert "changed the odds of an action by up to 1.2" in shown
    assert "An unseen cause would have to change the odds" in shown
    how = ("--methods", "lr-l1,logging", "--interval", "bernstein", "--estimator", "ips")
    compared = here("compare", "log.csv", *ROLES, "--json", *how, cwd=folder)
    assert json.loads(compared.stdout)["differences"][0]["interval"] == "bernstein", compared.stderr
    assert json.loads(compared.stdout)["best"] == "lr-l1", compared.stderr


@pytest.mark.parametrize(
    "asked", ["evaluate plain.ponn log.csv --allow-low-overlap", "report plain.ponn log.csv --out r.html"]
)
def test_a_policy_is_valued_without_loading_torch(world, folder, asked):
    ponn.learn(world.log, "lr-l1").save(folder / "plain.ponn")
    at_the_end = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr)); "
    command = [*PONN[:-1], at_the_end + PONN[-1], *asked.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False"


def test_no_improvement_gives_status_3_and_bad_wishes_status_1(folder, here):
    learned = here(
        "learn",
        "log.csv",
        *ROLES,
        "--json",
        "--method",
        "logging",
        "--out",
        "same.ponn",
        "--require-improvement",
        cwd=folder,
    )
    assert learned.returncode == 3
    assert json.loads(learned.stdout)["verdict"] != "better"
    wrong = here("evaluate", "same.ponn", "log.csv", "--estimator", "best", cwd=folder)
    assert wrong.returncode == 1
    assert "no estimator 'best'" in wrong.stderr
