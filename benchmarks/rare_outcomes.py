"""Is the verdict right where hardly any outcome differs?

Three actions that all succeed equally often, so that no policy is better than another; a fixed policy is valued as
`ponn evaluate` does it (dr, cross-fitted), and current practice beside it. How often does the interval hold the truth,
and how often is "better" said though nothing is gained? Side by side on the same logs: without room for outcomes that
were not seen (UNSEEN = 0), with more and more room, and with two other ways to say how much such an outcome moves:

    flat     (E u^2 / E|u|)^2       the square of how much rows move on average
    by |u|   E|u|^3 / E|u|          what ponn does
    by u^2   E u^4 / E u^2

In mixed logs half of the rows, told by a column, succeed as often as the others fail, and there the policy is current
practice. Nominally the interval holds the truth in 95 % of the logs, and "better" is wrong in 5 %.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

import ponn
from ponn.evaluation.estimators import Valuation, logged_value, standard_error
from ponn.evaluation.intervals import UNSEEN, by_group, surprise_of, t_quantile
from ponn.evaluation.valuation import Asked, nuisances, scored
from ponn.evaluation.verdict import both_sides
from ponn.log.log import Log
from record import now, write_record

LEVEL = 0.95
LOGS = 400
RATES = (0.5, 0.9, 0.98, 0.99, 0.02)
SIZES = (300, 1_000, 3_000)
NARROW = 1e-3  # half an interval that says more than any of these logs can
MOVED: dict[str, Callable[[np.ndarray], float]] = {
    "flat": lambda u: float((np.mean(u**2) / np.mean(np.abs(u))) ** 2),
    "by |u|": lambda u: float(np.mean(np.abs(u) ** 3) / np.mean(np.abs(u))),
    "by u^2": lambda u: float(np.mean(u**4) / np.mean(u**2)),
}
RULES = (("by |u|", 0.0), *product(("by |u|",), (1.0, UNSEEN, 4.0)), ("flat", UNSEEN), ("by u^2", UNSEEN))


@dataclass(frozen=True)
class Case:
    """Logs of one kind."""

    biased: bool  # actions by a softmax of two columns, propensities estimated; else at random, propensities known
    rate: float  # of success
    rows: int
    mixed: bool = False

    @property
    def truth(self) -> float:
        """The value of every policy."""
        return 0.5 if self.mixed else self.rate


CASES = tuple(Case(*one) for one in (*product((False, True), RATES, SIZES), *product((True,), (0.98,), SIZES, (True,))))


def drawn(case: Case, number: int) -> tuple[Log, np.ndarray] | None:
    """A log, and the policy's probabilities in its rows; None where all outcomes are alike, which no log may be."""
    rng, n = np.random.default_rng([case.rows, round(1_000 * case.rate), case.biased, number]), case.rows
    X = rng.normal(size=(n, 3))
    logits = np.column_stack([X[:, 0], -X[:, 0] / 2, X[:, 1]]) * case.biased
    p0 = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    A = (p0.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    columns = {f"x{i}": pa.array(x) for i, x in enumerate(X.T)}
    other = case.mixed & (X[:, 2] > 0)  # [n]
    R = (rng.random(n) < np.where(other, 1 - case.rate, case.rate)) * 1.0
    if np.ptp(R) == 0:
        return None
    columns |= {"action": pa.array(np.array(["a", "b", "c"])[A]), "reward": pa.array(R)}
    known = {} if case.biased else {"p": pa.array(p0[np.arange(n), A])}
    roles = {"propensity": "p"} if known else {}
    log = ponn.read_log(pa.table(columns | known), action="action", reward="reward", reward_range=(0.0, 1.0), **roles)
    return log, np.where(other[:, None], p0, np.eye(3)[(X[:, 0] > 0) * 1 + (X[:, 1] > 0.5) * 1])


def looked_at(case: Case, number: int) -> np.ndarray | None:
    """By rule: value held, value narrow, "better" said, half the width; None for a log that cannot be valued."""
    made = drawn(case, number)
    if made is None:
        return None
    log, h = made
    one = scored(h, log, nuisances(log, seed=0))
    if one.doubts("dr"):
        return None
    found = one.valuation(Asked())
    gain = found - logged_value(log.R, log.weight)
    told = []
    for how, unseen in RULES:
        reach, reach_of_gain = (
            half_width(part, how, unseen, level) for part, level in ((found, LEVEL), (gain, both_sides(LEVEL)))
        )
        told.append([abs(found.value - case.truth) <= reach, reach < NARROW, gain.value > reach_of_gain, reach])
    return np.array(told, float)  # [rules, 4]


def half_width(found: Valuation, how: str, unseen: float, level: float) -> float:
    """Half of a normal interval by one of the rules."""
    assert found.moves is not None
    u, size, e = by_group(found.moves, None)
    room = surprise_of(u, size, e) * np.sqrt(unseen * MOVED[how](u)) / len(u)
    return t_quantile(level, found.psi, None) * float(np.hypot(standard_error(found.psi), room))


def judged(case: Case, logs: int) -> dict[str, Any]:
    """One kind of logs under every rule."""
    with threadpool_limits(1):
        found = [one for number in range(logs) if (one := looked_at(case, number)) is not None]
    held, narrow, better, reach = np.mean(found, axis=0).T  # [rules] each
    by_rule = {
        f"{how}, {unseen:g}": {"holds": h, "narrow": s, "better": b, "half width": r}
        for (how, unseen), h, s, b, r in zip(RULES, held, narrow, better, reach, strict=True)
    }
    return {**asdict(case), "logs": len(found), "left out": logs - len(found), "rules": by_rule}


def main() -> None:
    """Judge all cases and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--logs", type=int, default=LOGS)
    given, started, cases = parser.parse_args(), now(), []
    with ProcessPoolExecutor(given.workers) as pool:
        for one in pool.map(judged, CASES, [given.logs] * len(CASES)):
            cases.append(one)
            told = {rule: " ".join(f"{part:.3f}" for part in found.values()) for rule, found in one["rules"].items()}
            print({name: one[name] for name in ("biased", "rate", "rows", "mixed", "logs")}, told, flush=True)
    write_record("rare_outcomes", {"cases": cases}, seed=0, started=started)


if __name__ == "__main__":
    main()
