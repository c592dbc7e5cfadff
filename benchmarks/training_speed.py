"""How fast is Step C's training step? Against phi(x, a) written out, against the GEMM peak, and in two processes.

k = 10 actions, D = 80 columns, policy layers of 100 and 100 sigmoid units, batches of 256, Adam, single precision. The
ways alternate within each turn, medians are compared. Steps are those of `ponn.train`, its shuffling included.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ponn.settings import Settings
from ponn.train import Candidate, Problem, Rows, Run, available_cores, thread_count, train_many
from record import RESULTS, now, write_record

K, D, H, BATCH, ROWS = 10, 80, 100, 256, 4_096
CANDIDATES, WORKERS = 16, 2
BARS = {"literal": 3.5, "peak": 0.42, "processes": 1.6}  # all: at least
GEMM_SIZES = (512, 1_024, 2_048)
SETTINGS = Settings(batch=BATCH, watched=0)


def rows(n: int, seed: int) -> Rows:
    """Random rows, all rewarded; the values do not matter for the speed."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    return Rows(X, rng.integers(0, K, n), rng.uniform(0.1, 1, n), rng.uniform(1, 20, n), n)


def half_masks(seed: int) -> np.ndarray:
    """About half of the columns for each action."""
    return np.random.default_rng(seed).random((K, D)) < 0.5


class LiteralNetwork(nn.Module):
    """Section 4.3 word by word: phi(x, a) with k * D entries is made for every row and action."""

    def __init__(self, masks: np.ndarray):
        super().__init__()
        self.f = torch.tensor(masks, dtype=torch.float32)
        self.layers = nn.Sequential(nn.Linear(K * D, H), nn.Sigmoid(), nn.Linear(H, H), nn.Sigmoid())
        self.w = nn.Linear(H, 1)

    def forward(self, X: Tensor) -> Tensor:
        """Scores [n, k]."""
        phi = torch.zeros(len(X), K, K, D)
        actions = torch.arange(K)
        phi[:, actions, actions] = X[:, None] * self.f  # block a of phi(x, a) is x * f_a
        return self.w(self.layers(phi.view(len(X), K, K * D)))[:, :, 0]


def literal_run(data: Problem, candidate: Candidate) -> Run:
    """The same loop with the literal network in place of ours."""
    run = Run(data, candidate)
    network = LiteralNetwork(candidate.masks)
    run.network = network  # type: ignore[assignment]
    run.optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True, weight_decay=2e-4)
    return run


def step_seconds(run: Run, passes: int) -> float:
    """Mean time of a step over some passes."""
    start = time.perf_counter()
    for _ in range(passes):
        run.pass_over_rows()
    return (time.perf_counter() - start) / (passes * (ROWS // BATCH))


def step_flops() -> int:
    """Multiplications and additions of the products of a step: forward, and backward to what has a gradient."""
    first, second, last = BATCH * D * K * H, BATCH * K * H * H, BATCH * K * H
    return 2 * (2 * first + 3 * second + 3 * last)  # X needs no gradient


def gemm_peak(seconds: float) -> float:
    """The highest rate of square products in FLOP/s, each size for some seconds."""
    best = 0.0
    for size in GEMM_SIZES:
        a, b, out = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def steps(turns: int, passes: int, threads: int, seed: int) -> dict[str, list[float]]:
    """Seconds per step of both ways and the GEMM peak, in turns."""
    data = Problem(rows(ROWS, seed), rows(BATCH, seed + 1), K)
    candidate = Candidate(half_masks(seed), SETTINGS, seed)
    found: dict[str, list[float]] = {"ours": [], "literal": [], "peak": []}
    with thread_count(threads):
        runs: dict[str, Run] = {"ours": Run(data, candidate), "literal": literal_run(data, candidate)}
        for run in runs.values():
            step_seconds(run, 1)  # warm
        for _ in range(turns):
            found["ours"].append(step_seconds(runs["ours"], passes))
            found["literal"].append(step_seconds(runs["literal"], max(1, passes // 4)))
            found["peak"].append(gemm_peak(0.05 * passes))
    return found


def candidates_seconds(turns: int, epochs: int, seed: int) -> dict[str, list[float]]:
    """Sixteen candidates in one process, and in two; the processes are started before."""
    data = Problem(rows(ROWS, seed), rows(BATCH, seed + 1), K)
    settings = Settings(batch=BATCH, watched=0, epochs=epochs, patience=epochs)
    candidates = [Candidate(half_masks(one), settings, one) for one in range(CANDIDATES)]
    ways: dict[str, Callable[[], Any]] = {
        "one": lambda: train_many(data, candidates, workers=1),
        "two": lambda: train_many(data, candidates, workers=WORKERS),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    short = Settings(epochs=1, watched=0)
    train_many(data, [Candidate(one.masks, short, one.seed) for one in candidates], workers=WORKERS)  # warm
    for _ in range(turns):
        for way, work in ways.items():
            start = time.perf_counter()
            work()
            found[way].append(time.perf_counter() - start)
    return found


def verdict(by_threads: dict[int, dict[str, list[float]]], many: dict[str, list[float]]) -> dict[str, Any]:
    """Each bar on all cores, what was measured, and whether it holds."""
    middle = {way: median(found) for way, found in by_threads[max(by_threads)].items()}
    measured = {
        "literal": middle["literal"] / middle["ours"],
        "peak": step_flops() / middle["ours"] / middle["peak"],
        "processes": median(many["one"]) / median(many["two"]),
    }
    return {
        name: {"bar": bar, "measured": measured[name], "holds": measured[name] >= bar} for name, bar in BARS.items()
    }


def show(by_threads: dict[int, dict[str, list[float]]], bars: dict[str, Any]) -> None:
    for threads, found in by_threads.items():
        ours, literal, peak = (median(found[way]) for way in ("ours", "literal", "peak"))
        print(
            f"{threads} threads: {1 / ours:.0f} steps/s, literal {1 / literal:.0f}; peak {peak / 1e9:.0f} GFLOP/s, "
            f"share {step_flops() / ours / peak:.0%}"
        )
    for name, bar in bars.items():
        print(f"{name:>9}: {bar['measured']:.2f} (bar {bar['bar']}) {'holds' if bar['holds'] else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="short, to see that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    started = now()
    turns, passes, epochs = (1, 2, 2) if given.quick else (given.turns, 20, 20)
    by_threads = {threads: steps(turns, passes, threads, given.seed) for threads in sorted({1, available_cores()})}
    many = candidates_seconds(1 if given.quick else 3, epochs, given.seed)
    bars = verdict(by_threads, many)
    show(by_threads, bars)
    measured = {
        "sizes": {"k": K, "D": D, "hidden": [H, H], "batch": BATCH, "rows": ROWS, "candidates": CANDIDATES},
        "flops_per_step": step_flops(),
        "seconds_per_step_and_peak_by_threads": by_threads,
        "candidates_seconds": many,
        "bars": bars,
    }
    print(write_record("training_speed", measured, seed=given.seed, started=started, folder=given.results))


if __name__ == "__main__":
    main()
