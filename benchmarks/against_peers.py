"""Which policy learner is best? PONN-DR, ponn's other methods and the peers people use, on the same logs.

A seed is a log, a split and the seed of every method. All methods get the same training and validation rows, the same
design columns and the same propensities (those of Step A, cross-fitted, unless the log knows them; EconML estimates its
own). Each tries the settings of `peer_space.py`, learning from the training rows and valued on the validation rows by
the same doubly robust scores; the best learns again from both parts and is judged on the test rows by the truth. Our
own methods read the table instead of its design columns and estimate propensities as they always do.

Every finished (world, seed, method) is a line in results/peer_runs, so a stopped comparison goes on where it was; a
line made by another search space is not used. What fails is a line that says so. A method far behind on the first seeds
of a world is run on others with --everyone only. Peers run in environments of their own
(.venv-peers, made by `make peers`); one that is missing is told loudly. The pages docs/leaderboard.md and
docs/leaderboard-worlds.md are made from the lines that are there.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import ponn
from leaderboard import PICTURE, TABLES, given_up, page, summary, tables_page
from leaderboard_picture import at_a_glance
from peer_runners import HOMES, Runners
from peer_space import BEST_FIXED, METHODS, OURS, STANDING, Trial
from peer_worlds import PARAMETRIC, REAL, SIMULATED, SMALL, make_world
from peers.trials import TRIAL_SECONDS
from ponn.learning.dr.scores import doubly_robust_scores
from ponn.learning.forests import direct_forest
from ponn.log.encoding import Encoding
from ponn.methods import settings_of
from ponn.simulate.worlds import World
from ponn.steps.propensity import propensities
from record import HERE, RESULTS, now, write_record

SEEDS, QUICK_SEEDS, QUICK_TRIALS = 10, 2, 2
TIME_LIMIT = 3600  # seconds of one method on one log, after which it counts as hanging
PROTOCOL = 2  # grows when what all methods share changes
JUDGE = {"trees": 100, "leaf": 5, "columns": 0.33}  # forest that predicts rewards in the scores of validation rows
PAGE = HERE.parent / "docs" / "leaderboard.md"


class Task(NamedTuple):
    """One method on one log."""

    world: str
    seed: int
    method: str


@dataclass(frozen=True)
class Plan:
    """Where things are, and how large the worlds are."""

    folder: Path
    data: Path | None
    quick: bool

    def world(self, task: Task) -> World:
        """The world of a task."""
        return make_world(task.world, task.seed, self.data, self.quick)

    def trials(self, task: Task) -> Sequence[Trial]:
        """What is tried for a task's method."""
        trials = METHODS[task.method].trials if task.method in METHODS else ()
        return trials[:QUICK_TRIALS] if self.quick else trials


# What all methods share ----------------------------------------------------------------------------------


def shared_rows(world: World, seed: int) -> dict[str, np.ndarray]:
    """Design columns, propensities, parts, and the scores by which trials are valued."""
    both = np.sort(np.concatenate([world.train, world.valid]))
    log = world.log.take(both)
    encoding = Encoding.fit(log)
    X, p = encoding.design(world.log), np.ones(len(world.log))
    settings = settings_of("ponn-dr")
    p[both] = 1 / propensities(log, encoding, settings, folds=settings.folds, seed=seed).weights
    given = {"X": X, "A": world.log.A, "R": world.log.R, "p": p, "k": np.array(len(log.actions))}
    judge = judging_scores(given, world.train, world.valid, seed)
    return {**given, "train": world.train, "valid": world.valid, "both": both, "test": world.test, "judge": judge}


def judging_scores(given: dict[str, np.ndarray], train: np.ndarray, valid: np.ndarray, seed: int) -> np.ndarray:
    """Doubly robust scores of the validation rows; their reward model saw the training rows alone."""
    X, A, R, k = given["X"], given["A"], given["R"], int(given["k"])
    model = direct_forest(X[train], A[train], R[train], np.ones(len(train)), k, seed, **JUDGE)
    return doubly_robust_scores(np.asarray(model.rewards(X[valid])), A[valid], R[valid], 1 / given["p"][valid])


# One run -------------------------------------------------------------------------------------------------


def one_run(
    task: Task, plan: Plan, world: World, rows: dict[str, np.ndarray], stored: Path, runners: Runners
) -> dict[str, Any]:
    """A line about one method on one log."""
    told: dict[str, Any] = {**task._asdict(), "space": space(task, plan.quick), "load": round(os.getloadavg()[0], 1)}
    if task.method in STANDING:
        return told | standing(task.method, world, rows)
    with tempfile.TemporaryDirectory() as folder:
        found = run_elsewhere(task, plan, stored, Path(folder), runners)
    actions = found.pop("actions", None)
    return told | found | ({} if actions is None else judged(world, rows, np.array(actions)))


def run_elsewhere(task: Task, plan: Plan, stored: Path, folder: Path, runners: Runners) -> dict[str, Any]:
    """Tune and learn in the method's own environment, one process per task, one thread."""
    one = METHODS[task.method]
    job = {"rows": str(stored), "out": str(folder / "out.json"), "fit": one.fit}
    job |= {"trials": plan.trials(task), "world": task.world, "seed": task.seed, "quick": plan.quick}
    job |= {"data": None if plan.data is None else str(plan.data)}
    (folder / "job.json").write_text(json.dumps(job))
    failure = runners.failure(one, folder / "job.json", TIME_LIMIT)
    if failure:
        return {"failed": failure}
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


def judged(world: World, rows: dict[str, np.ndarray], actions: np.ndarray) -> dict[str, Any]:
    """A policy that takes these actions in the test rows, by the truth; by IPS where only a trial is known."""
    test, k = world.part("test"), world.propensities.shape[1]
    h = np.eye(k)[actions]
    if np.isnan(test.expected).any():
        return by_trial(test, h, np.eye(k)[np.full(len(h), best_fixed_action(rows))])
    best = test.value(np.eye(k)[test.best])
    return {"value": test.value(h), "accuracy": test.accuracy(h), "best_value": best}


def by_trial(test: World, h: np.ndarray, fixed: np.ndarray) -> dict[str, Any]:
    """Value by IPS with the trial's own probabilities, its standard error, and that of the gain over one action for all
    (fixed [n, k]); nobody knows the best action."""
    j = np.arange(len(h))
    worth, simple = (one[j, test.log.A] / test.propensities[j, test.log.A] * test.log.R for one in (h, fixed))
    error, paired = (float(one.std() / np.sqrt(len(one))) for one in (worth, worth - simple))
    return {"value": float(worth.mean()), "error": error, "error_of_gain": paired, "accuracy": None}


def best_fixed_action(rows: dict[str, np.ndarray]) -> int:
    """The action that is best for all by the rows learned from."""
    A, R, p, both = (rows[one] for one in ("A", "R", "p", "both"))
    w = 1 / p[both]
    value = [np.average(R[both][A[both] == a], weights=w[A[both] == a]) for a in range(int(rows["k"]))]
    return int(np.argmax(value))


def standing(name: str, world: World, rows: dict[str, np.ndarray]) -> dict[str, Any]:
    """Current practice, or the action that is best for all by the rows learned from."""
    test = world.part("test")
    if name == BEST_FIXED:
        chosen = best_fixed_action(rows)
        return judged(world, rows, np.full(len(test.log), chosen)) | {"chosen": chosen}
    if np.isnan(test.expected).any():  # the rows learned from are current practice
        R = rows["R"][rows["both"]]
        return {"value": float(R.mean()), "error": float(R.std() / np.sqrt(len(R))), "accuracy": None}
    return {"value": test.value(test.propensities), "accuracy": test.accuracy(test.propensities)}


def space(task: Task, quick: bool) -> str:
    """A fingerprint of what decides how a method learns here."""
    told: list[Any] = [PROTOCOL, quick, {"rows": SMALL, **PARAMETRIC.get(task.world, {})}]
    if task.method in METHODS:
        one = METHODS[task.method]
        told += [asdict(one), own_settings(one.fit) if not one.home and one.runner == "run_ponn.py" else None]
    return hashlib.sha256(json.dumps(told, default=list, sort_keys=True).encode()).hexdigest()[:12]


def own_settings(method: str) -> dict[str, Any]:
    """What a method of ponn's own sets. New settings with a default must not undo old lines, so defaults are not told:
    who changes one gives the methods that it concerns a new edition."""
    usual = asdict(ponn.Settings(min_cell=1))  # with which the lines are made: peers protect nobody either
    return {name: value for name, value in asdict(settings_of(method, min_cell=1)).items() if value != usual[name]}


# All runs ------------------------------------------------------------------------------------------------


def runs_file(folder: Path, world: str) -> Path:
    return folder / "peer_runs" / f"{world.replace(' ', '-')}.jsonl"


def kept(folder: Path, worlds: Sequence[str], quick: bool) -> dict[Task, dict[str, Any]]:
    """Finished runs that the present search space made; the last line of a task counts."""
    found = {}
    for world in worlds:
        path = runs_file(folder, world)
        for line in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            task = Task(line["world"], line["seed"], line["method"])
            if line["space"] == space(task, quick):
                found[task] = line
    return found


def missing(plan: Plan, worlds: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> list[Task]:
    """What is still to be done: all worlds of a seed before the next seed."""
    lines = kept(plan.folder, worlds, plan.quick)
    done = {task for task, line in lines.items() if not cut_short(line, len(plan.trials(task)))}
    tasks = [Task(world, seed, method) for seed in seeds for world in worlds for method in methods]
    return [task for task in tasks if task not in done]


def cut_short(line: dict[str, Any], asked: int) -> bool:
    """Was there less time for trials than there is now, and not enough for as many as are asked for?"""
    return len(line.get("trials", range(asked))) < asked and line.get("cpu_seconds", np.inf) < TRIAL_SECONDS


def by_log(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Tasks of the same log together, in their order."""
    groups: dict[tuple[str, int], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.world, task.seed), []).append(task)
    yield from groups.values()


def run_all(plan: Plan, tasks: Sequence[Task], workers: int, everyone: bool) -> None:
    """Run the tasks, log by log; a line is kept as soon as it is there.

    Who is far behind by then is left out, unless everyone is asked for.
    """
    with Runners() as runners:
        run_by_log(plan, tasks, workers, everyone, runners)


def run_by_log(plan: Plan, tasks: Sequence[Task], workers: int, everyone: bool, runners: Runners) -> None:
    """Run the tasks with runners that are kept for all logs."""
    done = 0
    for group in by_log(tasks):
        group, left_out = (group, 0) if everyone else still_wanted(plan, group)
        done += left_out
        if not group:
            continue
        world = plan.world(group[0])
        with threadpool_limits(1):  # beside running methods two threads take ten times as long as one
            rows = shared_rows(world, group[0].seed)
        with tempfile.TemporaryDirectory() as folder, stopping_pool(workers, runners) as pool:
            stored = Path(folder) / "rows.npz"
            np.savez(stored, **rows)
            for future in as_completed(
                pool.submit(one_run, task, plan, world, rows, stored, runners) for task in group
            ):
                line, done = future.result(), done + 1
                append(plan.folder, line)
                print(f"[{done} of {len(tasks)}] {told(line)}", flush=True)


@contextmanager
def stopping_pool(workers: int, runners: Runners) -> Iterator[ThreadPoolExecutor]:
    """Threads that have jobs done; when the block is left early (Ctrl-C) no further one begins and none goes on."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            runners.kill()
            raise


def still_wanted(plan: Plan, group: Sequence[Task]) -> tuple[list[Task], int]:
    """The tasks of a log without methods that were far behind on the seeds before it, and how many these are.

    How much logs differ is told by all seeds that PONN-DR has: one that was left out before they were there may come
    back.
    """
    world, seed = group[0].world, group[0].seed
    lines: dict[str, dict[int, dict[str, Any]]] = {}
    for task, line in kept(plan.folder, [world], plan.quick).items():
        if task.seed < seed or task.method == OURS:
            lines.setdefault(task.method, {})[task.seed] = line
    own = lines.get(OURS, {})
    wanted = [task for task in group if task.method in STANDING or not given_up(own, lines.get(task.method, {}))]
    return wanted, len(group) - len(wanted)


def append(folder: Path, line: dict[str, Any]) -> None:
    """Add a finished run to its file."""
    path = runs_file(folder, line["world"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def told(line: dict[str, Any]) -> str:
    """One line about a finished run."""
    start = f"{line['world']}, seed {line['seed']}, {line['method']}:"
    if "failed" in line:
        return f"{start} failed, {line['failed']}"
    accuracy = "" if line["accuracy"] is None else f", accuracy {100 * line['accuracy']:.2f}"
    return f"{start} value {100 * line['value']:.2f}{accuracy}, {line.get('seconds', 0):.1f} s"


def absent_homes(methods: Sequence[str]) -> dict[str, str]:
    """Environments of these methods that are not there, with the reason where one was left."""
    found = {}
    for home in sorted({METHODS[name].home for name in methods if name in METHODS} - {""}):
        reason = HOMES / f"{home}.failed"
        if reason.exists():
            found[home] = reason.read_text().strip()
        elif not (HOMES / home / "bin" / "python").exists():
            found[home] = "it was not set up (make peers)"
    return found


def chosen_worlds(asked: str | None, data: Path | None) -> list[str]:
    """The worlds asked for, or all; real tables that are not there are left out loudly."""
    names = [*SIMULATED, *REAL] if asked is None else asked.split(",")
    wrong = [name for name in names if name not in SIMULATED and name not in REAL]
    if wrong:
        raise SystemExit(f"There is no world {wrong[0]!r}; expected some of {', '.join((*SIMULATED, *REAL))}.")
    absent = [name for name in names if name in REAL and not REAL[name].there(data)]
    for name in absent:
        print(f"SKIPPED: {name}, as there is no {REAL[name].file} in --data {data or '(not given)'}.", file=sys.stderr)
    return [name for name in names if name not in absent]


def chosen_methods(asked: str | None) -> list[str]:
    """The methods asked for, or all; those whose environment is missing are left out loudly."""
    names = [*METHODS, *STANDING] if asked is None else asked.split(";")
    wrong = [name for name in names if name not in METHODS and name not in STANDING]
    if wrong:
        raise SystemExit(f"There is no method {wrong[0]!r}; expected some of {'; '.join((*METHODS, *STANDING))}.")
    absent = absent_homes(names)
    for home, reason in absent.items():
        print(f"SKIPPED: every method of {home}, as its environment is not there: {reason}", file=sys.stderr)
    return [name for name in names if name in STANDING or METHODS[name].home not in absent]


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", help="names separated by commas; default all")
    parser.add_argument("--methods", help="names separated by semicolons; default all")
    parser.add_argument("--seeds", type=int, help=f"how many; default {SEEDS}")
    parser.add_argument("--first-seed", type=int, default=0, help="where counting starts; from 1000 on for trying out")
    parser.add_argument("--workers", type=int, default=1, help="methods at a time")
    parser.add_argument("--everyone", action="store_true", help="also methods that were given up as far behind")
    parser.add_argument("--data", type=Path, help="folder with the real tables, which are not shipped")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--tables-only", action="store_true", help="only make the page from the lines that are there")
    parser.add_argument(
        "--quick", action="store_true", help=f"small worlds, {QUICK_SEEDS} seeds, {QUICK_TRIALS} trials"
    )
    given, started = parser.parse_args(), now()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it leaves no job behind, as with Ctrl-C
    plan = Plan(given.folder, given.data, given.quick)
    seeds = range(given.first_seed, given.first_seed + (given.seeds or (QUICK_SEEDS if given.quick else SEEDS)))
    if not given.tables_only:
        worlds, methods = chosen_worlds(given.worlds, given.data), chosen_methods(given.methods)
        run_all(plan, missing(plan, worlds, methods, seeds), given.workers, given.everyone)
    write_tables(plan, started)


def write_tables(plan: Plan, started: str) -> None:
    """The record, the pages and the picture; those of a quick look or another folder's runs stay in that folder."""
    lines = kept(plan.folder, (*SIMULATED, *REAL), plan.quick)
    found = summary([*lines.values()], absent_homes([*METHODS]))
    write_record("against_peers", found, seed=0, started=started, folder=plan.folder)
    path = PAGE if plan.folder == RESULTS and not plan.quick else plan.folder / PAGE.name
    sizes, logs = measured("learning_time_by_rows", "sizes"), measured("learning_time_on_uci_logs", "logs")
    path.write_text(page(found, sizes, logs))
    (path.parent / TABLES).write_text(tables_page(found))
    drawn = path.parent / PICTURE
    drawn.parent.mkdir(exist_ok=True)
    drawn.write_text(at_a_glance(found["worlds"]))


def measured(benchmark: str, what: str) -> list[dict[str, Any]]:
    """What another benchmark measured, if it did."""
    path = RESULTS / f"{benchmark}.json"
    return json.loads(path.read_text())["measured"][what] if path.exists() else []


if __name__ == "__main__":
    main()
