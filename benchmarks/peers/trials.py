"""How any method is tuned, learned and timed: the same for all, in whatever environment a method lives.

A runner (run_*.py) has one function per method, fit(rows, trial, seed) -> scores, where scores(new) [n, k] says how
good every action seems in new rows. Each trial learns from the training rows and is valued on the validation rows by
the same doubly robust scores; the best learns again from both and says what to do in the test rows. What fails is told,
not mended: the next best trial counts then. No trial is begun after TRIAL_SECONDS.

symbol   meaning                                                              shape
X        design columns                                                       [n, D]
A, R, p  action taken, reward in [0, 1], propensity of the action taken       [n]
judge    doubly robust scores of the validation rows                          [n_valid, k]
"""

import hashlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

# Of processor time for all trials: more than PONN-DR takes on average anywhere (at most 164, in a world of 50 actions)
TRIAL_SECONDS = 200


class New(NamedTuple):
    """Rows to decide about."""

    X: np.ndarray
    places: np.ndarray  # in the log, for methods that read the table itself


class Rows(NamedTuple):
    """Rows to learn from."""

    X: np.ndarray
    A: np.ndarray
    R: np.ndarray
    p: np.ndarray
    places: np.ndarray
    k: int


Scores = Callable[[New], np.ndarray]

Fit = Callable[[Rows, Mapping[str, Any], int], Scores]


def actions_of(scores: np.ndarray) -> np.ndarray:
    """The best action of every row; scores that are not numbers are a failure, not an action."""
    if not np.isfinite(scores).all():
        raise ArithmeticError(f"{(~np.isfinite(scores)).any(axis=1).mean():.0%} of the rows have scores that are NaN")
    return np.asarray(scores).argmax(axis=1)  # [n]


def reason(error: BaseException) -> str:
    """An error in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.name}: {error}"[:300].replace("\n", " ")


def tried(fit: Fit, rows: Rows, valid: New, judge: np.ndarray, trial: Mapping[str, Any], seed: int) -> dict:
    """One trial: its value on validation rows, or why it failed."""
    started = time.perf_counter()
    try:
        found = actions_of(fit(rows, trial, seed)(valid))
        told = {"value": float(judge[np.arange(len(found)), found].mean())}
    except Exception as error:
        told = {"failed": reason(error)}
    return {"trial": dict(trial), **told, "seconds": time.perf_counter() - started}


def all_tried(fit: Fit, rows: Rows, valid: New, judge: np.ndarray, trials: list, seed: int) -> list:
    """The first trial, and the others as long as there is time."""
    started, done = os.times(), []
    for trial in trials:
        if not done or used(started) + spared < TRIAL_SECONDS:
            done.append(tried(fit, rows, valid, judge, trial, seed))
    return done


def tune(fit: Fit, given: Mapping[str, Any], trials: list, seed: int) -> tuple[dict, "np.ndarray | None"]:
    """All trials, then the best on all rows; what is told, and the actions in the test rows (None after a failure)."""
    train, both = (rows_of(given, given[name]) for name in ("train", "both"))
    if len(trials) == 1:
        return settled(fit, both, new_rows(given, "test"), trials, seed)
    done = all_tried(fit, train, new_rows(given, "valid"), given["judge"], trials, seed)
    good = sorted((one for one in done if "value" in one), key=lambda one: -one["value"])
    if not good:
        return {"trials": done, "failed": f"every trial failed; the first: {done[0]['failed']}"}, None
    told, actions = settled(fit, both, new_rows(given, "test"), [one["trial"] for one in good], seed)
    return {"trials": done, **told}, actions


def settled(fit: Fit, rows: Rows, new: New, trials: list, seed: int) -> tuple[dict, "np.ndarray | None"]:
    """The first trial that learns from all rows without a failure, and its actions in new rows."""
    failures = []
    for trial in trials:
        try:
            return {"chosen": trial, "failed_on_all_rows": failures}, actions_of(fit(rows, trial, seed)(new))
        except Exception as error:
            failures.append({"trial": dict(trial), "failed": reason(error)})
    told = f"every trial failed on all rows; the best: {failures[0]['failed']}"
    return {"failed_on_all_rows": failures, "failed": told}, None


def rows_of(given: Mapping[str, Any], places: np.ndarray) -> Rows:
    """Some of the rows of a log."""
    return Rows(*(given[name][places] for name in "XARp"), places, int(given["k"]))


def new_rows(given: Mapping[str, Any], part: str) -> New:
    """The rows of a part, without what happened in them."""
    return New(given["X"][given[part]], given[part])


known: dict[bytes, tuple[Any, float]] = {}  # what was made by `once`, and the seconds that took
spared = 0.0  # seconds that were saved by that


def once(make: Callable[[], Any], *made_from: np.ndarray) -> Any:
    """What several trials make from the same arrays is made once; the time it took is counted every time.

    A user who tries these settings has to wait for it every time.
    """
    global spared
    key = hashlib.sha256(b"".join(array.tobytes() for array in made_from)).digest()
    if key in known:
        spared += known[key][1]
    else:
        started = os.times()
        known[key] = make(), used(started)
    return known[key][0]


def used(started: "os.times_result") -> float:
    """Seconds of processor time since then, by this process and its children."""
    now = os.times()
    return sum(
        getattr(now, one) - getattr(started, one) for one in ("user", "system", "children_user", "children_system")
    )


libraries = 0  # bytes that this process held when it had loaded what it needs; a copy of it does not count all of them


def answer_jobs(do: Callable[[dict], dict]) -> None:
    """Do the jobs whose files are named on standard input, one by one; the exit status of each is the answer.

    A job is done by a copy of this process: libraries are loaded once, and nothing is left behind for the next job.
    """
    global libraries
    libraries = peak()
    for path in sys.stdin:
        child = os.fork()
        if not child:
            carry_out(path.strip(), do)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def carry_out(path: str, do: Callable[[dict], dict]) -> NoReturn:
    """Do one job, write what is told to its file and end; what a library prints is not an answer."""
    os.dup2(2, 1)
    with open(path) as file:
        asked = json.load(file)
    try:
        told = do(asked)
    except BaseException as error:
        told = {"failed": reason(error)}
    with open(asked["out"], "w") as file:
        json.dump(told, file)
    os._exit(0)


def done(
    asked: Mapping[str, Any], fits: Mapping[str, Fit], versions: Mapping[str, str], details: Mapping[str, Any]
) -> dict:
    """What is to be told of a job; details: what a fit leaves there is told as well."""
    with np.load(asked["rows"]) as stored:
        given = {name: stored[name] for name in stored.files}
    warnings.simplefilter("ignore")  # of peers; a result that is not a number is found anyway
    start, wall, cpu = peak(), time.perf_counter(), os.times()
    told, actions = tune(fits[asked["fit"]], given, asked["trials"], asked["seed"])
    told |= {"seconds": time.perf_counter() - wall + spared, "cpu_seconds": used(cpu) + spared}
    told |= {"peak_bytes": libraries + peak() - start, "loaded_bytes": libraries}
    told |= {"versions": dict(versions), "details": dict(details)}
    return told if actions is None else told | {"actions": actions.tolist()}


def main(fits: Mapping[str, Fit], versions: Mapping[str, str]) -> None:
    """Answer jobs by these functions."""
    answer_jobs(lambda asked: done(asked, fits, versions, {}))


def peak() -> int:
    """Most memory this process ever held, in bytes; getrusage would count its parent's before the start as well."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
