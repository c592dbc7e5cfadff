"""The comparison with peers: tuning, pairing, verdicts, going on after a stop, and the worlds it is made in."""

import itertools
import json
import math
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression

import against_peers
import leaderboard
import leaderboard_picture
import peer_runners
import peer_space
import peer_worlds
import ponn
import run_ponn
import trials
from against_peers import Plan, Task
from peer_runners import Runners

WORLD = "weak sparse binary 3"


# Tuning --------------------------------------------------------------------------------------------------


def given_rows() -> dict:
    rng = np.random.default_rng(0)
    n, k = 40, 2
    parts = {"train": np.arange(20), "valid": np.arange(20, 30), "both": np.arange(30), "test": np.arange(30, 40)}
    judge = np.tile([0.2, 0.7], (10, 1))
    return {
        "X": rng.normal(size=(n, 3)),
        "A": rng.integers(k, size=n),
        "R": rng.random(n),
        "p": np.full(n, 0.5),
        "k": np.array(k),
        **parts,
        "judge": judge,
    }


def both_pages(found: dict, **measured: list) -> str:
    """The summary, and the tables behind it."""
    return leaderboard.page(found, **measured) + leaderboard.tables_page(found)


def always(rows, trial, seed):
    """A method that takes the action of its trial; -1 fails, None gives no numbers."""
    seen.append(len(rows.A))
    if trial["action"] == -1:
        raise ValueError("no such action")
    row = np.full(rows.k, np.nan) if trial["action"] is None else np.eye(rows.k)[trial["action"]]
    return lambda new: np.tile(row, (len(new.X), 1))


seen: list[int] = []


def test_the_trial_with_the_best_validation_value_learns_again_from_both_parts():
    seen.clear()
    told, actions = trials.tune(always, given_rows(), [{"action": 0}, {"action": 1}], seed=0)
    assert [one["value"] for one in told["trials"]] == pytest.approx([0.2, 0.7])
    assert told["chosen"] == {"action": 1}
    assert actions.tolist() == [1] * 10
    assert seen == [20, 20, 30]


def test_failed_trials_are_told_and_never_chosen():
    told, actions = trials.tune(always, given_rows(), [{"action": -1}, {"action": None}, {"action": 0}], seed=0)
    assert "no such action" in told["trials"][0]["failed"]
    assert "NaN" in told["trials"][1]["failed"]
    assert actions.tolist() == [0] * 10


def test_where_the_best_trial_fails_on_all_rows_the_next_best_counts():
    def fails_on_all_rows(rows, trial, seed):
        if len(rows.A) == 30 and trial["action"] == 1:
            raise ValueError("too many rows")
        return always(rows, trial, seed)

    told, actions = trials.tune(fails_on_all_rows, given_rows(), [{"action": 0}, {"action": 1}], seed=0)
    assert told["chosen"] == {"action": 0}
    assert "too many rows" in told["failed_on_all_rows"][0]["failed"]
    assert actions.tolist() == [0] * 10


@pytest.mark.parametrize("options", [[{"action": -1}, {"action": None}], [{"action": None}]])
def test_a_method_that_fails_everywhere_falls_back_to_nothing(options):
    told, actions = trials.tune(always, given_rows(), options, seed=0)
    assert actions is None
    assert "failed" in told


def test_when_time_is_up_no_trial_begins_but_the_first(monkeypatch):
    monkeypatch.setattr(trials, "TRIAL_SECONDS", -1)
    told, actions = trials.tune(always, given_rows(), [{"action": 0}, {"action": 1}], seed=0)
    assert len(told["trials"]) == 1
    assert actions.tolist() == [0] * 10


def test_what_trials_share_is_made_once_and_its_time_counts_every_time(monkeypatch):
    monkeypatch.setattr(trials, "known", {})
    monkeypatch.setattr(trials, "spared", 0.0)
    monkeypatch.setattr(trials, "used", lambda started: 7.0)
    rows, made = np.arange(3), []
    for one in (rows, rows.copy(), rows[:2]):
        found = trials.once(lambda one=one: made.append(one) or len(one), one)
        assert found == len(one)
    assert len(made) == 2
    assert trials.spared == 7.0


def test_a_regression_is_fitted_once_on_the_same_rows_in_the_same_way(monkeypatch):
    monkeypatch.setattr(trials, "known", {})
    fits, fit_anew = [], run_ponn.fit_anew
    monkeypatch.setattr(run_ponn, "fit_anew", lambda *rows: fits.append(rows) or fit_anew(*rows))
    rng = np.random.default_rng(0)
    X, y, w = rng.normal(size=(60, 3)), rng.integers(3, size=60), rng.random(60)
    different = [
        ({}, X, y, None),
        ({}, X, y, w),
        ({}, X, (y + 1) % 3, None),
        ({}, X[:, :2], y, None),
        ({"C": 9.0}, X, y, None),
    ]
    for times in (1, 2):
        for how, *rows in different:
            found, expected = run_ponn.fit_once(LogisticRegression(**how), *rows), LogisticRegression(**how).fit(*rows)
            assert np.array_equal(found.coef_, expected.coef_)
            assert np.array_equal(found.predict_proba(rows[0]), expected.predict_proba(rows[0]))
            assert found.get_params() == expected.get_params()
        assert len(fits) == len(different), times


# Runners -------------------------------------------------------------------------------------------------

RUNNER = """
import os, signal, sys, time
sys.path.insert(0, {peers!r})
from trials import answer_jobs
loaded = time.perf_counter()

def do(asked):
    global loaded
    print("a library says something")
    if asked["fit"] == "fails":
        raise ValueError("no such method")
    if asked["fit"] == "crashes":
        print("out of luck", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if asked["fit"] == "hangs":
        time.sleep(60)
    if asked["fit"] == "loses its runner":
        open(asked["out"] + ".pid", "w").write(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    if asked["fit"] == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    loaded, told = None, loaded
    return {{"loaded": told}}

answer_jobs(do)
"""


@pytest.fixture
def run_job(tmp_path, monkeypatch):
    """Have a job done by a runner of its own: why it was not, and what it told."""
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "run_test.py").write_text(RUNNER.format(peers=str(against_peers.HERE / "peers")))
    monkeypatch.setattr(peer_runners, "HERE", tmp_path)

    def run(runners, fit, seconds=30.0, runner="run_test.py"):
        job, out = tmp_path / "job.json", tmp_path / "out.json"
        out.unlink(missing_ok=True)
        job.write_text(json.dumps({"fit": fit, "out": str(out)}))
        failure = runners.failure(peer_space.Contender("", runner, fit), job, seconds)
        return failure, json.loads(out.read_text()) if out.exists() else None

    return run


def test_a_runner_loads_once_and_jobs_leave_nothing_behind(run_job):
    with Runners() as runners:
        answers = [run_job(runners, "works") for _ in range(2)]
        assert len(runners.all) == 1
    assert answers[0][0] is None
    assert isinstance(answers[0][1]["loaded"], float)
    assert answers[0] == answers[1]


def test_a_job_that_fails_crashes_or_hangs_is_told_and_the_next_one_is_done(run_job):
    with Runners() as runners:
        assert run_job(runners, "fails") == (None, {"failed": "ValueError in do: no such method"})
        assert run_job(runners, "crashes") == ("ended with status -11: out of luck", None)
        assert run_job(runners, "hangs", 0.5) == ("not finished after 0.5 s", None)
        assert run_job(runners, "works")[0] is None
        failure, _ = run_job(runners, "works", runner="run_nothing.py")
        assert failure.startswith("ended with status 2 of its runner: ")
        assert "run_nothing.py" in failure


def test_words_of_an_earlier_job_do_not_explain_a_failure(run_job):
    with Runners() as runners:
        assert run_job(runners, "works")[0] is None  # a library says something
        assert run_job(runners, "is killed")[0] == "ended with status -9: a library says something"
        assert run_job(runners, "works")[0] is None
        (runner,) = runners.all
        runner.process.kill()
        runner.process.wait()
        assert run_job(runners, "works")[0] == "ended with status -9 of its runner: nothing was said"


def test_a_job_does_not_outlive_its_runner(run_job, tmp_path):
    with Runners() as runners:
        assert run_job(runners, "loses its runner")[0].startswith("ended with status -9 of its runner")
    job, until = Path("/proc", (tmp_path / "out.json.pid").read_text(), "stat"), time.monotonic() + 10
    while job.exists() and job.read_text().rsplit(")", 1)[1].split()[0] != "Z":  # nobody may be there to bury it
        assert time.monotonic() < until
        time.sleep(0.01)


def test_runners_end_with_their_block(run_job):
    with Runners() as runners:
        run_job(runners, "works")
        (runner,) = runners.all
        assert runner.process.poll() is None
    assert runner.process.poll() is not None


def test_an_interruption_ends_what_runs_and_begins_nothing(run_job):
    answers: list = []

    def interrupted(runners):
        with against_peers.stopping_pool(1, runners) as pool:
            for _ in range(3):
                pool.submit(lambda: answers.append(run_job(runners, "hangs")[0]))
            while not runners.all:
                time.sleep(0.01)
            raise KeyboardInterrupt

    started = time.perf_counter()
    with Runners() as runners, pytest.raises(KeyboardInterrupt):
        interrupted(runners)
    assert time.perf_counter() - started < 20
    assert len(answers) == 1
    assert answers[0].startswith("ended with status -9 of its runner")


# Pairing and verdicts ------------------------------------------------------------------------------------


def line(method: str, seed: int, value: float | None, world: str = WORLD) -> dict:
    told = {"world": world, "method": method, "seed": seed, "space": "x", "load": 0.0}
    if value is None:
        tried = {"trials": [{"failed": "NaN"}, {"value": 0.5}], "failed_on_all_rows": [{"failed": "NaN"}]}
        return told | {"failed": "NaN"} | tried
    return told | {"value": value, "accuracy": value, "seconds": 1.0, "cpu_seconds": 1.0, "peak_bytes": 2**20}


@pytest.mark.parametrize(
    ("gain", "width", "expected"),
    [
        (0.0, 0.0, True),
        (2.0, 0.1, True),
        (-0.4, 0.5, True),
        (-0.4, 0.3, False),
        (-0.6, 5.0, False),
        (-0.5, 0.5, True),
        (1.0, None, None),
    ],
)
def test_best_tied_or_beaten(gain, width, expected):
    assert leaderboard.at_least_tied(gain, width) is expected


def test_differences_are_paired_over_the_seeds_that_both_finished():
    own = {seed: line("ponn-dr", seed, value) for seed, value in {0: 0.9, 1: 0.8, 2: 0.7}.items()}
    other = {seed: line("poem", seed, value) for seed, value in {1: 0.7, 2: 0.65, 3: 0.1, 0: None}.items()}
    found = leaderboard.gained(own, other, "value")
    assert found["seeds"] == 2
    assert found["mean"] == pytest.approx((10 + 5) / 2)
    # two differences d1, d2: half-width t(1) * |d1 - d2| / 2
    assert found["half_width"] == pytest.approx(12.706 * 2.5, rel=1e-3)


def world_lines(world: str, ours: float, theirs: float, seeds: int = 10) -> list[dict]:
    """Both with the same wobble over seeds, so that the difference is clear."""
    wobble = [0.01 * math.sin(seed) for seed in range(seeds)]
    values = {"ponn-dr": ours, "poem": theirs, "current practice": 0.3}
    return [line(name, seed, value + wobble[seed], world) for name, value in values.items() for seed in range(seeds)]


def test_bars_count_worlds_where_somebody_is_clearly_better():
    first, second = peer_worlds.SIMULATED[:2]
    lines = [*world_lines(first, 0.8, 0.7), *world_lines(second, 0.7, 0.8)]
    found = leaderboard.summary(lines, {})
    assert found["bars"]["best or tied in value"] == {"worlds": 1, "of": 2}
    assert found["worlds"][second]["beaten in value by"] == ["poem"]
    assert found["bars"]["worst"] == {"in": [], "of": 2}
    assert found["bars"]["fewest seeds"] == 0  # of the worlds that were not run
    assert "Every method was run in 0 of 15 worlds" in leaderboard.page(found)


def test_being_below_all_is_worst_and_below_practice_is_told():
    first = peer_worlds.SIMULATED[0]
    found = leaderboard.summary(world_lines(first, 0.2, 0.7), {})
    assert found["bars"]["worst"] == {"in": [first], "of": 1}
    assert found["bars"]["below current practice"] == {"in": [first], "of": 1}
    assert f"Never worst: **missed** in {first}" in leaderboard.page(found)


@pytest.mark.parametrize(
    ("value", "seeds", "told"),
    [
        (0.99, 25, "over 25 seeds; wanted 98.0: holds"),
        (0.97, 25, "over 25 seeds; wanted 98.0: **missed**"),
        (0.99, 3, "over 3 seeds, 25 wanted; wanted 98.0: holds"),
    ],
)
def test_accuracy_on_the_papers_tables_is_held_against_its_bar(value, seeds, told):
    page = both_pages(leaderboard.summary(world_lines("pendigits paper", value, 0.5, seeds), {}))
    assert told in page
    assert page.count("Accuracy of PONN-DR on") == 1
    assert "Drawn from" not in page
    assert "actions drawn" not in page


def test_seeds_that_ponn_dr_was_designed_with_are_left_out_of_a_second_mean():
    lines = [
        line("ponn-dr", seed, 0.5 if seed in leaderboard.LOOKED_AT else 0.99, "pendigits paper") for seed in range(6)
    ]
    page = leaderboard.page(leaderboard.summary(lines, {}))
    assert "On seeds that it was not designed with: 99.00 ± 0.00." in page


def test_what_the_stochastic_policy_gets_is_told_beside_the_greedy_one():
    lines = [
        one | ({"details": {"stochastic": {"value": 0.85, "accuracy": 0.9}}} if one["method"] == "ponn-dr" else {})
        for one in world_lines("pendigits paper", 0.99, 0.5, 3)
    ]
    page = both_pages(leaderboard.summary(lines, {}))
    assert "Drawn from its stochastic policy: 90.00 ± 0.00." in page
    assert "| ponn-dr, actions drawn | 3 | 85.00 ± 0.00 | 90.00 ± 0.00 |  |" in page


@pytest.mark.parametrize(("first", "told"), [(4, ", time for 4 of 6 trials"), (6, "")])
def test_trials_that_there_was_no_time_for_are_told(first, told):
    lines = {seed: line("poem", seed, 0.5) | {"trials": [{"value": 0.5}] * many} for seed, many in ((0, first), (1, 6))}
    assert leaderboard.method_cells("poem", leaderboard.told_of({}, lines))[1] == "2" + told


@pytest.mark.parametrize(("error", "verdict"), [(0.004, "better than one action"), (0.006, "nothing to gain")])
def test_whether_a_trial_has_something_to_gain_is_judged_by_the_error_of_the_paired_gain(error, verdict):
    """A gain of one point that is the same in every split, each split with an own error of 0.4 or 0.6 points."""
    ours = [line("ponn-dr", seed, 0.19, "hillstrom") | {"error": 0.1, "error_of_gain": error} for seed in range(3)]
    fixed = [line("best fixed action", seed, 0.18, "hillstrom") for seed in range(3)]
    assert f"Verdict: {verdict}" in both_pages(leaderboard.summary([*ours, *fixed], {}))


@pytest.mark.parametrize(("seconds", "told"), [(47.2, "pendigits paper 47; wanted 60: holds"), (60.4, "**missed**")])
def test_seconds_by_the_clock_are_held_against_their_bar(seconds, told):
    found = leaderboard.summary(world_lines("pendigits paper", 0.99, 0.5), {})
    logs = [{"world": "pendigits paper", "seconds": one} for one in (30.0, seconds)]  # the slowest counts
    assert told in leaderboard.page(found, logs=logs)
    assert "by the clock" not in leaderboard.page(found)


def test_the_overview_says_which_means_rest_on_few_seeds():
    lines = [*world_lines(WORLD, 0.8, 0.79), line("ponn", 0, 0.7), line("ponn", 1, 0.7)]
    page = both_pages(leaderboard.summary(lines, {}))
    assert "\n| ponn | 70.00 (2) |" in page
    assert " (10) |" not in page


def test_one_seed_decides_nothing():
    found = leaderboard.summary(world_lines(WORLD, 0.2, 0.7, seeds=1), {})
    assert found["bars"]["best or tied in value"] == {"worlds": 0, "of": 0}
    assert "undecided" in both_pages(found)


def test_nothing_run_holds_nothing():
    page = leaderboard.page(leaderboard.summary([], {}))
    assert page.count("no world decided yet") == 4
    assert "holds" not in page.split("## What holds")[1]


def test_page_shows_failures_gaps_and_absent_peers():
    lines = [*world_lines(WORLD, 0.8, 0.7, 2), line("ponn-b", 0, None), line("ponn-b", 1, 0.5)]
    lines += world_lines(peer_worlds.SIMULATED[0], 0.8, 0.7, 2)
    page = both_pages(leaderboard.summary(lines, {"obp": "no network"}))
    assert "failed in 1 of 2, 2 of 3 trials failed" in page
    assert "not run" in page
    assert "**NOT COMPARED**: obp" in page
    assert "**Not finished**" in page


def test_a_peer_with_results_is_compared_whether_its_environment_is_there_now_or_not():
    lines = [*world_lines(WORLD, 0.8, 0.7, 2), line("obp NNPolicyLearner ipw", 0, 0.5)]
    page = leaderboard.page(leaderboard.summary(lines, {"obp": "not set up", "vw": "not set up"}))
    assert "**NOT COMPARED**: vw" in page
    assert "**NOT COMPARED**: obp" not in page


def told_cells(lines: list[dict]) -> dict[str, tuple[str, bool]]:
    """By what a cell of the picture says on hover: the number it shows, and whether it has a frame."""
    worlds = leaderboard.summary(lines, {})["worlds"]
    parts = list(ElementTree.fromstring(leaderboard_picture.at_a_glance(worlds)))
    return {
        one[0].text: (number.text, "stroke" in one.attrib)
        for one, number in itertools.pairwise(parts)
        if one.tag.endswith("rect")
    }


def test_the_picture_shows_gains_few_seeds_and_noise():
    noisy = [line("banditnet", seed, 0.8 + 0.03 * (-1) ** seed) for seed in range(10)]
    lines = [*world_lines(WORLD, 0.8, 0.7), *noisy, line("ponn", 0, 0.6), line("ponn", 1, 0.6), line("ponn-b", 0, None)]
    found = told_cells(lines)
    assert found[f"{WORLD}, poem: +10.00 ± 0.00, 10 seeds"] == ("10.0", False)
    assert next(cell for told, cell in found.items() if "banditnet" in told)[1]
    assert next(cell for told, cell in found.items() if ", ponn: " in told)[0] == "(20.4)"
    assert len(found) == 4  # nothing of PONN-DR itself, nor of who always failed
    assert not told_cells([])


def test_the_picture_has_the_nearest_first_and_what_needs_no_learning_last():
    first, second, *_ = peer_worlds.SIMULATED
    lines = [*world_lines(first, 0.8, 0.7), *world_lines(second, 0.8, 0.7), line("ponn", 0, 0.75, first)]
    lines += [line("best fixed action", seed, 0.79, first) for seed in range(3)]
    worlds = leaderboard.summary(lines, {})["worlds"]
    expected = ["ponn", "poem", "best fixed action", "current practice"]
    assert leaderboard_picture.nearest_first(worlds) == expected


def test_the_page_shows_a_picture_that_is_beside_it(plan):
    against_peers.append(plan.folder, line("poem", 0, 0.7))
    against_peers.write_tables(plan, "now")
    page = (plan.folder / "leaderboard.md").read_text()
    assert f"]({leaderboard.PICTURE})" in page
    assert (plan.folder / leaderboard.PICTURE).read_text().startswith("<svg")
    assert f"]({leaderboard.TABLES})" in page
    assert "](leaderboard.md)" in (plan.folder / leaderboard.TABLES).read_text()


def test_gains_have_the_p_value_of_students_paired_test():
    from scipy.stats import ttest_rel

    ours, theirs = [0.8, 0.82, 0.79, 0.85], [0.79, 0.82, 0.76, 0.84]
    lines = [line(name, seed, one) for name, of in (("ponn-dr", ours), ("poem", theirs)) for seed, one in enumerate(of)]
    found = leaderboard.summary(lines, {})
    gain = found["worlds"][WORLD]["methods"]["poem"]["gain in value"]
    assert gain["p"] == pytest.approx(ttest_rel(ours, theirs).pvalue)
    assert f"(p = {gain['p']:.3f})" in both_pages(found)
    assert leaderboard.tested({"p": 0.0002}) == " (p < 0.001)"
    assert (leaderboard.paired_p([1.0]), leaderboard.paired_p([0.0, 0.0]), leaderboard.paired_p([1.0, 1.0])) == (
        None,
        1,
        0,
    )


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ((3.1, 9.0), True),
        ((3.1,), False),
        ((10.1,), True),
        ((3.1, 2.9), False),
        ((2.1, 2.9, 2.1), True),
        ((2.1, 1.9, 20.0, 20.0), False),
        ((1.1, 1.1, 9.0, 1.1, 1.1), True),
        ((1.1, 0.9, 20.0, 20.0, 20.0, 20.0), False),
        ((6.0, 7.0, -50.0), True),  # the first seeds decide: who was given up stays so
    ],
)
def test_who_is_far_behind_on_each_of_the_first_seeds_is_given_up(behind, expected):
    own = {seed: line("ponn-dr", seed, 0.9) for seed in range(6)}
    other = {seed: line("poem", seed, 0.9 - gap / 100) for seed, gap in enumerate(behind)}
    assert leaderboard.given_up(own, other) is expected
    found = leaderboard.told_of(own, other)
    assert found["given_up"] is (expected and len(behind) < 6)
    assert (", given up" in leaderboard.method_cells("poem", found)[1]) is expected


def test_where_logs_differ_much_more_is_asked_for_before_a_method_is_given_up():
    """Three times the usual spread: nine points on each of two seeds instead of three."""
    wobble = 3 * leaderboard.USUAL_SPREAD / math.sqrt(2)  # of two values that far on both sides of their mean
    own = {0: line("ponn-dr", 0, 0.9 + wobble / 100), 1: line("ponn-dr", 1, 0.9 - wobble / 100)}
    assert leaderboard.unrest(own) == pytest.approx(3)
    for behind, expected in ((8.9, False), (9.1, True)):
        other = {seed: line("poem", seed, one["value"] - behind / 100) for seed, one in own.items()}
        assert leaderboard.given_up(own, other) is expected
    assert leaderboard.unrest({0: own[0]}) == 1


def test_a_world_is_decided_also_where_somebody_was_given_up_after_one_seed():
    lines = [*world_lines(WORLD, 0.8, 0.79), line("ponn-b", 0, 0.5)]
    assert leaderboard.summary(lines, {})["worlds"][WORLD]["decided in value"]
    lines = [*world_lines(WORLD, 0.8, 0.79), line("ponn-b", 0, 0.75)]
    assert not leaderboard.summary(lines, {})["worlds"][WORLD]["decided in value"]


def test_the_page_says_how_many_methods_rest_on_few_seeds():
    lines = world_lines(WORLD, 0.8, 0.79)
    assert "were given up:" not in leaderboard.page(leaderboard.summary(lines, {}))
    text = leaderboard.page(leaderboard.summary([*lines, line("ponn-b", 0, 0.5), line("lr-l1", 0, 0.5)], {}))
    assert "- Every method has 10 seeds in 0 of 15 worlds. In 1 other 2 methods were given up:" in text
    lines += [line("ponn-b", 0, 0.5), *world_lines(peer_worlds.SIMULATED[0], 0.8, 0.79)]
    lines += [line(name, 0, 0.5, peer_worlds.SIMULATED[0]) for name in ("ponn", "lr-l1", "poem-b")]
    assert "In 2 others 1 to 3 methods were given up:" in leaderboard.page(leaderboard.summary(lines, {}))


def test_the_page_says_in_how_many_worlds_every_method_has_enough_seeds():
    names = (*peer_space.METHODS, *peer_space.STANDING)
    lines = [line(name, seed, 0.8) for name in names for seed in range(leaderboard.FEWEST)]
    for told, some in (("1", lines), ("0", lines[:-1]), ("0", lines[leaderboard.FEWEST :])):
        page = leaderboard.page(leaderboard.summary(some, {}))
        assert f"- Every method has 10 seeds in {told} of 15 worlds." in page


def test_a_world_is_not_decided_before_every_method_that_was_not_given_up_has_enough_seeds():
    few = [line("ponn-b", seed, 0.795) for seed in range(leaderboard.FEWEST - 1)]
    lines = [*world_lines(WORLD, 0.8, 0.79, leaderboard.FEWEST), *few]
    assert not leaderboard.summary(lines, {})["worlds"][WORLD]["decided in value"]
    for last in (0.795, None):  # a run that failed was run
        more = line("ponn-b", leaderboard.FEWEST - 1, last)
        assert leaderboard.summary([*lines, more], {})["worlds"][WORLD]["decided in value"]


def test_a_world_is_not_decided_before_ponn_dr_itself_has_enough_seeds():
    lines = [one for one in world_lines(WORLD, 0.8, 0.79) if one["method"] != "ponn-dr" or one["seed"] < 9]
    assert not leaderboard.summary(lines, {})["worlds"][WORLD]["decided in value"]


def test_few_seeds_do_not_say_that_it_is_never_worst():
    found = leaderboard.summary(world_lines(WORLD, 0.8, 0.79, leaderboard.FEWEST - 1), {})["bars"]
    assert found["worst"] == found["below current practice"] == {"in": [], "of": 0}


def test_who_is_given_up_by_value_may_still_win_by_accuracy():
    """A method may take the best action more often and lose more where it does not."""
    ours = [line("ponn-dr", seed, 0.8) | {"accuracy": 0.5} for seed in range(leaderboard.FEWEST)]
    for seeds, beaten, decided in ((2, ["poem"], True), (1, [], False)):
        theirs = [line("poem", seed, 0.6) | {"accuracy": 0.9} for seed in range(seeds)]
        found = leaderboard.summary([*ours, *theirs], {})["worlds"][WORLD]
        assert (found["beaten in accuracy by"], found["decided in accuracy"]) == (beaten, decided)
        assert (found["beaten in value by"], found["decided in value"]) == ([], True)


def test_methods_that_were_given_up_are_left_out_on_later_seeds(plan):
    values = {"ponn-dr": 0.9, "poem": 0.84, "lr-l1": 0.88, "current practice": 0.1}
    for method, seed in itertools.product(values, (0, 1)):
        told = {"space": against_peers.space(Task(WORLD, seed, method), True)}
        against_peers.append(plan.folder, line(method, seed, values[method]) | told)
    for seed, expected in ((1, list(values)), (2, ["ponn-dr", "lr-l1", "current practice"])):
        wanted, left_out = against_peers.still_wanted(plan, [Task(WORLD, seed, method) for method in values])
        assert [task.method for task in wanted] == expected
        assert left_out == len(values) - len(expected)


@pytest.mark.parametrize("everyone", [False, True])
def test_who_was_given_up_is_run_where_everyone_is_asked_for(plan, monkeypatch, everyone):
    for method, value in (("ponn-dr", 0.9), ("poem", 0.1)):
        told = {"space": against_peers.space(Task(WORLD, 0, method), True)}
        against_peers.append(plan.folder, line(method, 0, value) | told)
    monkeypatch.setattr(against_peers, "run_elsewhere", lambda *asked: {"failed": "by order"})
    task = Task(WORLD, 1, "poem")
    against_peers.run_all(plan, [task], workers=1, everyone=everyone)
    assert (task in against_peers.kept(plan.folder, [WORLD], quick=True)) is everyone


def test_who_has_as_many_seeds_as_are_asked_for_was_not_given_up():
    """PONN-DR has more on the paper's tables."""
    own = {seed: line("ponn-dr", seed, 0.9) for seed in range(25)}
    behind = {seed: line("poem", seed, 0.2) for seed in range(leaderboard.FEWEST)}
    assert not leaderboard.told_of(own, behind)["given_up"]
    assert leaderboard.told_of(own, {seed: behind[seed] for seed in range(9)})["given_up"]


def test_a_method_comes_back_where_later_seeds_show_that_logs_differ_much(plan):
    """PONN-DR is steady on the first seeds and not on the third, which is there before the method's own."""
    for method, *values in (("ponn-dr", 0.9, 0.9, 0.7), ("poem", 0.84, 0.84)):
        for seed, value in enumerate(values):
            told = {"space": against_peers.space(Task(WORLD, seed, method), True)}
            against_peers.append(plan.folder, line(method, seed, value) | told)
    task = Task(WORLD, 2, "poem")
    assert against_peers.still_wanted(plan, [task]) == ([task], 0)


# Going on ------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path, None, quick=True)


def test_finished_runs_are_not_done_again_unless_the_search_space_changed(plan, monkeypatch):
    tasks = [Task(WORLD, seed, method) for seed in (0, 1) for method in ("poem", "lr-l1")]
    for task in tasks[:2]:
        against_peers.append(plan.folder, line(task.method, 0, 0.5) | {"space": against_peers.space(task, True)})
    names = ("poem", "lr-l1")
    assert against_peers.missing(plan, [WORLD], names, range(2)) == tasks[2:]
    monkeypatch.setitem(peer_space.METHODS, "poem", peer_space.ours("poem", {"clip": 1.0}))
    assert against_peers.missing(plan, [WORLD], names, range(2)) == [tasks[0], *tasks[2:]]


@pytest.mark.parametrize(("many", "seconds", "again"), [(5, 40.0, True), (5, 400.0, False), (6, 40.0, False)])
def test_runs_that_had_less_time_for_trials_than_there_is_now_are_done_again(tmp_path, many, seconds, again):
    plan, task = Plan(tmp_path, None, quick=False), Task(WORLD, 0, "poem")
    told = {"space": against_peers.space(task, False), "trials": [{"value": 0.5}] * many, "cpu_seconds": seconds}
    against_peers.append(plan.folder, line("poem", 0, 0.5) | told)
    assert (against_peers.missing(plan, [WORLD], ["poem"], [0]) == [task]) is again
    assert task in against_peers.kept(plan.folder, [WORLD], quick=False)


def test_a_quick_look_is_content_with_its_few_trials(plan):
    task = Task(WORLD, 0, "poem")
    told = {"space": against_peers.space(task, True), "trials": [{"value": 0.5}] * 2}
    against_peers.append(plan.folder, line("poem", 0, 0.5) | told)
    assert against_peers.missing(plan, [WORLD], ["poem"], [0]) == []


def test_full_and_quick_runs_are_different():
    task = Task(WORLD, 0, "poem")
    assert against_peers.space(task, True) != against_peers.space(task, False)


def test_all_worlds_of_a_seed_come_before_the_next_seed(plan):
    worlds = peer_worlds.SIMULATED[:2]
    seeds = [task.seed for task in against_peers.missing(plan, worlds, ["poem", "lr-l1"], range(2))]
    assert seeds == sorted(seeds)


def test_runs_are_judged_by_the_truth_and_kept(plan, monkeypatch):
    truth = peer_worlds.make_world(WORLD, 1000, quick=True).part("test")

    def best_actions(task, *rest):
        return {"failed": "by order"} if task.method == "poem" else {"actions": truth.best.tolist(), "seconds": 1.0}

    monkeypatch.setattr(against_peers, "run_elsewhere", best_actions)
    tasks = [Task(WORLD, 1000, method) for method in ("poem", "lr-l1", *peer_space.STANDING)]
    against_peers.run_all(plan, tasks, workers=1, everyone=False)
    found = against_peers.kept(plan.folder, [WORLD], quick=True)
    assert found[tasks[0]]["failed"] == "by order"
    assert found[tasks[1]]["accuracy"] == 1.0
    assert found[tasks[1]]["value"] == pytest.approx(truth.expected.max(axis=1).mean())
    practice, fixed = (found[task] for task in tasks[2:])
    assert practice["value"] == pytest.approx((truth.propensities * truth.expected).sum(axis=1).mean())
    assert fixed["value"] == pytest.approx(truth.expected[:, fixed["chosen"]].mean())
    assert "actions" not in found[tasks[1]]


def test_validation_scores_come_from_models_that_saw_training_rows_only(plan):
    """Another reward in a validation row changes its own score and no other row's."""
    world = peer_worlds.make_world(WORLD, 1000, quick=True)
    rows = against_peers.shared_rows(world, 1000)
    changed = rows | {"R": rows["R"].copy()}
    changed["R"][world.valid[0]] = 1 - changed["R"][world.valid[0]]
    first, again = (against_peers.judging_scores(one, world.train, world.valid, 1000) for one in (rows, changed))
    assert not np.array_equal(first[0], again[0])
    assert np.array_equal(first[1:], again[1:])


# Worlds and search space ---------------------------------------------------------------------------------


def test_every_method_has_six_trials_but_ours_which_tunes_itself():
    for name, one in peer_space.METHODS.items():
        assert len(one.trials) == (1 if name == "ponn-dr" else 6), name
        assert len({json.dumps(trial, sort_keys=True) for trial in one.trials}) == len(one.trials), name


def test_every_method_of_ponn_is_compared():
    """But for logging, which is current practice as it is estimated; the truth is compared."""
    assert {*ponn.METHODS} - {*peer_space.METHODS} == {"logging"}


def test_parametric_worlds_are_balanced():
    levels = [
        tuple(world[name] for name in ("bias", "relevant", "reward", "shape"))
        for world in peer_worlds.PARAMETRIC.values()
    ]
    for columns in itertools.combinations(range(4), 3):
        assert len({tuple(row[c] for c in columns) for row in levels}) == len(levels) == 8


def customers(n: int) -> pa.Table:
    rng = np.random.default_rng(0)
    arms = np.array(["Mens E-Mail", "No E-Mail", "Womens E-Mail"])
    return pa.table(
        {
            "recency": rng.integers(1, 13, n),
            "history_segment": rng.choice(["low", "high"], n),
            "history": rng.random(n) * 500,
            "mens": rng.integers(0, 2, n),
            "womens": rng.integers(0, 2, n),
            "zip_code": rng.choice(["Rural", "Urban"], n),
            "newbie": rng.integers(0, 2, n),
            "channel": rng.choice(["Web", "Phone"], n),
            "segment": arms[rng.integers(0, 3, n)],
            "visit": rng.integers(0, 2, n),
        }
    )


def test_rejection_leaves_the_stated_propensities_and_the_other_half_untouched():
    """P(A = a | x) = pi(a | x) in the biased half: each arm's count is within 4 standard errors of the sum of pi.

    False-fail rate below 1e-3 over seeds; the seed is fixed. Keeping all rows would miss by 20 standard errors.
    """
    world = peer_worlds.hillstrom(customers(20_000), seed=0)
    biased = np.concatenate([world.train, world.valid])
    p0, A = world.propensities[biased], world.log.A[biased]
    extreme = p0[:, 0] > 0.5
    for rows in (extreme, ~extreme):
        expected, spread = p0[rows].sum(axis=0), np.sqrt((p0[rows] * (1 - p0[rows])).sum(axis=0))
        assert (np.abs(np.bincount(A[rows], minlength=3) - expected) < 4 * spread).all()
    assert len(world.test) == 10_000
    assert world.log.R == pytest.approx(world.rewards[np.arange(len(world.log)), world.log.A])
    assert (world.propensities[world.test] == 1 / 3).all()
    assert world.log.p0 == pytest.approx(world.propensities[np.arange(len(world.log)), world.log.A])


def test_value_by_a_trial_is_ips():
    world = peer_worlds.hillstrom(customers(3_000), seed=0)
    test = world.part("test")
    rows = against_peers.shared_rows(world, 0)
    actions = np.arange(len(test.log)) % 3
    found = against_peers.judged(world, rows, actions)
    fixed = against_peers.standing("best fixed action", world, rows)
    worth, simple = (3 * (test.log.A == one) * test.log.R for one in (actions, fixed["chosen"]))
    assert found["value"] == pytest.approx(worth.mean())
    assert found["error"] == pytest.approx(worth.std() / math.sqrt(len(worth)))
    assert found["error_of_gain"] == pytest.approx((worth - simple).std() / math.sqrt(len(worth)))
    assert found["accuracy"] is None
    assert fixed["value"] == pytest.approx(simple.mean())
    assert fixed["error_of_gain"] == 0


def test_dose_classes_and_rewards():
    doses = [20.99, 21.0, 49.0, 49.01, None] * 30
    columns = {name: ["A"] * len(doses) for name in peer_worlds.WARFARIN_FEATURES}
    columns |= {"Age": ["40 - 49", "90+", "50 - 59"] * 50, "Weight (kg)": np.linspace(40, 120, len(doses))}
    world = peer_worlds.warfarin(pa.table({**columns, peer_worlds.DOSE: doses}), seed=0)
    assert world.best.tolist() == [0, 1, 1, 2] * 30
    assert (world.rewards.sum(axis=1) == 1).all()
    assert set(world.log.X.column("age").to_pylist()) == {40.0, 90.0, 50.0}
    assert world.propensities.min() >= peer_worlds.UNIFORM_SHARE / 3
    assert world.log.actions == peer_worlds.DOSE_CLASSES
    assert world.log.R == pytest.approx(world.rewards[np.arange(len(world.log)), world.log.A])


def test_real_tables_that_are_absent_are_told(tmp_path, capsys):
    names = against_peers.chosen_worlds("hillstrom,breast-cancer", tmp_path)
    assert names == ["breast-cancer"]
    assert "SKIPPED: hillstrom" in capsys.readouterr().err
