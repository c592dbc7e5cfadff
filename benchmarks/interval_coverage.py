"""Do the intervals hold the true value as often as they say, and is the verdict as rarely wrong as it says?

Eight worlds and three sizes, fixed in the tables below before anything was measured; 1,000 repetitions each. In every
repetition fresh rows of the world are drawn, the same policy (learned once, on other rows) is valued on them by every
estimator, and the true value, integrated over 2,000,000 rows, lies in the interval or not.

Logs are numbered. The rule that refuses values was changed after a first study, on numbers 0 to 999, had shown that it
refused too much; it was chosen on other worlds and on numbers from 5,000,000 on (docs/decisions/015). What is counted
here are fresh logs, from OFFSET on. One log of 10,000 rows takes 0.4 s of one core, four fifths of it for fitting.

    python benchmarks/interval_coverage.py               goes on where it was stopped
    python benchmarks/interval_coverage.py --quick       50 repetitions of other logs, nothing is written
    python benchmarks/interval_coverage.py --bootstrap   the bootstrap that refits the propensities, a table of its own
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ponn.evaluation.valuation import evaluate, nuisances
from ponn.evaluation.worth import worth
from ponn.log.encoding import Encoding
from ponn.policy.models import greedy
from ponn.simulate.synthetic import Synthetic, fresh, mechanism, true_value
from ponn.steps.reward import fit_rewards
from record import RESULTS, commit, now, write_record

SIZES = (500, 2_000, 10_000)
REPETITIONS, CHUNK = 1_000, 100
LEVEL = 0.95
ESTIMATORS = ("dr", "sndr", "ips", "snips", "truncated-ips", "switch-dr", "dros", "dm")
FINITE = ("bernstein", "sequence")  # intervals for every n; they take the propensities as true
LEARNED_FROM = 2_000  # rows, none of which is valued on
INTEGRATED = 2_000_000
SEED = 0
OFFSET, OFFSET_OF_QUICK = 10_000, 6_000_000  # the number of the first log


@dataclass(frozen=True)
class Case:
    """A world, and whether its log tells the propensities."""

    known: bool
    strong: bool  # few effective rows at n = 500: refusing is right there
    parameters: dict[str, Any] = field(default_factory=dict)


WEAK, STRONG = 0.5, 1.5  # sd of the logging logits
PLAIN: dict[str, Any] = {"features": 10, "actions": 4, "relevant": 4, "shape": "linear", "seed": 11}
MIXED: dict[str, Any] = {"categorical": 0.3, "missing": 0.05, "correlation": 0.3, "shape": "step"}
CASES = {
    "known, weak, binary": Case(True, False, {**PLAIN, "bias": WEAK}),
    "known, strong, binary": Case(True, True, {**PLAIN, "bias": STRONG}),
    "estimated, weak, binary": Case(False, False, {**PLAIN, "bias": WEAK}),
    "estimated, strong, binary": Case(False, True, {**PLAIN, "bias": STRONG}),
    "estimated, weak, continuous": Case(False, False, {**PLAIN, "bias": WEAK, "reward": "continuous"}),
    "estimated, strong, continuous": Case(False, True, {**PLAIN, "bias": STRONG, "reward": "continuous"}),
    "known, strong, continuous": Case(True, True, {**PLAIN, "bias": STRONG, "reward": "continuous"}),
    "estimated, mixed columns, binary": Case(False, False, {**PLAIN, **MIXED, "bias": 1.0}),
}


# One repetition ------------------------------------------------------------------------------------------


@cache
def learned(case: str) -> Callable[[Any], np.ndarray]:
    """The policy to value: greedy on a reward model of rows that are never valued on."""
    log = fresh(Synthetic(**CASES[case].parameters), LEARNED_FROM, seed=999_999).log
    encoding = Encoding.fit(log)
    model = fit_rewards(encoding.design(log), log.A, log.R, log.row_weights, len(log.actions), 1.0)
    return lambda X: greedy(model.rewards(encoding.design(X)))


@cache
def truth(case: str) -> float:
    """The policy's true value."""
    return true_value(Synthetic(**CASES[case].parameters), learned(case), INTEGRATED).value


Asked = Sequence[tuple[str, str]]  # estimators and intervals


def asked_of(case: str) -> Asked:
    """What is asked of each log: every estimator, and the bounds for every n where propensities are known."""
    return [*((name, "normal") for name in ESTIMATORS), *(("ips", kind) for kind in FINITE if CASES[case].known)]


def repetition(case: str, n: int, number: int, asked: Asked) -> dict[str, tuple[float, float, float, bool]]:
    """Estimator and interval → value, low, high, trusted; all on the same rows with the same corrections."""
    log = fresh(Synthetic(**CASES[case].parameters), n, number, CASES[case].known).log
    h, corrections = learned(case)(log.X), nuisances(log, seed=number)

    def valued(estimator: str, interval: str) -> tuple[float, float, float, bool]:
        found = evaluate(
            h, log, estimator, LEVEL, interval=interval, allow_low_overlap=True, corrections=corrections, seed=number
        )
        return found.value, found.low, found.high, found.trusted

    return {one if kind == "normal" else f"{one}, {kind}": valued(one, kind) for one, kind in asked}


def value_chunk(case: str, n: int, numbers: range, asked: Asked | None = None) -> dict[str, Any]:
    """Sums over some repetitions, per estimator."""
    runs = [repetition(case, n, number, asked or asked_of(case)) for number in numbers]
    sums = {name: summed([run[name] for run in runs], truth(case)) for name in runs[0]}
    return {"truth": truth(case), "sums": sums}


def summed(found: list[tuple[float, float, float, bool]], true: float) -> dict[str, float]:
    """What adds up over repetitions: how many covered, were trusted, both; errors and widths."""
    value, low, high, trusted = (np.array(part) for part in zip(*found, strict=True))
    covered = (low <= true) & (true <= high)
    return {
        "runs": len(found),
        "covered": int(covered.sum()),
        "trusted": int(trusted.sum()),
        "covered_and_trusted": int((covered & trusted).sum()),
        "error": float(np.sum(value - true)),
        "squared_error": float(np.sum((value - true) ** 2)),
        "width": float(np.sum(high - low)),
    }


# The verdict ---------------------------------------------------------------------------------------------

VERDICT_SIZES = (500, 2_000)
NULLS = ("nothing to gain", "no better on the whole")
GAIN = "gain of three standard errors"
NOTHING: dict[str, Any] = {**PLAIN, "relevant": 0, "effect": 0.0, "bias": 1.0}
SOMETHING: dict[str, Any] = {**PLAIN, "shape": "step", "relevant": 2, "effect": 0.2, "bias": 1.0}


def verdict_run(kind: str, n: int, number: int) -> str:
    """The verdict of one log; propensities estimated.

    nothing to gain: no action is better than another; the policy is learned from half as many rows again. The other
    two: a mix of the best and the worst policy whose true gain over current practice is 0, or 3 standard errors.
    """
    parameters = Synthetic(**(NOTHING if kind == NULLS[0] else SOMETHING))
    log = fresh(parameters, n, number).log
    if kind == NULLS[0]:
        other = fresh(parameters, n // 2, 500_000 + number).log
        encoding = Encoding.fit(other)
        model = fit_rewards(encoding.design(other), other.A, other.R, other.row_weights, len(other.actions), 1.0)
        h = greedy(model.rewards(encoding.design(log)))
    else:
        h = mixed_policy(mixing_share(0.0 if kind == NULLS[1] else 3.0, n))(log.X)
    return worth(h, log, level=LEVEL, allow_low_overlap=True, seed=number).verdict.kind  # as `ponn evaluate` says it


def mixed_policy(share: float) -> Callable[[Any], np.ndarray]:
    """The best action with probability `share`, otherwise the worst, by a model of rows that are never valued on."""
    good = something_learned()
    return lambda X: share * greedy(good(X)) + (1 - share) * greedy(-good(X))


@cache
def something_learned() -> Callable[[Any], np.ndarray]:
    """Expected rewards by a model of 20,000 other rows."""
    log = fresh(Synthetic(**SOMETHING), 10 * LEARNED_FROM, seed=999_999).log
    encoding = Encoding.fit(log)
    model = fit_rewards(encoding.design(log), log.A, log.R, log.row_weights, len(log.actions), 1.0)
    return lambda X: model.rewards(encoding.design(X))


@cache
def mixing_share(errors: float, n: int) -> float:
    """The share of the best action at which the true gain is so many standard errors of n rows.

    Gain and standard error depend on the share: a few fixed-point steps settle it.
    """
    parameters = Synthetic(**SOMETHING)
    practice = practice_value(parameters)
    best, worst = (true_value(parameters, mixed_policy(one), INTEGRATED).value for one in (1.0, 0.0))
    share = (practice - worst) / (best - worst)
    for _ in range(4 if errors else 0):
        error = typical_error(share, n)
        share = (practice + errors * error - worst) / (best - worst)
    if not 0 <= share <= 1:
        raise ValueError(f"no mix gains {errors} standard errors at n = {n}: share {share:.3f}")
    return float(share)


def practice_value(parameters: Synthetic) -> float:
    """The true value of current practice, integrated like a policy's."""
    from ponn.simulate.synthetic import PIECE, draw_sample, row_generators

    found, rng = mechanism(parameters), row_generators(parameters, 1)[0]
    samples = (draw_sample(found, PIECE, rng) for _ in range(INTEGRATED // PIECE))
    return float(np.mean([np.mean(np.sum(found.propensities(one) * found.expected(one), axis=1)) for one in samples]))


def typical_error(share: float, n: int) -> float:
    """The mean standard error of the paired difference over 40 logs."""
    errors = []
    for number in range(40):
        log = fresh(Synthetic(**SOMETHING), n, 700_000 + number).log
        found = worth(mixed_policy(share)(log.X), log, level=LEVEL, allow_low_overlap=True, seed=number)
        errors.append(found.verdict.difference.standard_error)
    return float(np.mean(errors))


def verdict_chunk(kind: str, n: int, numbers: range) -> dict[str, Any]:
    """How often each verdict was given."""
    said = [verdict_run(kind, n, number) for number in numbers]
    return {"counts": {one: said.count(one) for one in ("better", "not better", "not enough evidence")}}


# The bootstrap -------------------------------------------------------------------------------------------

# Each log has its propensities estimated 200 times: 20 s of one core at n = 500. So there are fewer logs of one size.
BOOTSTRAP_CASES = ("estimated, weak, binary", "estimated, strong, binary", "estimated, mixed columns, binary")
BOOTSTRAP_REPETITIONS, BOOTSTRAP_CHUNK = 100, 5


def bootstrap_chunk(case: str, n: int, numbers: range) -> dict[str, Any]:
    """Sums over some repetitions of dr with its two intervals."""
    return value_chunk(case, n, numbers, [("dr", "normal"), ("dr", "bootstrap")])


def bootstrap_tasks() -> "Iterator[Task]":
    """Every chunk, the cases in turn."""
    steps = range(OFFSET, OFFSET + BOOTSTRAP_REPETITIONS, BOOTSTRAP_CHUNK)
    yield from (("bootstrap", case, SIZES[0], first, BOOTSTRAP_CHUNK) for first in steps for case in BOOTSTRAP_CASES)


# All of it -----------------------------------------------------------------------------------------------

Task = tuple[str, str, int, int, int]  # what, case, n, number of the first log, logs
CHUNKS: dict[str, Callable[[str, int, range], dict[str, Any]]] = {
    "value": value_chunk,
    "verdict": verdict_chunk,
    "bootstrap": bootstrap_chunk,
}


def tasks(repetitions: int, offset: int) -> Iterator[Task]:
    """Every chunk, the small sizes first; of a size all cases in turn, so that a stopped study has some of each."""
    steps = [(offset + done, min(CHUNK, repetitions - done)) for done in range(0, repetitions, CHUNK)]
    for n in SIZES:
        yield from (("value", case, n, *step) for step in steps for case in CASES)
        if n in VERDICT_SIZES:
            yield from (("verdict", kind, n, *step) for kind in (*NULLS, GAIN) for step in steps)


KEYS = ("what", "case", "n", "first", "repetitions")


def run(task: Task) -> dict[str, Any]:
    """One chunk."""
    what, case, n, first, repetitions = task
    found = CHUNKS[what](case, n, range(first, first + repetitions))
    return dict(zip(KEYS, task, strict=True)) | found | {"library": (commit()["hash"] or "")[:7]}


def key(found: dict[str, Any]) -> Task:
    """The task that gave a result."""
    what, case, n, first, repetitions = (found[name] for name in KEYS)
    return what, case, n, first, repetitions


def saved(path: Path) -> dict[Task, dict[str, Any]]:
    """Chunks done before."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {key(found): found for found in map(json.loads, lines)}


def totals(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Coverage, refusals, bias, error and width per case, size and estimator; verdicts per kind and size."""
    values: dict[tuple[str, int, str], dict[str, float]] = {}
    verdicts: dict[tuple[str, int], dict[str, int]] = {}
    libraries = set()
    for one in found:
        libraries.add(one["library"])
        if one["what"] == "verdict":
            add_to(verdicts.setdefault((one["case"], one["n"]), {}), one["counts"])
            continue
        for name, sums in one["sums"].items():
            add_to(values.setdefault((one["case"], one["n"], name), {}), sums)
    return {
        "libraries": sorted(libraries),  # the commits whose code was measured
        "values": [
            {"case": case, "n": n, "estimator": name, **rates(sums)} for (case, n, name), sums in values.items()
        ],
        "verdicts": [{"kind": kind, "n": n, **counts} for (kind, n), counts in verdicts.items()],
    }


def add_to(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Add every number to its sum."""
    for name, number in more.items():
        total[name] = total.get(name, 0) + number


def rates(sums: dict[str, float]) -> dict[str, float]:
    """Sums over repetitions as shares and means."""
    runs, trusted = sums["runs"], sums["trusted"]
    bias = sums["error"] / runs
    return {
        "repetitions": runs,
        "refused": 1 - trusted / runs,
        "coverage": sums["covered_and_trusted"] / trusted if trusted else float("nan"),
        "coverage_with_refused": sums["covered"] / runs,
        "bias": bias,
        "bias_error": float(np.sqrt(max(sums["squared_error"] / runs - bias**2, 0.0) / runs)),
        "rmse": float(np.sqrt(sums["squared_error"] / runs)),
        "width": sums["width"] / runs,
    }


def bars(found: dict[str, Any]) -> dict[str, Any]:
    """What must hold, and whether it does."""
    small = SIZES[0]
    normal = [one for one in found["values"] if one["estimator"] == "dr"]
    usual = [one for one in normal if not (CASES[one["case"]].strong and one["n"] == small)]
    finite = [one for one in found["values"] if one["estimator"].startswith("ips, ")]
    outside = [one for one in usual if not 0.93 <= one["coverage"] <= 0.97]
    refused = [one for one in usual if one["refused"] > 0.05]
    return {
        "dr covers 93 to 97 %": {"holds": not outside, "cells": len(usual), "outside": outside},
        "at most 5 % refused": {"holds": not refused, "above": refused},
        "finite-sample bounds cover 95 %": {"holds": held(one["coverage_with_refused"] >= 0.95 for one in finite)},
        "better is wrong in at most 5 %": {
            "shares": {f"{one['kind']}, n = {one['n']}": better_share(one) for one in nulls(found)},
            "holds": held(better_share(one) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / told(one)) for one in nulls(found)),
        },
        "better is said in 80 % at three standard errors": {
            "shares": {f"n = {one['n']}": better_share(one) for one in gains(found)},
            "holds": held(better_share(one) >= 0.8 for one in gains(found)),
        },
    }


def held(each: Iterable[bool]) -> bool | None:
    """Do all hold? None where there is nothing to look at yet."""
    looked_at = [bool(one) for one in each]
    return all(looked_at) if looked_at else None


def nulls(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Verdicts of logs in which the policy is no better."""
    return [one for one in found["verdicts"] if one["kind"] in NULLS]


def gains(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Verdicts of logs in which it is."""
    return [one for one in found["verdicts"] if one["kind"] == GAIN]


def told(one: dict[str, Any]) -> int:
    """Verdicts given."""
    return sum(one[kind] for kind in ("better", "not better", "not enough evidence"))


def better_share(one: dict[str, Any]) -> float:
    """How often "better" was said."""
    return one["better"] / told(one)


def table(found: dict[str, Any]) -> str:
    """The results for people, in Markdown."""
    lines = ["# Intervals and verdicts against the truth", "", "Nominal 95 %. Written by `interval_coverage.py`."]
    lines += [f"Commits whose code was measured: {', '.join(found['libraries'])}.", ""]
    lines += [
        "| world | rows | estimator | covers | refused | bias | rmse | width | logs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found["values"]:
        cells = (one["case"], f"{one['n']:,}", one["estimator"], f"{one['coverage']:.1%}", f"{one['refused']:.1%}")
        numbers = (f"{one['bias']:+.4f} ± {1.96 * one['bias_error']:.4f}", f"{one['rmse']:.4f}", f"{one['width']:.4f}")
        lines.append(f"| {' | '.join((*cells, *numbers, str(one['repetitions'])))} |")
    return "\n".join(lines + (verdict_lines(found) if found["verdicts"] else [])) + "\n"


def verdict_lines(found: dict[str, Any]) -> list[str]:
    """The verdicts, and what must hold, in Markdown."""
    lines = ["", "| verdict | rows | better | not better | not enough evidence |", "|---|---|---|---|---|"]
    for one in found["verdicts"]:
        shares = (f"{one[kind] / told(one):.1%}" for kind in ("better", "not better", "not enough evidence"))
        lines.append(f"| {one['kind']} | {one['n']:,} | {' | '.join(shares)} |")
    lines += ["", "| must hold | holds |", "|---|---|"]
    said = {True: "yes", False: "no", None: "not measured yet"}
    return lines + [f"| {name} | {said[one['holds']]} |" for name, one in bars(found).items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50 repetitions, nothing is written")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tables-only", action="store_true", help="only write the tables of what is finished")
    parser.add_argument("--bootstrap", action="store_true", help="the bootstrap instead, fewer logs, its own table")
    chosen = parser.parse_args()
    name = "interval_coverage_bootstrap" if chosen.bootstrap else "interval_coverage"
    started, path = now(), None if chosen.quick else RESULTS / f"{name}_runs.jsonl"
    done = saved(path) if path else {}
    whole = bootstrap_tasks() if chosen.bootstrap else tasks(REPETITIONS, OFFSET)
    asked = list(tasks(50, OFFSET_OF_QUICK) if chosen.quick else whole)
    # products of small matrices on several threads would take 4.6 times the processor time
    with ProcessPoolExecutor(chosen.workers, initializer=threadpool_limits, initargs=(1,)) as pool:
        left = [] if chosen.tables_only else [task for task in asked if task not in done]
        for number, found in enumerate(pool.map(run, left), len(done) + 1):
            done[key(found)] = found
            print(f"{number} of {len(asked)}: {key(found)}", flush=True)
            if path:
                with path.open("a") as file:
                    file.write(json.dumps(found) + "\n")
    result = totals(done[task] for task in asked if task in done)
    print(table(result))
    if path:
        measured = result if chosen.bootstrap else {**result, "bars": bars(result)}
        write_record(name, measured, seed=SEED, started=started)
        (RESULTS / f"{name}.md").write_text(table(result))


if __name__ == "__main__":
    main()
