"""Runs that are killed and go on."""

import signal
import subprocess

import numpy as np
import pyarrow.parquet as pq
import pytest

import ponn
from commands import PONN


def assert_same(one, other, places: float) -> None:
    """Equal policies and values."""
    for name, array in one.policy.model.arrays.items():
        np.testing.assert_allclose(other.policy.model.arrays[name], array, atol=places)
    estimates = {**one.value, "over_best_fixed": one.over_best_fixed}
    others = {**other.value, "over_best_fixed": other.over_best_fixed}
    for name, estimate in estimates.items():
        for part in ("value", "low", "high", "ess"):
            assert getattr(others[name], part) == pytest.approx(getattr(estimate, part), rel=max(places, 1e-12))
    assert other.verdict.kind == one.verdict.kind
    assert np.array_equal(one.policy.selected, other.policy.selected)


def begun(*words):
    return subprocess.Popen([*PONN, *map(str, words)], stderr=subprocess.PIPE, text=True)


def check_that_a_killed_driver_goes_on(folder, tmp_path, *engine):
    """Kill the command in the middle, start it again: what was done is not done again, and the policy is the same."""
    roles = (
        "--action",
        "action",
        "--reward",
        "reward",
        *(f"--ignore={one}" for one in ("person", "day", "heavy", "known")),
    )
    command = ("learn", folder, *roles, *engine, "--method", "ponn-b", "--set", "hidden=(4,)", "--set", "epochs=3")
    killed = begun(*command, "--out", tmp_path / "one.ponn")
    for line in killed.stderr:
        if line.startswith("reward models"):
            break
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stderr.close()
    kept = list((tmp_path / "runs").rglob("*.part"))
    assert any("Step-A" in str(one) for one in kept)
    again = begun(*command, "--out", tmp_path / "one.ponn")
    told = again.communicate()[1]
    assert again.returncode == 0, told
    assert f"Step A ({pq.read_table(folder).num_rows:,} rows were done before)" in told
    undisturbed = begun(*command, "--out", tmp_path / "two.ponn")
    assert undisturbed.wait() == 0
    undisturbed.stderr.close()
    one, two = (ponn.load(tmp_path / name) for name in ("one.ponn", "two.ponn"))
    assert one.digest == two.digest
    assert one.evaluation == two.evaluation
    assert not list((tmp_path / "runs").rglob("*.part"))  # a complete run leaves nothing
