"""How fast is Step C's training step? Against phi(x, a) written out, the GEMM peak, in two processes, against obp.

k = 10 actions, D = 80 columns, policy layers of 100 and 100 sigmoid units, batches of 256, Adam, single precision. The
ways alternate within each turn, and the best turn of each is compared, which other work disturbed least: on a virtual
machine with nothing else running, turns of half a second differ by a factor of 1.6. Steps are those of `ponn.train`,
its shuffling included; the peak is the fastest single product.

The peer is NNPolicyLearner of obp 0.5.7 (off_policy_objective "ipw", solver adam) with the same layer sizes and batch,
both on one thread; --obp-python names an interpreter that can import it. Its network scores all actions from one pass
through its layers, ours from k passes (the first layer is the action's own): about nine times the arithmetic per row,
so where every row is rewarded three times obp's rows per second would be more than the machine's peak. Ours skips rows
without reward, whose gradient is 0. So two logs are compared: one where every row is rewarded, and one where a tenth
is, as where a good action is one of ten. obp leaves an epoch when its loss has fallen n_iter_no_change times in a row;
that is set out of reach, so that it sees all rows.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ponn.engine.passes import cores
from ponn.settings import Settings
from ponn.training.loop import Candidate, Problem, Rows, Run, thread_count
from ponn.training.many import train_many
from record import RESULTS, now, write_record

K, D, H, BATCH, ROWS = 10, 80, 100, 256, 4_096
CANDIDATES, WORKERS = 16, 2
PEER_ROWS, REWARDED = 16_384, {"all rewarded": 1.0, "a tenth rewarded": 0.1}
BARS = {"literal": 3.5, "peak": 0.42, "processes": 1.6, "obp, all rewarded": 3.0, "obp, a tenth rewarded": 3.0}
GEMM_SIZES = (512, 1_024, 2_048)
SETTINGS = Settings(batch=BATCH, watched=0)


def rows(n: int, seed: int, rewarded: float = 1.0) -> Rows:
    """Random rows, a share of them rewarded; the values do not matter for the speed."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    R = rng.uniform(0.1, 1, n) * (rng.random(n) < rewarded)
    return Rows(X, rng.integers(0, K, n), R, rng.uniform(1, 20, n), n)


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


class LiteralRun:
    """The literal network as one would train it: autograd and torch's fused Adam, a gather per batch."""

    def __init__(self, data: Rows, masks: np.ndarray):
        self.X, self.A = torch.tensor(data.X), torch.tensor(data.A)
        self.Rw = torch.tensor(data.R * data.w, dtype=torch.float32)
        self.network = LiteralNetwork(masks)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3, fused=True, weight_decay=2e-4)

    def pass_over_rows(self) -> float:
        """One epoch; returns the running loss."""
        total = torch.zeros(())
        for batch in torch.randperm(len(self.A)).tensor_split(len(self.A) // BATCH):
            log_loss = functional.cross_entropy(self.network(self.X[batch]), self.A[batch], reduction="none")
            loss = (self.Rw[batch] * log_loss).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach() * len(batch)
        return float(total) / len(self.A)


def pass_seconds(run: Run | LiteralRun, passes: int) -> float:
    """Mean time of a pass."""
    start = time.perf_counter()
    for _ in range(passes):
        run.pass_over_rows()
    return (time.perf_counter() - start) / passes


def step_seconds(run: Run | LiteralRun, passes: int) -> float:
    """Mean time of a step over some passes."""
    return pass_seconds(run, passes) / (ROWS // BATCH)


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
        runs = {"ours": Run(data, candidate), "literal": LiteralRun(data.train, candidate.masks)}
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


PEER = """
import json, sys, time
import numpy as np, torch
from obp.policy import NNPolicyLearner
torch.set_num_threads(1)
data, passes = np.load(sys.argv[1]), int(sys.argv[2])
def seconds(epochs):
    learner = NNPolicyLearner(
        n_actions=int(data["k"]), dim_context=data["X"].shape[1], off_policy_objective="ipw", activation="logistic",
        hidden_layer_size=tuple(data["hidden"].tolist()), batch_size=int(data["batch"]), solver="adam",
        max_iter=epochs, n_iter_no_change=10**9, random_state=0,
    )
    start = time.perf_counter()
    learner.fit(context=data["X"], action=data["A"], reward=data["R"], pscore=1 / data["w"])
    return time.perf_counter() - start
seconds(1)
print(json.dumps((seconds(1 + passes) - seconds(1)) / passes))
"""


def peer_pass_seconds(python: Path, data: Rows, passes: int) -> float:
    """Mean time of obp's pass over the rows, in a process of its own; its set-up is subtracted."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, X=data.X, A=data.A, R=data.R, w=data.w, k=K, hidden=[H, H], batch=BATCH)
        done = subprocess.run(
            [python, "-W", "ignore", "-c", PEER, path, str(passes)], stdout=subprocess.PIPE, text=True, check=True
        )
    return float(json.loads(done.stdout.splitlines()[-1]))


def peer_seconds(python: Path, turns: int, passes: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of a pass over the rows of a log, ours and obp's, by the share of rewarded rows."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, rewarded in REWARDED.items():
        data = rows(PEER_ROWS, seed, rewarded)
        found[name] = {"ours": [], "obp": []}
        with thread_count(1):
            run = Run(Problem(data, rows(BATCH, seed + 1), K), Candidate(half_masks(seed), SETTINGS, seed))
            run.pass_over_rows()  # warm
            for _ in range(turns):
                found[name]["ours"].append(pass_seconds(run, passes))
                found[name]["obp"].append(peer_pass_seconds(python, data, passes))
    return found


def verdict(
    by_threads: dict[int, dict[str, list[float]]], many: dict[str, list[float]], peer: dict[str, Any] | None
) -> dict[str, Any]:
    """Each bar, what was measured (the first two on all cores), and whether it holds; None where obp was absent."""
    found = by_threads[max(by_threads)]
    ours = min(found["ours"])
    measured = {
        "literal": min(found["literal"]) / ours,
        "peak": step_flops() / ours / max(found["peak"]),
        "processes": min(many["one"]) / min(many["two"]),
    }
    for name, seconds in (peer or {}).items():
        measured[f"obp, {name}"] = min(seconds["obp"]) / min(seconds["ours"])
    return {
        name: {"bar": bar, "measured": measured[name], "holds": measured[name] >= bar} if name in measured else None
        for name, bar in BARS.items()
    }


def show(
    by_threads: dict[int, dict[str, list[float]]], peer: dict[str, Any] | None, bars: dict[str, dict[str, Any] | None]
) -> None:
    for threads, found in by_threads.items():
        ours, literal, peak = min(found["ours"]), min(found["literal"]), max(found["peak"])
        print(
            f"{threads} threads: {1 / ours:.0f} steps/s, literal {1 / literal:.0f}; peak {peak / 1e9:.0f} GFLOP/s, "
            f"share {step_flops() / ours / peak:.0%}"
        )
    for name, found in (peer or {}).items():
        ours, theirs = (PEER_ROWS / min(found[way]) for way in ("ours", "obp"))
        print(f"{name}: {ours:,.0f} rows/s, obp {theirs:,.0f}")
    for name, bar in bars.items():
        outcome = "NOT MEASURED" if bar is None else "holds" if bar["holds"] else "MISSED"
        print(f"{name:>21}: {'' if bar is None else format(bar['measured'], '.2f')} (bar {BARS[name]}) {outcome}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="short, to see that it runs")
    parser.add_argument("--obp-python", type=Path, help="an interpreter with obp 0.5.7; without it obp is skipped")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    started = now()
    turns, passes, epochs = (1, 2, 2) if given.quick else (given.turns, 8, 20)
    by_threads = {threads: steps(turns, passes, threads, given.seed) for threads in sorted({1, cores()})}
    many = candidates_seconds(1 if given.quick else 3, epochs, given.seed)
    peer = None
    if given.obp_python:
        peer = peer_seconds(given.obp_python, 1 if given.quick else 3, 1 if given.quick else 4, given.seed)
    else:
        print("obp was NOT measured: give --obp-python", file=sys.stderr)
    bars = verdict(by_threads, many, peer)
    show(by_threads, peer, bars)
    measured = {
        "sizes": {"k": K, "D": D, "hidden": [H, H], "batch": BATCH, "rows": ROWS, "candidates": CANDIDATES},
        "flops_per_step": step_flops(),
        "seconds_per_step_and_peak_by_threads": by_threads,
        "candidates_seconds": many,
        "seconds_per_pass_beside_obp": peer,
        "bars": bars,
    }
    print(write_record("training_speed", measured, seed=given.seed, started=started, folder=given.results))


if __name__ == "__main__":
    main()
