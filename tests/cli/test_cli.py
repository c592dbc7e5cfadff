"""The command line as a user meets it: exit status, what goes to which stream; in real processes where that matters."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from commands import PONN, run
from ponn.cli.program import ponn
from ponn.tables.files import write_table
from served import cases, made_policy


def test_simulate_then_check(tmp_path):
    made = run("simulate", "breast-cancer", "--rows", "500", "--out", "log.csv", "--truth", "truth.csv", cwd=tmp_path)
    assert made.returncode == 0
    assert made.stdout == ""
    assert "invented" in made.stderr
    assert "ponn check log.csv --action regimen --reward survived" in made.stderr
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 501
    header = (tmp_path / "truth.csv").read_text().splitlines()[0]
    assert '"part","p_AC"' in header
    found = run("check", "log.csv", "--action", "regimen", "--reward", "survived", cwd=tmp_path)
    assert found.returncode == 0
    assert "Ready: 500 rows, 6 actions, 14 features" in found.stdout
    assert "\x1b[" not in found.stdout  # no colours where there is no terminal


def test_check_json_is_one_object_and_nothing_else(here, tmp_path):
    here("simulate", "kidney-stones", "--out", "log.parquet", "--known-propensity")
    roles = ("--action", "treatment", "--reward", "success", "--propensity", "propensity")
    found = here("check", "log.parquet", *roles, "--json")
    answer = json.loads(found.stdout)
    assert answer["rows"] == 700
    assert answer["ready"] is True
    assert answer["actions"][0] == {"action": "open surgery", "rows": 350, "mean_reward": 0.78}


def test_a_log_that_is_not_ready_is_an_answer_not_an_error(here, tmp_path):
    (tmp_path / "log.csv").write_text("x,a,r\n1,u,1\n2,v,1\n")
    found = here("check", "log.csv", "--action", "a", "--reward", "r", "--json")
    assert found.returncode == 0
    answer = json.loads(found.stdout)
    assert answer["ready"] is False
    assert "never varies" in answer["why"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("check", "nowhere.csv", "--action", "a", "--reward", "r"), 1, "There is no file nowhere.csv"),
        (("check", "log.csv", "--action", "b", "--reward", "r"), 1, "has no column 'b'"),
        (("check", "log.csv", "--reward", "r"), 2, "Missing option '--action'"),
        (("check", "log.csv", "--action", "a", "--reward", "r", "--reward-range", "5", "1"), 1, "the lower one first"),
        (("simulate", "nowhere", "--out", "x.csv"), 2, "Invalid value for 'WORLD'"),
        (("simulate", "pendigits", "--out", "x.xlsx"), 1, "an ending that is not known"),
        (("simulate", "pendigits", "--out", "no/folder/x.csv"), 1, "There is no folder"),
        (("learm",), 2, "No such command 'learm'"),
    ],
)
def test_mistakes_are_told_without_traceback(here, tmp_path, arguments, status, message):
    (tmp_path / "log.csv").write_text("x,a,r\n1,u,1\n2,v,0\n")
    done = here(*arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_learn_explain_recommend(tmp_path, here):
    here("simulate", "breast-cancer", "--rows", "1500", "--out", "log.csv")
    roles = ("--action", "regimen", "--reward", "survived")
    quick = ("--method", "ponn-b", "--set", "hidden=(8,)", "--set", "epochs=15", "--set", "select=fdr")
    made = run("learn", "log.csv", *roles, *quick, "--out", "p.ponn", "--json", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    answer = json.loads(made.stdout)
    assert answer["policy"] == "p.ponn"
    assert answer["method"] == "ponn-b"
    assert answer["rows"] == 1500
    assert answer["actions"] == ["AC", "ACT", "AT", "CAF", "CEF", "CMF"]
    assert "Step C" in made.stderr
    told = json.loads(here("explain", "p.ponn", "--json").stdout)
    assert {"actions", "method", "settings", "relevance", "provenance"} <= set(told)
    assert len(told["relevance"]) == 6 * 14
    assert "looks at" in here("explain", "p.ponn").stdout
    extra = ("--out", "advice.csv", "--probabilities", "--keep", "age")
    advice = run("recommend", "p.ponn", "log.csv", *extra, cwd=tmp_path)
    assert advice.returncode == 0, advice.stderr
    lines = (tmp_path / "advice.csv").read_text().splitlines()
    assert len(lines) == 1501
    assert lines[0].startswith('"age","action","probability","runner_up","expected_reward","supported","p_AC"')
    assert run("recommend", "p.ponn", "log.csv", cwd=tmp_path).stdout.splitlines()[0].startswith('"action"')
    drawn = here("recommend", "p.ponn", "log.csv", "--sample", "--seed", "1")
    assert drawn.stdout == here("recommend", "p.ponn", "log.csv", "--sample", "--seed", "1").stdout


def test_settings_on_the_command_line_are_checked(here, tmp_path):
    (tmp_path / "log.csv").write_text("x,a,r\n" + "1.5,u,1\n2.5,v,0\n" * 20)
    roles = ("learn", "log.csv", "--action", "a", "--reward", "r")
    for wrong, message in (("lambda1", "has no value"), ("lamda1=3", "Did you mean 'lambda1'"), ("m=0", "from 1")):
        done = here(*roles, "--set", wrong)
        assert done.returncode == 1
        assert message in done.stderr


@pytest.mark.parametrize("command", [(), ("check",), ("simulate",), ("learn",), ("recommend",), ("explain",)])
def test_help_shows_examples(here, command):
    done = here(*command, "--help")
    assert done.returncode == 0
    assert "ponn " in done.stdout


def test_nothing_is_left_behind_when_writing_fails(here, tmp_path):
    here("simulate", "pendigits", "--out", "x.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_demo_tells_the_whole_story_as_json(here, tmp_path):
    done = here("demo", "here", "--rows", "400", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert list(told) == ["folder", "simulate", "check", "learn", "evaluate", "recommend"]
    assert told["simulate"]["action"] == "regimen"
    assert told["recommend"]["rows"] == 400
    assert "$ ponn check here/log.csv --action regimen --reward survived" in done.stderr
    assert len((tmp_path / "here" / "recommendations.csv").read_text().splitlines()) == 401


def test_json_of_recommend_wants_a_file(here, tmp_path):
    done = here("recommend", "p.ponn", "rows.csv", "--json")
    assert done.returncode == 2
    assert "--json wants --out FILE" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell):
    assert "_PONN_COMPLETE" in run("completion", shell).stdout
    code = "from ponn.cli import main; main()"
    asked = {
        "_PONN_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "ponn stu",
        "COMP_CWORD": "stu" if shell == "fish" else "1",
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked})
    assert "studio" in done.stdout


def test_every_command_has_an_example():
    for name, command in ponn.commands.items():
        assert "Example" in command.help, name
        assert f"ponn {name}" in command.help, name


def test_every_command_can_answer_in_json(here):
    for name, command in ponn.commands.items():
        assert "--json" in [flag for option in command.params for flag in option.opts], name
    told = json.loads(here("completion", "bash", "--json").stdout)
    assert told["source"].strip() == here("completion", "bash").stdout.strip()


LEARN = ("--action", "a", "--reward", "r", "--set", "epochs=2")


@pytest.fixture
def small_log(tmp_path):
    """A log of 200 rows."""
    rows = [f"{x / 7 % 3:.3f},{'uvw'[x % 3]},{int(x % 5 < 2)}" for x in range(200)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["x,a,r", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--out", "log.csv"), "--out log.csv would be written over log.csv, which is needed"),
        (("--out", "./log.csv"), "--out ./log.csv would be written over log.csv"),
        (("--report", "log.csv"), "--report log.csv would be written over log.csv"),
        (("--out", "one", "--report", "one"), "--report one would be written over one"),
        (("--out", "."), "--out . is a directory"),
        (("--out", "no/such/x.ponn"), "there is no directory"),
        (("--report", "no/r.html"), "--report no/r.html: there is no directory"),
        (("--level", "95"), "The level is 95"),
        (("--holdout", "0"), "holdout is 0.0; expected the share of the rows to keep aside"),
        (("--seed", "-1"), "The seed is -1"),
        (("--set", "trees=5", "--set", "trees=6"), "--set gives trees twice, 5 and 6"),
    ],
)
def test_what_could_only_fail_after_learning_is_refused_before(here, small_log, monkeypatch, more, message):
    import ponn.learning.holdout

    monkeypatch.setattr(ponn.learning.holdout, "learn", lambda *_, **__: pytest.fail("it learned"))
    before = small_log.read_bytes()
    found = here("learn", "log.csv", *LEARN, *more)
    assert found.returncode == 1
    assert message in " ".join(found.stderr.split())
    assert small_log.read_bytes() == before
    assert [one.name for one in small_log.parent.iterdir()] == ["log.csv"]


def test_recommendations_and_reports_are_not_written_over_what_they_are_made_from(here, small_log):
    assert here("learn", "log.csv", *LEARN[:-2], "--method", "lr-l1", "--out", "p.ponn").returncode == 0
    for command, over in (("recommend", "log.csv"), ("recommend", "p.ponn"), ("report", "log.csv")):
        before = (small_log.parent / over).read_bytes()
        found = here(command, "p.ponn", "log.csv", "--out", over)
        assert found.returncode == 1
        assert f"would be written over {over}" in found.stderr
        assert (small_log.parent / over).read_bytes() == before
    found = here("recommend", "p.ponn", "log.csv", "--sample", "--seed", "-1")
    assert found.returncode == 1
    assert "The seed is -1" in found.stderr


# Ended from outside --------------------------------------------------------------------------------------


def recommending(tmp_path, *before):
    """`ponn recommend` in a process that has begun to write its answers, and is fed by a pipe that never ends."""
    made_policy().save(tmp_path / "p.ponn")
    write_table(cases(200_000, 1), tmp_path / "rows.csv")
    command = [*before, *PONN, "recommend", "p.ponn", "rows.csv", "--out", "out.csv"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not list(tmp_path.glob(".ponn-*")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_leaves_no_unfinished_file(tmp_path, number):
    process = recommending(tmp_path)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert sorted(one.name for one in tmp_path.iterdir()) == ["p.ponn", "rows.csv"]


def test_a_command_under_nohup_goes_on_when_the_terminal_is_closed(tmp_path):
    process = recommending(tmp_path, "nohup")
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) == 0
    assert (tmp_path / "out.csv").exists()
