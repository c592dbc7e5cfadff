"""The training loop: it learns, stops, restores, repeats itself, and never returns a number it does not trust."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ponn.errors import PonnError
from ponn.policy.inference import scores
from ponn.settings import Settings
from ponn.simulate.worlds import softmax
from ponn.training.loop import (
    Adam,
    Candidate,
    Problem,
    Rows,
    Run,
    thread_count,
    train,
)
from ponn.training.many import numbered, train_many, worker_died
from training_problems import QUICK, candidate, problem, separable


def greedy_accuracy(trained, rows):
    return float(np.mean(scores(trained.weights, rows.X, trained.architecture).argmax(1) == rows.X[:, :3].argmax(1)))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"activation": "relu"},
        {"hidden": (), "criterion": "ips", "variance": 0.5, "clip": 50.0},  # poem
        {"hidden": (), "criterion": "ips", "variance": 0.5, "l1": 1e-4},  # poem-l1
        {"criterion": "snips", "baseline": 0.5},  # banditnet
    ],
)
def test_a_separable_world_is_learned(change):
    """Untrained, greedy accuracy is about 1/3; a sign error or a wrong gather leaves it there or below."""
    settings = replace(QUICK, learning_rate=0.05, epochs=60, **change)
    trained = train(problem(600), candidate(settings))
    assert greedy_accuracy(trained, separable(1_000, seed=9)) > 0.85
    assert trained.valid_loss < trained.history[0].valid_loss


def test_a_reward_network_learns_the_chance_of_a_reward():
    """k = 1, criterion logistic: from 4,000 rows, chances within 0.06 of the truth (standard error about 0.02)."""
    rng = np.random.default_rng(0)

    def rows(n):
        X = rng.normal(size=(n, 2)).astype(np.float32)
        chance = 1 / (1 + np.exp(-(1.5 * X[:, 0] - 0.5)))
        return Rows(X, np.zeros(n, int), (rng.random(n) < chance).astype(float), np.ones(n), n), chance

    (data, _), (held, _), (new, chance) = rows(4_000), rows(2_000), rows(500)
    settings = replace(QUICK, criterion="logistic", learning_rate=0.01, epochs=60)
    trained = train(Problem(data, held, 1), Candidate(np.ones((1, 2), bool), settings))
    found = 1 / (1 + np.exp(-scores(trained.weights, new.X, trained.architecture)[:, 0]))
    assert np.abs(found - chance).mean() < 0.06
    z = scores(trained.weights, held.X, trained.architecture)[:, 0].astype(float)
    assert trained.valid_loss == pytest.approx(np.mean(np.log1p(np.exp(z)) - held.R * z), rel=1e-5)
    assert trained.ratio is None  # there is no policy to watch
    assert all(epoch.ratio is None for epoch in trained.history)


# Early stopping ------------------------------------------------------------------------------------------


def test_the_best_weights_come_back():
    """The weights returned have the lowest validation loss of the history, recomputed from the numpy network."""
    data = problem(120)
    trained = train(data, candidate(replace(QUICK, epochs=400, patience=15, hidden=(50,), l2=0.0)))
    losses = [epoch.valid_loss for epoch in trained.history]
    assert trained.stopped_early
    assert trained.best_epoch == int(np.argmin(losses)) == trained.epochs - 15
    assert losses[-1] > losses[trained.best_epoch]  # or nothing had to be restored
    rows = data.valid
    h = softmax(scores(trained.weights, rows.X, trained.architecture).astype(float))[np.arange(len(rows)), rows.A]
    assert -np.mean(rows.R * rows.w * np.log(h)) == pytest.approx(losses[trained.best_epoch], rel=1e-5)


def test_a_falling_loss_counts_as_improving():
    """With patience 1 training goes on as long as the loss falls (a peer stops there)."""
    trained = train(problem(600), candidate(replace(QUICK, learning_rate=1e-3, patience=1, epochs=12)))
    losses = [epoch.valid_loss for epoch in trained.history]
    assert (np.diff(losses) < 0).all()
    assert trained.epochs == trained.best_epoch == 12
    assert not trained.stopped_early
    assert any("ran out" in note for note in trained.notes)


def test_training_that_never_helps_returns_the_untrained_network_and_says_so():
    """Validation rewards that contradict training: every epoch makes them worse."""
    data = problem(300)
    turned = replace(data.valid, X=-data.valid.X)
    trained = train(replace(data, valid=turned), candidate(replace(QUICK, hidden=(), patience=3)))
    assert trained.best_epoch == 0
    assert trained.epochs == 3
    assert not trained.weights["W1"].any()
    assert any("untrained" in note for note in trained.notes)


# The same again ------------------------------------------------------------------------------------------


def same(one, other):
    return all(np.array_equal(one.weights[name], other.weights[name]) for name in one.weights)


def test_same_seed_same_bits_other_seed_other_bits():
    data = problem()
    first, again, other = (train(data, candidate(seed=seed)) for seed in (1, 1, 2))
    assert same(first, again)
    assert first.history == again.history
    assert not same(first, other)


def test_the_callers_random_numbers_and_threads_are_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with thread_count(2):
        train(problem(), candidate(replace(QUICK, epochs=2)))
        assert torch.get_num_threads() == 2
    assert torch.rand(1) == expected


@pytest.mark.parametrize("before", [False, True])
def test_numbers_too_small_for_processors_are_zero_in_training_only(before):
    """They made training ten times as long where a penalty let weights shrink to them."""
    torch.set_flush_denormal(before)
    halved, seen = lambda: (torch.full((1,), torch.finfo(torch.float32).tiny) / 2).item(), []
    try:
        train(problem(), candidate(replace(QUICK, epochs=2)), progress=lambda *_: seen.append(halved()))
        assert seen == [0.0, 0.0]
        assert (halved() == 0) is before
    finally:
        torch.set_flush_denormal(False)


def test_rows_without_reward_change_nothing_but_n():
    """Leave them out and keep n: the same gradient, so the same network to the bit."""
    data = problem()
    rewarded = data.train.take(np.flatnonzero(data.train.R > 0), data.train.n)
    full, lean = (
        train(replace(data, train=rows), candidate(replace(QUICK, watched=0))) for rows in (data.train, rewarded)
    )
    assert same(full, lean)
    assert full.ratio is not None
    assert lean.ratio is None  # the monitor needs every row


def test_an_epoch_of_one_batch_follows_the_gradient_of_the_whole_objective():
    """The slope after it, against autograd on Loss + l1 sum |W| + l2 sum W^2 at the start, 1/n over all n rows."""
    data = problem(60)
    run = Run(data, candidate(replace(QUICK, l1=0.03, l2=0.02, batch=1_000)))
    W = {name: value.clone().requires_grad_() for name, value in run.network.W.items()}
    run.pass_over_rows()
    X, A, R, w = (torch.tensor(one) for one in (data.train.X, data.train.A, data.train.R, data.train.w))
    H = torch.sigmoid((X @ W["W1"]).view(60, 3, 8) + W["b1"])
    log_h = (H @ W["w"] + W["c"]).log_softmax(dim=1)[range(60), A]
    l1, l2 = ((W["W1"].abs() ** power).sum() + (W["w"].abs() ** power).sum() for power in (1, 2))
    (-(R * w * log_h).sum() / 60 + 0.03 * l1 + 0.02 * l2).backward()
    for name, value in W.items():
        torch.testing.assert_close(run.network.G[name], value.grad, rtol=1e-5, atol=1e-6)  # single precision


def test_adam_is_torchs_adam():
    generator = torch.Generator().manual_seed(0)
    weight, slope = torch.randn(50, generator=generator), torch.zeros(50)
    twin = torch.nn.Parameter(weight.clone())
    ours, theirs = Adam(weight, slope, 0.05), torch.optim.Adam([twin], lr=0.05)
    for _ in range(20):
        slope.copy_(torch.randn(50, generator=generator))
        twin.grad = slope.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(weight, twin.detach(), rtol=1e-5, atol=1e-6)  # single precision, other order of sums


def test_batches_cover_every_row_once_with_the_weight_it_has_in_the_whole():
    """Without steps (learning rate 0 in effect) the running loss of an epoch is the loss of all rows."""
    run = Run(problem(100), candidate(replace(QUICK, batch=7, learning_rate=1e-8)))
    assert run.pass_over_rows() == pytest.approx(run.loss_of_training_rows(), rel=1e-5)


def test_every_epoch_has_an_order_of_its_own_and_rows_stay_whole():
    """The first column names the row; batches of 100 rows by 7 have 7 or 8 rows."""
    data = problem(100)
    data.train.X[:, 0] = np.arange(100)
    batches = Run(data, candidate(replace(QUICK, batch=7, criterion="snips"))).batches
    orders = []
    for _ in range(2):
        parts = list(batches)
        assert {len(part) for part in parts} == {7, 8}
        orders.append(torch.cat([part.X[:, 0] for part in parts]).numpy().astype(int))
        np.testing.assert_array_equal(np.sort(orders[-1]), np.arange(100))
        np.testing.assert_array_equal(torch.cat([part.outcomes.A for part in parts]).numpy(), data.train.A[orders[-1]])
    assert (orders[0] != orders[1]).any()
    assert (orders[0] != np.arange(100)).any()


def test_masked_weights_stay_exactly_zero():
    masks = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 0]], bool)
    trained = train(problem(), candidate(replace(QUICK, l1=0.01, l2=0.01), masks=masks))
    assert trained.best_epoch > 0
    W1 = trained.weights["W1"].reshape(4, 3, 8)  # [D, k, h]
    np.testing.assert_array_equal((W1 != 0).all(axis=2).T, masks)
    np.testing.assert_array_equal((W1 != 0).any(axis=2).T, masks)


# What goes wrong -----------------------------------------------------------------------------------------


def test_a_huge_step_is_noticed_made_smaller_and_reported():
    trained = train(problem(), candidate(replace(QUICK, learning_rate=1_000.0)))
    assert trained.retries > 0
    assert trained.learning_rate == pytest.approx(1_000 * 0.1**trained.retries)
    assert all(np.isfinite(value).all() for value in trained.weights.values())
    assert np.isfinite([(one.train_loss, one.valid_loss) for one in trained.history]).all()
    assert any("diverged" in note for note in trained.notes)


def test_a_network_of_nan_is_never_returned():
    data = problem()
    data.train.X[np.flatnonzero(data.train.R)[3], 1] = np.nan
    with pytest.raises(PonnError, match="diverged 4 times"):
        train(data, candidate())


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_log_without_any_reward_is_refused(part):
    data = problem()
    getattr(data, part).R[:] = 0
    with pytest.raises(PonnError, match="reward above 0"):
        train(data, candidate())


def test_an_illegal_setting_is_refused():
    with pytest.raises(PonnError, match="criterion"):
        Settings(criterion="dm")


# The monitor ---------------------------------------------------------------------------------------------


def test_the_ratio_is_near_one_and_rises_where_weights_are_fitted():
    """600 rows, uniform logging: untrained h/p has mean 1 within 5 standard errors of h/p (about 0.003 each).

    Overfitted on 40 rows of noise, the policy has learned which actions were rewarded: far above 1.
    """
    start = train(problem(600), candidate(replace(QUICK, epochs=1, watched=600))).history[0].ratio
    assert start.total == pytest.approx(1, abs=0.02)
    assert len(start.by_action) == 3
    noise = separable(40)
    noise = replace(noise, R=np.ones(40))
    fitted = train(Problem(noise, noise, 3), candidate(replace(QUICK, hidden=(50,), learning_rate=0.05, epochs=200)))
    assert fitted.ratio.total > 2


def test_watching_does_not_change_what_is_learned():
    data = problem()
    seen, unseen = (train(data, candidate(replace(QUICK, epochs=3, watched=size))) for size in (100, 0))
    assert same(seen, unseen)
    assert all(epoch.ratio is not None for epoch in seen.history)
    assert all(epoch.ratio is None for epoch in unseen.history)
    assert seen.ratio == unseen.ratio


def test_progress_hears_of_every_epoch():
    heard = []
    trained = train(problem(), candidate(replace(QUICK, epochs=4)), progress=lambda *one: heard.append(one))
    assert heard == list(enumerate(trained.history))[1:]


# Many ----------------------------------------------------------------------------------------------------


def test_many_candidates_give_what_each_gives_alone():
    data = problem()
    candidates = [candidate(replace(QUICK, epochs=3 + seed), seed=seed) for seed in range(4)]
    heard = []
    together = train_many(data, candidates, workers=2, progress=lambda *one: heard.append(one[:2]))
    alone = [train(data, one) for one in candidates]
    assert all(same(one, other) for one, other in zip(together, alone, strict=True))
    assert [one.epochs for one in together] == [3, 4, 5, 6]
    assert heard == [(done, 4) for done in (1, 2, 3, 4)]
    assert all(same(one, other) for one, other in zip(train_many(data, candidates, workers=1), alone, strict=True))


def test_an_error_in_a_worker_reaches_the_caller():
    data = problem()
    data.train.R[:] = 0
    with pytest.raises(PonnError, match="reward above 0"):
        train_many(data, [candidate(), candidate(seed=1)], workers=2)


def test_what_a_killed_worker_left_undone_is_done_again(monkeypatch):
    data = problem()
    candidates = [candidate(replace(QUICK, epochs=1), seed=seed) for seed in range(3)]
    asked = []

    def dies_after_one(problem, candidates, places, workers):
        asked.append(places)
        yield numbered(places[-1], problem, candidates[places[-1]])
        if len(places) > 1:
            raise worker_died()("killed")

    monkeypatch.setattr("ponn.training.many.in_processes", dies_after_one)
    found = train_many(data, candidates, workers=2)
    assert asked == [[0, 1, 2], [0, 1], [0]]
    assert all(same(one, train(data, other)) for one, other in zip(found, candidates, strict=True))
    with pytest.raises(worker_died()):  # but not for ever
        train_many(data, [*candidates, candidate(seed=3)], workers=2)


LONG = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
import numpy as np
from ponn.settings import Settings
from ponn.training.many import train_many
from ponn.training.loop import Candidate, Problem, Rows
n = 20_000
X = np.random.default_rng(0).normal(size=(n, 40)).astype(np.float32)
rows = Rows(X, np.arange(n) % 5, np.ones(n), np.full(n, 5.0), n)
endless = Settings(epochs=10**6, patience=10**6)
print("ready", flush=True)
train_many(Problem(rows, rows, 5), [Candidate(np.ones((5, 40), bool), endless, seed) for seed in range(4)], workers=2)
"""


def descendants(pid):
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


def seconds_used(pid):
    """Processor time of a process; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_interruption_ends_the_workers(tmp_path):
    """No guard for __main__ either: a user's plain script must work."""
    script = tmp_path / "long.py"
    script.write_text(LONG)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while sum(seconds_used(one) > 4 for one in descendants(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)  # until two workers have long begun: joblib may lose an interruption while it starts them
    workers = descendants(process.pid)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    while any(Path(f"/proc/{one}").exists() for one in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [one for one in workers if Path(f"/proc/{one}").exists()]
