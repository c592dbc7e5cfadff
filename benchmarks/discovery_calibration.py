"""Does the false-discovery control hold what it promises, and does Step B find what is there?

Four questions, all with estimated propensities:
1. parametric worlds of 10,000 x 100, 5 actions, 5 relevant features each with sd of r(a, X_i) = 0.10, every feature
   driving the logging: false-discovery proportion and power at 10 %;
2. the same without any relevant feature: how often is anything discovered;
3. XOR pairs among 50 features, 10,000 rows: how often is the pair found;
4. the breast-cancer world, 20 seeds: recall and precision against the features with true g(a, i) > 0, for the test at
   several rates and for the paper's threshold at several lambda1; and which rate and which lambda1 the validation loss
   of PONN-B would choose, one for all seeds.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import ponn
from ponn.log.encoding import Encoding
from ponn.methods import LAMBDA1, RATES
from ponn.settings import Settings
from ponn.simulate.synthetic import synthetic
from ponn.simulate.worlds import World
from ponn.steps.discovery import discoveries
from ponn.steps.pairs import pair_relevance
from ponn.steps.propensity import propensities
from ponn.steps.relevance import Relevance, relevance
from record import RESULTS, now, write_record

LAMBDAS = {"l1": (0.2, 0.3, 0.5, 0.7, 1.0), "l2": (0.005, 0.01, 0.03, 0.06, 0.1, 0.2)}


def step_b(world: World, loss: str = "l2") -> Relevance:
    """Step B with estimated propensities."""
    encoding = Encoding.fit(world.log)
    return relevance(world.log, encoding, propensities(world.log, encoding), Settings(loss=loss))


def score(found: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Share of what is there that was found, and share of what was found that is there."""
    hit = float((found & true).sum())
    return hit / max(true.sum(), 1), hit / found.sum() if found.any() else 1.0


def parametric(logs: int, bias: float) -> dict[str, Any]:
    """Question 1."""
    power, precision, null = [], [], []
    for seed in range(logs):
        world = synthetic(rows=10_000, features=100, actions=5, relevant=5, effect=0.1, bias=bias, seed=seed)
        p, true = step_b(world).tested(), world.relevance["l2"] > 0
        one, two = score(discoveries(p, 0.1), true)
        power.append(one)
        precision.append(two)
        null.append([float(np.mean(p[~true] < level)) for level in (0.001, 0.01, 0.05, 0.5)])
    false = 1 - np.array(precision)
    return {
        "bias": bias,
        "false_discovery_proportion": float(false.mean()),
        "standard_error": float(false.std(ddof=1) / np.sqrt(logs)),
        "power": float(np.mean(power)),
        "null_p_below_0.001_0.01_0.05_0.5": np.mean(null, axis=0).tolist(),
        "raw": {"power": power, "precision": precision},
    }


def nothing_there(logs: int) -> dict[str, Any]:
    """Question 2: the chance of any discovery is then the false-discovery rate."""
    some = []
    for seed in range(logs):
        world = synthetic(rows=10_000, features=100, actions=5, relevant=0, xor_pairs=0, seed=seed)
        some.append(bool(discoveries(step_b(world).tested(), 0.1).any()))
    return {"logs_with_a_discovery": sum(some), "logs": logs}


def xor(logs: int) -> dict[str, Any]:
    """Question 3: an action's pair is found when it is among the discoveries at 10 %."""
    found = total = 0
    logs_found = 0
    for seed in range(logs):
        world = synthetic(rows=10_000, features=50, actions=3, relevant=1, effect=0.2, xor_pairs=1, seed=seed)
        encoding = Encoding.fit(world.log)
        table = pair_relevance(world.log, encoding, propensities(world.log, encoding)).table(most=50).to_pylist()
        hits = 0
        for a, action in enumerate(world.log.actions):
            pair = set(np.array(world.log.features)[world.causes[a] & (world.relevance["l2"][a] == 0)])
            named = [one for one in table if one["action"] == action and one["q_value"] < 0.1]
            hits += any({one["feature"], one["other"]} == pair for one in named)
        found, total = found + hits, total + 3
        logs_found += hits == 3
    return {"pairs_found": found, "pairs": total, "logs_with_all_three": logs_found, "logs": logs}


def breast_cancer(seeds: int) -> dict[str, Any]:
    """Question 4."""
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        world = ponn.simulate.world("breast-cancer", seed=seed)
        true = world.relevance["l2"] > 0
        for loss, lambdas in LAMBDAS.items():
            found = step_b(world, loss)
            for value in lambdas:
                chosen = found.under(Settings(loss=loss, lambda1=value)).selected
                scores.setdefault(f"threshold {loss} lambda1={value}", []).append(score(chosen, true))
        for rate in RATES:
            scores.setdefault(f"fdr {rate}", []).append(score(discoveries(found.tested(), rate), true))
    means = {name: np.mean(one, axis=0).round(3).tolist() for name, one in scores.items()}
    return {"recall_precision": means, "valid_loss": validation_losses(seeds), "sets": true_sets(), "raw": scores}


def validation_losses(seeds: int) -> dict[str, float]:
    """The mean validation loss of PONN-B under each rule, its other settings as they come."""
    rules = {f"threshold l2 lambda1={value}": {"lambda1": value} for value in LAMBDA1["l2"]}
    rules |= {f"fdr {rate}": {"select": "fdr", "fdr": rate} for rate in RATES}
    losses: dict[str, list[float]] = {name: [] for name in rules}
    for seed in range(seeds):
        log = ponn.simulate.world("breast-cancer", seed=seed).log
        for name, rule in rules.items():
            policy = ponn.learn(log, "ponn-b", seed=seed, activation="relu", **rule)
            losses[name].append(policy.provenance["training"]["valid_loss"])
    return {name: float(np.mean(one)) for name, one in losses.items()}


def true_sets() -> dict[str, dict[str, list[str]]]:
    """Per regimen, the features that cause its success and those that only go along with a cause."""
    world = ponn.simulate.world("breast-cancer", rows=1_000)
    names = np.array(world.log.features)
    relevant = world.relevance["l2"] > 0
    return {
        action: {
            "causes": names[world.causes[a]].tolist(),
            "proxies": names[relevant[a] & ~world.causes[a]].tolist(),
        }
        for a, action in enumerate(world.log.actions)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    started = now()
    with threadpool_limits(1):
        measured: dict[str, Any] = {"breast_cancer": breast_cancer(given.seeds)}
        for name, value in measured["breast_cancer"]["recall_precision"].items():
            print(f"breast cancer, {name}: recall {value[0]:.3f}, precision {value[1]:.3f}", flush=True)
        for name, loss in measured["breast_cancer"]["valid_loss"].items():
            print(f"breast cancer, {name}: validation loss {loss:.4f}", flush=True)
        measured["xor"] = xor(given.logs)
        print("xor:", measured["xor"], flush=True)
        measured["parametric"] = [parametric(given.logs, bias) for bias in (0.5, 1.0)]
        for one in measured["parametric"]:
            print({key: value for key, value in one.items() if key != "raw"}, flush=True)
        measured["nothing_there"] = nothing_there(given.logs)
        print("nothing there:", measured["nothing_there"], flush=True)
    print(write_record("discovery_calibration", measured, seed=0, started=started, folder=given.results))


if __name__ == "__main__":
    main()
