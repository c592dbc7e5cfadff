"""What attacks on a policy file bring: reconstruction, membership, outcomes; and what protection costs.

Usage: python benchmarks/reliability/privacy_attacks.py [--quick]
Writes benchmarks/results/reliability/privacy_attacks.json; about 10 minutes on two cores.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tests/support")]

import ponn  # noqa: E402
from attacks import (  # noqa: E402
    Advantage,
    by_shadow,
    differencing,
    log_of,
    membership_by_cells,
    membership_by_numbers,
    named_in,
    numbers_in,
    outcome_inference,
    patients,
    rebuilt_rows,
    single_people_in_cells,
    told,
    with_old_sketch,
)
from ponn.log.acquaintance import acquaintance  # noqa: E402
from ponn.simulate.catalogue import world  # noqa: E402
from record import RESULTS, now, write_record  # noqa: E402

SEED = 1
METHODS: dict[str, dict[str, Any]] = {
    "ponn-dr": {},
    "ponn-b": {},
    "lr-l1": {},
    "direct-forest": {},
    "ipw-forest": {},
}


def shown(found: Advantage) -> list[float]:
    """In the record: value, standard error, people."""
    return [round(found.value, 4), round(found.error, 4), found.m]


def described(policy: ponn.Policy) -> Any:
    """The description in its file."""
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder) / "p.ponn")
        return told(Path(folder) / "p.ponn")


def fingerprints() -> dict[str, Any]:
    """Attacks 1 and 2 on a file of version 0.1 and on one of now."""
    log, others = log_of(patients(2_000, 0)), log_of(patients(2_000, 1))
    policy = ponn.learn(log, "logging")
    files = {"0.1": {"provenance": with_old_sketch(policy, log)}, "now": described(policy)}
    return {
        name: {
            "rows rebuilt": rebuilt_rows(file, log),
            "membership by sketch": shown(membership_by_numbers(file, log, others)),
        }
        for name, file in files.items()
    }


def seals(people: int) -> dict[str, Any]:
    """Attack 3, by rows of the log."""
    return {str(n): shown(differencing(n, people, 10_000 * n)) for n in (100, 300, 1_000, 3_000)}


def rare_cells() -> dict[str, Any]:
    """Attack 4: names that one or a few people have, and exact laboratory values."""
    found = {}
    for min_cell in (1, 10):
        columns = patients(1_000, 3, noise=2)
        rng = np.random.default_rng(0)
        names = [f"diagnosis {i:03d}" for i in range(30)]
        columns["diagnosis"] = np.where(rng.random(1_000) < 0.05, rng.choice(names, 1_000), "common")
        policy = ponn.learn(log_of(columns), "lr-l1", min_cell=min_cell, bins="quantile", max_levels=20)
        file, there = described(policy), np.isin(names, columns["diagnosis"])
        labs, others = (np.concatenate([one["lab0"], one["lab1"]]) for one in (columns, patients(1_000, 4, noise=2)))
        found[str(min_cell)] = {
            "rare names in the file, of those in the log": [int(named_in(file, names)[there].sum()), int(there.sum())],
            "exact laboratory values in the file, of people in the log and of others": [
                int(numbers_in(file, one).sum()) for one in (labs, others)
            ],
        }
    return found


def models(policies: int, methods: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Attacks 5 to 7 on every kind of model, with and without the smallest cell."""
    found: dict[str, Any] = {}
    for method, settings in methods.items():
        for min_cell in (1, 10):
            found[f"{method}, min_cell {min_cell}"] = attacked(method, {**settings, "min_cell": min_cell}, policies)
            print(method, min_cell, found[f"{method}, min_cell {min_cell}"], flush=True)
    return found


def attacked(method: str, settings: dict[str, Any], policies: int) -> dict[str, Any]:
    """One kind of model: sums over several policies, each attacked with the next one as its shadow."""
    logs = [(log_of(patients(600, 100 + s, 6)), log_of(patients(600, 500 + s, 6))) for s in range(policies)]
    made = [ponn.learn(inside, method, seed=s, **settings) for s, (inside, _) in enumerate(logs)]
    first = [parts(inside, outside, s) for s, (inside, outside) in enumerate(logs)]
    cells, shadows, outcomes = [], [], []
    for s in range(policies):
        inside, outside = first[s]
        cells.append(membership_by_cells(made[s], inside, outside))
        sides = {"target": first[s], "shadow": first[s - 1]}
        shadows.append(by_shadow(made[s], made[s - 1], sides))
        outcomes.append(outcome_inference(made[s], inside, outside))
    inside, outside = (float(np.mean([one[i] for one in outcomes])) for i in (0, 1))
    error = float(np.sqrt(np.sum([one[2] ** 2 for one in outcomes])) / policies)
    return {
        "cells of one person": sum(single_people_in_cells(one) for one in made),
        "membership by cells": shown(together(cells)),
        "membership by shadow policies": shown(together(shadows)),
        "outcome said right: members, others, error": [round(one, 4) for one in (inside, outside, error)],
    }


def parts(inside: Any, outside: Any, seed: int) -> tuple[Any, Any]:
    """The rows that models learned from, and as many others; `ponn-dr` learns from all, others from these."""
    rows = inside.split_rows(0.7, seed)[0]
    return inside.take(rows), outside.take(rows)


def together(found: list[Advantage]) -> Advantage:
    """The mean of several."""
    error = float(np.sqrt(sum(one.error**2 for one in found)) / len(found))
    return Advantage(float(np.mean([one.value for one in found])), error, sum(one.m for one in found))


def recognition(trials: int) -> dict[str, Any]:
    """How often a log of n rows is known of which a share was learned from, by the file beside the policy file."""
    found: dict[str, Any] = {}
    for n in (100, 300, 1_000, 5_000):
        for share in (0.0, 0.02, 0.05, 0.1, 0.25, 0.5):
            hits = []
            for trial in range(trials if n < 5_000 else max(trials // 4, 1)):
                before, later = patients(n, trial, 1), patients(n, 10_000 + trial, 1)
                known = round(share * n)
                mixed = {name: np.concatenate([before[name][:known], later[name][known:]]) for name in before}
                hits.append(acquaintance(log_of(before), "x").known_share(log_of(mixed)) > 0.01)
            found[f"{n} rows, {share:.0%} known"] = [float(np.mean(hits)), len(hits)]
    return found


def cost(trees: int) -> dict[str, Any]:
    """True share of good actions by policies with leaves of 1, 3, 5 and 10 rows, and of the methods with networks."""
    found: dict[str, Any] = {}
    for name in ("pendigits", "satimage"):
        for seed in (0, 1):
            made = world(name, seed=seed)
            learned, test = made.part("train", "valid").log, made.part("test")
            for method in ("direct-forest", "ipw-forest", "ponn-b"):
                leaves: tuple[dict[str, Any], ...] = tuple(
                    {"leaf": leaf, "min_cell": 1, "trees": trees} for leaf in (1, 3, 5, 10)
                )
                for settings in leaves if "forest" in method else ({"min_cell": 1}, {"min_cell": 10}):
                    policy = ponn.learn(learned, method, seed=seed, **settings)
                    best = policy.predict_proba(test.log).argmax(axis=1)
                    value = float(test.expected[np.arange(len(best)), best].mean())
                    told_ = ", ".join(f"{one} {value_}" for one, value_ in settings.items())
                    found[f"{name} {seed}, {method}: {told_}"] = round(value, 4)
    return found


def intervals() -> dict[str, Any]:
    """Share of recommended actions whose expected reward has an interval, with and without the smallest cell."""
    found: dict[str, Any] = {}
    for name in ("breast-cancer", "satimage", "pendigits"):
        made = world(name, seed=0)
        rows = made.part("train", "valid").log
        rows = rows.take(np.arange(min(len(rows), 3_000)))
        whole = ponn.learn(rows, "ponn-b", min_cell=1)
        for min_cell in (1, 10):
            again = ponn.learn(rows, "logging", min_cell=min_cell)
            policy = replace(whole, companions={**whole.companions, "similar": again.companions["similar"]})
            X, test = policy.encoding.design(made.part("test").log), made.part("test").log
            A = policy.predict_proba(test).argmax(axis=1)
            low, _ = policy.expected_interval(X, A)
            there, supported = np.isfinite(low), np.asarray(policy.support_of(X, A))
            found[f"{name}, min_cell {min_cell}"] = {
                "of all": round(float(there.mean()), 4),
                "of those the log supports": round(float(there[supported].mean()), 4),
            }
    return found


def main() -> None:
    """Run all and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer trials; nothing is written")
    quick = parser.parse_args().quick
    started = now()
    measured: dict[str, Any] = {}
    for name, run in {
        "fingerprints in the file": fingerprints,
        "all rows but one known": lambda: seals(50 if quick else 400),
        "rare names and exact values": rare_cells,
        "recognition of logs": lambda: recognition(10 if quick else 60),
        "intervals there are": intervals,
        "models": lambda: models(2 if quick else 4, METHODS),
        "cost": lambda: cost(10 if quick else 30),
    }.items():
        measured[name] = run()
        print(json.dumps({name: measured[name]}, indent=1), flush=True)
    if not quick:
        print(write_record("privacy_attacks", measured, seed=SEED, started=started, folder=RESULTS / "reliability"))


if __name__ == "__main__":
    main()
