"""The studio's folder: nothing escapes it, nothing in it is lost."""

import asyncio
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pyarrow as pa
import pytest

from commands import PONN
from ponn import simulate
from ponn.errors import PonnError
from ponn.serving.studio import project as projects
from ponn.serving.studio.guesses import column_lines, guess_roles
from ponn.serving.studio.project import (
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    WAITING,
    BusyError,
    DiskError,
    Job,
    NotThereError,
    Order,
    Project,
    Reading,
    TooLargeError,
    failure_in,
    learn_arguments,
    progress_in,
    safe_name,
)
from ponn.tables.files import write_table

QUICK = ("hidden=(4,)", "epochs=2")
ORDER = Order("log.csv", Reading("treatment", "success"), method="ponn-b", settings=QUICK)


async def pieces(*some: bytes):
    for one in some:
        yield one


def add(project, name, *some, largest=10**6):
    return asyncio.run(project.add(name, pieces(*some), largest))


@pytest.fixture
def project(tmp_path):
    found = Project(tmp_path / "studio")
    write_table(simulate.world("kidney-stones", seed=0).log.table, found.files_folder / "log.csv")
    yield found
    found.close()


def wait_until(project, id, states, seconds=120):
    for _ in range(int(seconds / 0.05)):
        job = project.job(id)
        if job.state in states:
            return job
        time.sleep(0.05)
    raise AssertionError(f"still {job}")


# Files


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("log.csv", "log.csv"),
        ("../../etc/log.csv", "log.csv"),
        ("/etc/passwd.csv", "passwd.csv"),
        ("C:\\temp\\log.parquet", "log.parquet"),
        ("a\0b.csv", "a_b.csv"),
        ("-rf.csv", "rf.csv"),
        ("..csv.csv", "csv.csv"),
        ("Besuche März.CSV.GZ", "Besuche März.csv.gz"),
        ("<img>.csv", "_img_.csv"),
        ("x" * 500 + ".csv", "x" * 120 + ".csv"),
    ],
)
def test_names_become_harmless(name, kept):
    assert safe_name(name) == kept


@pytest.mark.parametrize("name", ["", ".", "..", ".csv", "log", "log.exe", "a/..", "log.csv/", "\0", ".lock"])
def test_names_that_cannot_be_used_are_refused(name):
    with pytest.raises(PonnError, match="cannot be used"):
        safe_name(name)


def test_an_upload_stays_in_the_folder_and_replaces_nothing(project, tmp_path):
    outside = tmp_path / "secret.csv"
    outside.write_text("secret")
    (project.files_folder / "link.csv").symlink_to(outside)
    names = [add(project, name, b"a,b\n", b"1,2\n").name for name in ("log.csv", "log.csv", "link.csv", "../log.csv")]
    assert names == ["log-2.csv", "log-3.csv", "link-2.csv", "log-4.csv"]
    assert outside.read_text() == "secret"
    assert (project.files_folder / "log-2.csv").read_text() == "a,b\n1,2\n"
    assert "link.csv" not in [path.name for path in project.files()]  # a link is not a file of ours
    for name in ("link.csv", "../jobs", "nothing.csv", "", ".lock"):
        with pytest.raises(NotThereError):
            project.file(name)


def test_an_upload_beyond_the_limit_leaves_nothing_behind(project):
    with pytest.raises(TooLargeError, match="larger than 0 MB"):
        add(project, "big.csv", b"x" * 50, b"x" * 60, largest=100)
    with pytest.raises(PonnError, match="is empty"):
        add(project, "empty.csv")
    assert sorted(os.listdir(project.files_folder)) == ["log.csv"]


def test_half_an_upload_is_cleared_away_after_a_crash(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / ".part-0123").write_text("half")
    Project(tmp_path).close()
    assert os.listdir(tmp_path / "files") == []


def test_one_studio_at_a_time(project):
    with pytest.raises(PonnError, match="open in another studio"):
        Project(project.files_folder.parent)


# Jobs


def test_a_job_runs_and_is_remembered(project):
    job = project.start(ORDER)
    assert job.state == RUNNING
    job = wait_until(project, job.id, (DONE, FAILED))
    assert job.state == DONE, job.message
    assert job.result["rows"] == 700
    assert (project.folder(job) / "policy.ponn").is_file()
    with pytest.raises(BusyError):
        project.restart(job.id)
    with pytest.raises(BusyError):
        project.cancel(job.id)
    project.close()
    again = Project(project.files_folder.parent)
    assert again.jobs() == [job]
    again.close()


SLOW = Order("log.csv", Reading("treatment", "success"), method="ponn-b", settings=("epochs=100000", "patience=100000"))


def test_what_is_asked_for_meanwhile_waits_for_its_turn(project):
    first, second, third = (project.start(one) for one in (SLOW, SLOW, ORDER))
    assert [one.state for one in (first, second, third)] == [RUNNING, WAITING, WAITING]
    assert [project.ahead(one) for one in (first, second, third)] == [0, 1, 2]
    assert third.as_json()["seconds"] == 0
    left = project.cancel(second.id)
    assert (left.state, left.message) == (INTERRUPTED, "Stopped before it began.")
    assert project.ahead(third) == 1
    assert project.restart(second.id).state == WAITING  # and now it is behind the third
    assert project.ahead(project.job(second.id)) == 2
    project.cancel(first.id)
    assert wait_until(project, third.id, (DONE, FAILED)).state == DONE
    assert wait_until(project, second.id, (RUNNING,)).state == RUNNING


def test_what_waits_goes_on_after_a_restart_and_what_ran_is_interrupted(project):
    first, second = project.start(SLOW), project.start(ORDER)
    project.close()
    assert [project.job(one.id).state for one in (first, second)] == [INTERRUPTED, WAITING]
    again = Project(project.files_folder.parent)
    assert again.job(first.id).state == INTERRUPTED
    assert wait_until(again, second.id, (DONE, FAILED)).state == DONE
    again.close()


def test_a_job_whose_file_is_gone_when_its_turn_comes_fails_and_the_next_begins(project):
    (project.files_folder / "other.csv").write_bytes((project.files_folder / "log.csv").read_bytes())
    first, second, third = (project.start(one) for one in (SLOW, replace(SLOW, file="other.csv"), SLOW))
    (project.files_folder / "other.csv").unlink()
    project.cancel(first.id)
    assert wait_until(project, third.id, (RUNNING,)).state == RUNNING
    assert project.job(second.id).state == FAILED
    assert "no file 'other.csv'" in project.job(second.id).message


def test_a_mistake_is_told_in_words_and_can_be_mended(project):
    job = project.start(Order("log.csv", Reading("treatment", "sucess")))
    job = wait_until(project, job.id, (DONE, FAILED))
    assert job.state == FAILED
    assert "has no column 'sucess'" in job.message
    assert "Did you mean 'success'" in job.message
    with pytest.raises(NotThereError):
        project.start(Order("../log.csv", Reading("treatment", "success")))


def test_cancel_ends_the_process_and_restart_begins_again(project):
    job = project.start(SLOW)
    process = project.running[job.id]
    stopped = project.cancel(job.id)
    assert (stopped.state, stopped.message) == (INTERRUPTED, "Stopped on request.")
    assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)  # before it was set up, and after
    assert project.restart(job.id).state == RUNNING
    assert project.cancel(job.id).state == INTERRUPTED


def test_a_killed_studio_takes_its_job_with_it_and_shows_it_as_interrupted(project):
    folder = project.files_folder.parent
    project.close()
    code = (
        "import sys, time; from pathlib import Path; from ponn.serving.studio.project import *\n"
        "project = Project(Path(sys.argv[1]))\n"
        "settings = ('epochs=100000', 'patience=100000')\n"
        "order = Order('log.csv', Reading('treatment', 'success'), method='ponn-b', settings=settings)\n"
        "job = project.start(order)\n"
        "while project.job(job.id).total == 0: time.sleep(0.05)\n"
        "print(project.running[job.id].pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True) as studio:
        learner = int(studio.stdout.readline())
        os.killpg(learner, 0)  # it lives
        studio.kill()
    for _ in range(200):
        try:
            os.killpg(learner, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("learning went on without its studio")
    again = Project(folder)
    (job,) = again.jobs()
    assert job.state == INTERRUPTED
    assert "closed while" in job.message
    again.close()


def test_no_value_passes_for_an_option(tmp_path):
    order = Order("log.csv", Reading("--out", "-r", ignore=("--json",)), method="--tune", settings=("--seed=1",))
    words = learn_arguments(tmp_path / "log.csv", order, tmp_path)
    assert {"--action=--out", "--reward=-r", "--ignore=--json", "--method=--tune", "--set=--seed=1"} <= set(words)
    with pytest.raises(PonnError, match="NUL"):
        learn_arguments(tmp_path / "log.csv", Order("log.csv", Reading("a\0", "b")), tmp_path)


def test_a_damaged_job_is_shown_and_hides_no_other(project):
    (project.jobs_folder / "bad").mkdir()
    (project.jobs_folder / "bad" / "job.json").write_text("{")
    (job,) = project.jobs()
    assert job.state == FAILED
    assert "cannot be read" in job.message


@pytest.mark.parametrize("changes", [{"created": "x"}, {"ended": [1]}, {"state": "odd"}, {"order": 3}, {"result": 1}])
def test_a_job_that_was_not_written_by_us_hides_no_other(project, changes):
    good, bad = Job("good", ORDER, FAILED), Job("bad", ORDER, FAILED)
    for job in (good, bad):
        project.folder(job).mkdir()
        project.keep(job)
    path = project.folder(bad) / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert {job.id: job.state for job in project.jobs()} == {"good": FAILED, "bad": FAILED}


# Who may look


def modes_below(folder):
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


def assert_private(folder):
    modes = modes_below(folder)
    closed = {name: oct(mode) for name, mode in modes.items() if "/" in name or name in ("files", "jobs")}
    ours = {name: mode for name, mode in closed.items() if name != "files/log.csv"}
    assert not {name: mode for name, mode in ours.items() if int(mode, 8) & 0o077}


def test_nobody_else_looks_into_the_studios_folder(project, quick):
    before = os.umask(0)
    try:
        job = project.start(ORDER)
        add(project, "new.csv", b"a,b\n", b"1,2\n")
        job = wait_until(project, job.id, (DONE, FAILED))
    finally:
        os.umask(before)
    names = set(os.listdir(project.folder(job)))
    assert {"job.json", "result.json", "policy.ponn", "report.html"} <= names, job.message
    assert_private(project.files_folder.parent)


def test_what_an_earlier_version_left_open_is_closed(tmp_path):
    outside = tmp_path / "outside.csv"
    outside.touch()
    outside.chmod(0o644)
    for name in ("files/log.csv", "jobs/abc/policy.ponn"):
        path = tmp_path / "studio" / name
        path.parent.mkdir(parents=True)
        path.touch(mode=0o644)
    (tmp_path / "studio/files/link.csv").symlink_to(outside)
    (tmp_path / "studio").chmod(0o755)
    Project(tmp_path / "studio").close()
    (tmp_path / "studio/files/link.csv").unlink()
    assert_private(tmp_path / "studio")
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644  # what is not in the folder is not ours
    assert stat.S_IMODE((tmp_path / "studio").stat().st_mode) == 0o755  # nor is the folder that was named


# Full disks and vanished folders

QUICK_LEARNER = """
import sys, time
from pathlib import Path
from ponn.processes import be_job
be_job({memory})
words = dict(word.removeprefix("--").split("=", 1) for word in sys.argv if "=" in word)
while "--set=epochs=100000" in sys.argv: time.sleep(0.01)
Path(words["out"]).write_text("policy")
Path(words["report"]).write_text("report")
print("{{}}")
"""


@pytest.fixture
def quick(monkeypatch):
    """Learning that ends at once, or never."""
    monkeypatch.setattr(projects, "command", lambda memory: ["-c", QUICK_LEARNER.format(memory=memory)])


@pytest.fixture
def disk(monkeypatch):
    """A disk that can be full: what is written to it then is an OSError."""
    state = {"full": False}
    write = projects.write_whole

    def written(*arguments, **more):
        if state["full"]:
            raise OSError(28, "No space left on device")
        return write(*arguments, **more)

    monkeypatch.setattr(projects, "write_whole", written)
    return state


def test_the_queue_survives_a_full_disk(project, quick, disk):
    first, second = project.start(SLOW), project.start(ORDER)
    disk["full"] = True
    project.cancel(first.id)
    found = wait_until(project, second.id, (DONE, FAILED))
    assert (found.state, project.running) == (DONE, {})
    assert project.job(first.id).state == INTERRUPTED
    assert "No space left" in project.trouble(found)
    with pytest.raises(DiskError, match="No space left"):
        project.start(ORDER)
    assert len(project.jobs()) == 2
    disk["full"] = False
    third = wait_until(project, project.start(ORDER).id, (DONE, FAILED))
    assert (third.state, project.unwritten) == (DONE, {})
    project.close()
    again = Project(project.files_folder.parent)
    assert {job.id: job.state for job in again.jobs()} == {first.id: INTERRUPTED, second.id: DONE, third.id: DONE}
    again.close()


def test_a_folder_that_is_removed_while_its_job_runs_ends_nothing_else(project, quick):
    first, second = project.start(SLOW), project.start(ORDER)
    shutil.rmtree(project.folder(first))
    assert project.job(first.id).state == RUNNING
    project.cancel(first.id)
    assert project.job(first.id).state == INTERRUPTED
    assert "No such file" in project.trouble(project.job(first.id))
    assert wait_until(project, second.id, (DONE, FAILED)).state == DONE
    shutil.rmtree(project.jobs_folder)
    shutil.rmtree(project.files_folder)
    assert project.files() == []
    assert [job.id for job in project.jobs()] == [first.id]  # who could not be written down is still known
    assert add(project, "log.csv", b"a,b\n1,2\n").read_bytes() == b"a,b\n1,2\n"
    assert wait_until(project, project.start(ORDER).id, (DONE, FAILED)).state == DONE
    assert_private(project.files_folder.parent)


def test_a_full_disk_refuses_an_upload_and_leaves_nothing(project, monkeypatch):
    monkeypatch.setattr(projects, "linked", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(DiskError, match="No space left"):
        add(project, "new.csv", b"a,b\n")
    assert os.listdir(project.files_folder) == ["log.csv"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('{')", "result in .* cannot be read"),
        ("print('[' * 100_000)", "result in .* cannot be read"),
        ("print('[]')", "not what `ponn learn` writes"),
        ("print('{}')", "no policy beside it"),
        (
            "import glob, shutil; [shutil.rmtree(one, True) for one in glob.glob(jobs + '/*')]",
            "cannot be read: .*No such file",
        ),
        ("import os; os.abort()", "ended from outside .SIGABRT"),
        ("import sys; print('x' * 10_000_000, file=sys.stderr); raise MemoryError", "took more memory than the 5"),
    ],
)
def test_a_result_that_cannot_be_read_is_a_failure_and_the_next_job_begins(tmp_path, monkeypatch, code, told):
    project = Project(tmp_path / "studio", memory=5_000_000_000)
    (project.files_folder / "log.csv").touch()
    starts = []

    def odd(_):
        starts.append(1)
        return ["-c", f"jobs = {str(project.jobs_folder)!r}\n{code}"]

    monkeypatch.setattr(projects, "command", odd)
    for _ in range(2):
        job = wait_until(project, project.start(ORDER).id, (DONE, FAILED))
        assert job.state == FAILED
        assert re.search(told, job.message), job.message
    assert len(starts) == 2
    assert project.running == {}
    project.close()


def test_who_cannot_begin_has_failed_and_the_next_may(project, quick, monkeypatch):
    first = project.start(SLOW)
    second, third = project.start(ORDER), project.start(ORDER)
    begin, failures = subprocess.Popen, [OSError(11, "Resource temporarily unavailable")]

    def popen(*arguments, **more):
        if failures:
            raise failures.pop()
        return begin(*arguments, **more)

    monkeypatch.setattr(projects.subprocess, "Popen", popen)
    project.cancel(first.id)
    assert wait_until(project, second.id, (FAILED,)).message.startswith("[Errno 11]")
    assert wait_until(project, third.id, (DONE, FAILED)).state == DONE


def test_no_thread_to_follow_is_no_job_that_runs_for_ever(project, quick, monkeypatch):
    def no_thread(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(projects.threading.Thread, "start", no_thread)
        job = project.start(SLOW)
    assert (job.state, project.running) == (FAILED, {})
    assert wait_until(project, project.start(ORDER).id, (DONE, FAILED)).state == DONE


@pytest.mark.parametrize("step", ["note_progress", "ended"])
def test_a_mistake_of_ours_holds_up_no_other_job(project, quick, monkeypatch, step):
    def wrong(*_):
        raise KeyError("of ours")

    with monkeypatch.context() as patched:
        patched.setattr(Project, step, wrong)
        job = wait_until(project, project.start(ORDER).id, (DONE, FAILED))
    assert (job.state, "made a mistake (KeyError)" in job.message) == (FAILED, True)
    assert wait_until(project, project.start(ORDER).id, (DONE, FAILED)).state == DONE


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are kept by Linux")
def test_learning_that_takes_too_much_memory_is_told(tmp_path):
    project = Project(tmp_path / "studio", memory=60_000_000)
    write_table(simulate.world("kidney-stones", seed=0).log.table, project.files_folder / "log.csv")
    job = wait_until(project, project.start(ORDER).id, (DONE, FAILED))
    project.close()
    assert "more memory than the 0.1 GB" in job.message


def test_lines_of_a_process():
    assert progress_in('{"message": "m", "done": 1, "total": 2}\n') == {"message": "m", "done": 1, "total": 2}
    assert progress_in("Warning: {}") is None
    assert progress_in("{broken") is None
    assert progress_in('{"message": "m", "done": 1e999, "total": ' + "[" * 100_000) is None
    assert failure_in(["a warning", "Error: no such column.", "Look again."]) == "no such column. Look again."
    assert failure_in([]) == "Learning failed without a word."


def test_learn_ends_when_its_input_closes(tmp_path):
    write_table(simulate.world("kidney-stones", seed=0).log.table, tmp_path / "log.csv")
    roles = ("--action", "treatment", "--reward", "success", "--method", "ponn-b")
    roles += ("--set", "epochs=100000", "--set", "patience=100000")
    command = [*PONN, "learn", "log.csv", *roles, "--progress", "json", "--out", "p.ponn"]
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 100}
    done = subprocess.run(command, cwd=tmp_path, **quiet)
    assert done.returncode == 130
    for line in done.stderr.splitlines():
        assert set(json.loads(line)) == {"message", "done", "total"}


# Guesses


def guess(**columns):
    table = pa.table(columns)
    return guess_roles(table, column_lines(table))


def test_roles_are_guessed_by_name_and_by_shape():
    n = 60
    age, regimen, survived = [30 + j % 40 for j in range(n)], ["AC", "AT", "CMF"] * 20, [0, 1, 1] * 20
    found = guess(age=age, regimen=regimen, survived=survived)
    assert (found.action, found.reward, found.minimize, found.propensity) == ("regimen", "survived", False, None)
    found = guess(x1=age, colour=regimen, y2=survived)  # nothing but shape
    assert (found.action, found.reward) == ("colour", "y2")
    found = guess(totalCost=[5.0 + j % 9 for j in range(n)], banner=[1, 2, 3] * 20, prob=[0.2, 0.5, 1.0] * 20)
    assert (found.action, found.reward, found.propensity) == ("banner", "totalCost", "prob")
    assert found.minimize
    found = guess(patient_id=[j % 55 for j in range(n)], arm=regimen, outcome=survived)
    assert found.group == "patient_id"
    found = guess(customer=[f"C{j % 55}" for j in range(n)], user_age=[j % 55 for j in range(n)], y=survived)
    assert found.group == "customer"
    assert guess(number=[j % 55 for j in range(n)], arm=regimen, y=survived).group is None
    assert guess(a=[1.5] * n) == guess(b=[2.5] * n)  # nothing to guess


@pytest.mark.parametrize("world", ["kidney-stones", "breast-cancer", "actg175"])
def test_roles_of_our_worlds_are_guessed(world):
    made = simulate.world(world, seed=0)
    found = guess_roles(made.log.table, column_lines(made.log.table))
    assert (found.action, found.reward) == (made.log.columns.action, made.log.columns.reward)
