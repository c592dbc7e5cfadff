"""Which method learns the best policy from a log? PONN-DR beside every other method, on worlds with known truth.

A run is a log, a split and a seed; every method learns from the same training and validation rows (tuned over its grid,
propensities estimated; PONN-DR tunes itself) and is judged on test rows by the truth. Each finished (world, run,
method) is a line in results/beyond_runs, so a stopped experiment goes on where it was; a line made with other settings
is not used. `--minutes` stops it after a while. The tables are made from all lines that are there.

PONN-DR was designed while looking at test rows of runs 0 and 1 of the UCI worlds and run 0 of breast-cancer and of some
synthetic worlds (selection rule, kinds of models, the small network's training). Those runs flatter it; the summary
gives the accuracy without them as well.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

import ponn
from ponn.settings import METHODS, settings_of
from ponn.synthetic import synthetic
from record import RESULTS, now, write_record

RUNS = 25
LOOKED_AT = (0, 1)  # runs that PONN-DR was designed with
DR = "ponn-dr"
OTHERS = tuple(name for name in METHODS if name != DR)
# As in paper_tables.py: rectified units for the paper's networks, POEM without the clip that holds it back here
CHANGES: dict[str, dict[str, Any]] = {
    name: {"activation": "relu"} for name in ("ponn-b", "ponn", "mlp-l1", "banditnet")
}
CHANGES |= {"poem": {"clip": 0.0}}
BARS = {"pendigits": 98.0, "satimage": 88.5, "optdigits": 95.0}  # greedy accuracy of PONN-DR, scaling "paper"
TIED = 0.5  # points by which the mean may fall short where the interval of the difference contains 0
SYNTHETIC: dict[str, dict[str, Any]] = {
    "weak bias": {"bias": 0.3},
    "strong bias": {"bias": 2.0},
    "sparse": {"features": 40, "relevant": 3, "effect": 0.15},
    "dense": {"features": 20, "relevant": 15},
    "continuous": {"reward": "continuous"},
    "3 actions": {"actions": 3},
    "10 actions": {"actions": 10},
    "50 actions": {"actions": 50},
    "xor": {"xor_pairs": 2, "relevant": 3},
    "linear": {"shape": "linear"},
}
WORLDS = (
    *(f"{name} {scaling}" for scaling in ("paper", "hard") for name in BARS),
    "breast-cancer",
    *(f"synthetic {name}" for name in SYNTHETIC),
)


# One run -------------------------------------------------------------------------------------------------


def make_world(name: str, run: int) -> ponn.World:
    """The world of a run."""
    first, _, rest = name.partition(" ")
    if first == "synthetic":
        return synthetic(**SYNTHETIC[rest], seed=run)
    return ponn.simulate.world(first, seed=run, scaling=rest or "paper")


def one_run(world: str, run: int, method: str, workers: int) -> dict[str, Any]:
    """Learn by one method and judge the policy."""
    made = make_world(world, run)
    log, test = made.part("train", "valid").log, made.part("test")
    wall, cpu = time.perf_counter(), time.process_time()
    policy = ponn.learn(log, method, tune=True, seed=run, workers=workers, **CHANGES.get(method, {}))
    spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    h = policy.predict_proba(test.log)
    greedy = np.eye(h.shape[1])[h.argmax(axis=1)]
    return {
        "world": world,
        "run": run,
        "method": method,
        "space": space(method),
        "greedy": test.accuracy(greedy),
        "stochastic": test.accuracy(h),
        "value": test.value(greedy),
        "stochastic_value": test.value(h),
        "best_value": test.value(np.eye(h.shape[1])[test.best]),
        **spent,
        "load": os.getloadavg()[0],
        "training": policy.provenance["training"],
    }


def space(method: str) -> str:
    """A fingerprint of what decides how a method learns, as far as settings do."""
    told = [asdict(settings_of(method, **CHANGES.get(method, {}))), dict(METHODS[method].grid)]
    return hashlib.sha256(json.dumps(told, default=list, sort_keys=True).encode()).hexdigest()[:12]


# All runs ------------------------------------------------------------------------------------------------


def runs_file(folder: Path, world: str) -> Path:
    return folder / "beyond_runs" / f"{world.replace(' ', '-')}.jsonl"


def kept(folder: Path, world: str) -> dict[tuple[int, str], dict[str, Any]]:
    """Finished runs of a world by number and method; the last line counts."""
    path = runs_file(folder, world)
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {
        (line["run"], line["method"]): line
        for line in lines
        if line["method"] in METHODS and line["space"] == space(line["method"])
    }


def missing(folder: Path, worlds: Sequence[str], runs: int, methods: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """What is still to be done, run by run."""
    done = {world: kept(folder, world) for world in worlds}
    for run in range(runs):
        for method in methods:
            yield from ((world, run, method) for world in worlds if (run, method) not in done[world])


def run_all(
    folder: Path, worlds: Sequence[str], runs: int, methods: Sequence[str], minutes: float, workers: int
) -> None:
    """Finish what is missing, as long as there is time."""
    end = time.monotonic() + 60 * minutes
    for world, run, method in missing(folder, worlds, runs, methods):
        if time.monotonic() > end:
            print("Out of time; what is missing is done by the next call.")
            return
        line = one_run(world, run, method, workers)
        path = runs_file(folder, world)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{world} run {run} {method}: {100 * line['greedy']:.2f} % in {line['seconds']:.0f} s", flush=True)


# Tables --------------------------------------------------------------------------------------------------


def half_width(found: Sequence[float]) -> float | None:
    """95 % half-width of the mean, by Student's distribution; None for a single run."""
    from scipy.stats import t

    if len(found) < 2:
        return None
    return float(t.ppf(0.975, len(found) - 1) * stdev(found) / np.sqrt(len(found)))


def compared(lines: dict[tuple[int, str], dict[str, Any]], method: str, measure: str) -> dict[str, Any]:
    """PONN-DR minus a method over the runs that both have, in points."""
    runs = sorted(run for run, name in lines if name == method and (run, DR) in lines)
    found = [100 * lines[run, method][measure] for run in runs]
    gains = [100 * (lines[run, DR][measure] - lines[run, method][measure]) for run in runs]
    if not runs:
        return {"runs": 0}
    told = {"runs": len(runs), "mean": mean(found), "gain": mean(gains), "gain_half_width": half_width(gains)}
    if len(runs) < 2:
        return told | {"gain_half_width": None, "best_or_tied": None}
    tied = mean(gains) + told["gain_half_width"] >= 0 and mean(gains) >= -TIED
    return told | {"best_or_tied": bool(mean(gains) >= 0 or tied)}


def summary(folder: Path) -> dict[str, Any]:
    """Per world: PONN-DR, and its paired gain over every other method."""
    found: dict[str, Any] = {}
    for world in WORLDS:
        lines = kept(folder, world)
        own = [line for (_, method), line in sorted(lines.items()) if method == DR]
        if not own:
            continue
        told: dict[str, Any] = {"runs": len(own)}
        for measure in ("greedy", "stochastic", "value", "stochastic_value", "best_value"):
            values = [100 * line[measure] for line in own]
            told[measure] = {"mean": mean(values), "half_width": half_width(values)}
        told["cpu_seconds"] = mean(line["cpu_seconds"] for line in own)
        told["seconds"] = mean(line["seconds"] for line in own)
        told["against"] = {
            method: {"greedy": compared(lines, method, "greedy"), "value": compared(lines, method, "value")}
            for method in OTHERS
            if compared(lines, method, "greedy")["runs"]
        }
        name, _, scaling = world.partition(" ")
        if name in BARS and scaling == "paper":
            holds = told["greedy"]["mean"] >= BARS[name] if len(own) >= RUNS else None
            told["bar"] = {"wanted": BARS[name], "holds": holds}
        fresh = [100 * line["greedy"] for line in own if line["run"] not in LOOKED_AT]
        told["greedy_of_fresh_runs"] = {"runs": len(fresh), "mean": mean(fresh) if fresh else None}
        found[world] = told
    return found


def with_width(mean_: float, width: float | None, sign: str = "") -> str:
    """Mean and half-width; a single run has none."""
    return f"{mean_:{sign}.2f}" + (" (one run)" if width is None else f" ± {width:.2f}")


def bar_cell(told: dict[str, Any]) -> str:
    """The bar, and whether it holds; undecided before all runs are done."""
    if "bar" not in told:
        return ""
    said = {True: "holds", False: "missed", None: f"undecided, {told['runs']} of {RUNS} runs"}
    return f"{told['bar']['wanted']:.1f}: {said[told['bar']['holds']]}"


def fresh_cell(told: dict[str, Any]) -> str:
    """Accuracy over the runs that nothing was designed with."""
    fresh = told["greedy_of_fresh_runs"]
    return f"{fresh['mean']:.2f} ({fresh['runs']})" if fresh["runs"] else "none yet"


def markdown(found: dict[str, Any]) -> str:
    """The summary as tables."""
    lines = ["# Beyond the paper", "", "Greedy accuracy and true value in % on test rows, mean and 95 % half-width."]
    lines += [f"PONN-DR was designed while looking at runs {LOOKED_AT[0]} and {LOOKED_AT[1]}: these flatter it.", ""]
    head = ("world", "runs", "greedy accuracy", "of fresh runs", "stochastic", "value, greedy", "value, stochastic")
    lines += [f"| {' | '.join((*head, 'best value', 'bar'))} |", "|---" * 9 + "|"]
    for world, told in found.items():
        shown = {
            one: with_width(told[one]["mean"], told[one]["half_width"]) for one in ("greedy", "stochastic", "value")
        }
        cells = [shown["greedy"], fresh_cell(told), shown["stochastic"], shown["value"]]
        cells += [f"{told['stochastic_value']['mean']:.2f}", f"{told['best_value']['mean']:.2f}", bar_cell(told)]
        lines.append(f"| {world} | {told['runs']} | {' | '.join(cells)} |")
    lines += ["", "## PONN-DR minus each method, in points, paired over runs", ""]
    if not any(told["against"] for told in found.values()):
        return "\n".join([*lines, "No other method was run yet."]) + "\n"
    lines += ["| world | method | runs | its greedy accuracy | gain in accuracy | gain in value | best or tied |"]
    lines += ["|---" * 7 + "|"]
    for world, told in found.items():
        lines += [gain_line(world, method, one) for method, one in told["against"].items()]
    return "\n".join(lines) + "\n"


def gain_line(world: str, method: str, one: dict[str, Any]) -> str:
    """One method in one world."""
    both = (one["greedy"], one["value"])
    gains = [with_width(part["gain"], part["gain_half_width"], "+") for part in both]
    verdicts = {part["best_or_tied"] for part in both}
    holds = "undecided" if None in verdicts else "yes" if verdicts == {True} else "no"
    return f"| {world} | {method} | {both[0]['runs']} | {both[0]['mean']:.2f} | {' | '.join(gains)} | {holds} |"


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--methods", default=",".join((DR, *OTHERS)))
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--workers", type=int, default=1, help="processes of one learning")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    given, started = parser.parse_args(), now()
    run_all(given.folder, given.worlds.split(","), given.runs, given.methods.split(","), given.minutes, given.workers)
    found = summary(given.folder)
    (given.folder / "beyond_the_paper.md").write_text(markdown(found))
    write_record("beyond_the_paper", found, seed=0, started=started, folder=given.folder)


if __name__ == "__main__":
    main()
