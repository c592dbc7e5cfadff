"""Attacks on what a policy tells of the people it learned from; `benchmarks/reliability/privacy_attacks.py` runs them.

An attacker has the policy file, knows the columns and what their cells can hold, and in most attacks all of a person
(features, action, outcome) but whether that person was in the log; where it says so, all but the outcome. Half of the
people asked about were in the log. An attacker's advantage is 2 (share of right guesses) - 1: 0 is guessing, 1 is
knowing. Its standard error is that of the guesses.

symbol   meaning
m        people asked about
"""

import base64
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import ponn
from ponn.log.acquaintance import cell_codes, group_digests, seal
from ponn.log.log import Log
from ponn.log.rules import label_text
from ponn.log.shards import scramble, unit_codes
from ponn.policy.policy import Policy

ROLES = {"action": "drug", "reward": "well"}
AGES, WARDS, STAGES, DRUGS = range(20, 90), "ABCDEFGH", ("I", "II", "III", "IV"), ("x", "y", "z")


class Advantage(NamedTuple):
    """What an attacker gains on guessing, in [-1, 1], with its standard error."""

    value: float
    error: float
    m: int

    @property
    def is_noise(self) -> bool:
        """Is it within three standard errors of guessing?"""
        return self.value <= 3 * self.error


def advantage(right: np.ndarray) -> Advantage:
    """From guesses that were right or not."""
    share, m = float(np.mean(right)), len(right)
    return Advantage(2 * share - 1, 2 * float(np.sqrt(max(share * (1 - share), 0.25 / m) / m)), m)


def advantage_of(inside: np.ndarray, outside: np.ndarray) -> Advantage:
    """Of an attacker who says of those marked that they were in the log."""
    return advantage(np.concatenate([inside, ~outside]))


# A hospital ---------------------------------------------------------------------------------------------------


def patients(n: int, seed: int, noise: int = 0) -> dict[str, np.ndarray]:
    """Columns of a log whose outcome is mostly chance; noise: columns more, which nothing depends on."""
    rng = np.random.default_rng(seed)
    age, ward = rng.choice(AGES, n), rng.choice(list(WARDS), n)
    stage, smoker = rng.choice(STAGES, n), rng.random(n) < 0.3
    drug = rng.choice(DRUGS, n, p=[0.5, 0.3, 0.2])
    well = rng.random(n) < 0.35 + 0.2 * (drug == "x") + 0.2 * (age < 50)
    beside = {f"lab{i}": rng.normal(size=n).round(4) for i in range(noise)}
    found = {"age": age, "ward": ward, "stage": stage, "smoker": smoker, "bed": rng.integers(0, 400, n)}
    return {**found, **beside, "drug": drug, "well": well.astype(int)}


def log_of(columns: Mapping[str, np.ndarray]) -> Log:
    """As a log."""
    return ponn.read_log(
        dict(columns), **ROLES, reward_range=(0, 1), features=[c for c in columns if c not in ROLES.values()]
    )


def told(path: Path) -> dict[str, Any]:
    """The description in a policy file."""
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Any] = json.loads(archive.read("policy.json"))
    return found


# 1 and 2: version 0.1's fingerprints --------------------------------------------------------------------------


def old_fingerprints(log: Log) -> np.ndarray:
    """As version 0.1 made them: the sum of a hash of each cell."""
    labels = pa.array([label_text(one) for one in log.actions]).take(pa.array(log.A))
    codes = {name: cell_codes_of_old(log.table.column(name)) for name in (*log.features, log.columns.reward)}
    codes[log.columns.action] = unit_codes(pa.chunked_array([labels]))
    found = np.zeros(len(log), np.uint64)
    with np.errstate(over="ignore"):
        for name, code in codes.items():
            found += scramble(code + unit_codes(pa.chunked_array([[name]]))[0])
    return found


def cell_codes_of_old(column: pa.ChunkedArray) -> np.ndarray:
    """64 bits per cell; numbers in double precision."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return scramble((column.to_numpy().astype(float) + 0.0).view(np.uint64))
    return cell_codes(column)


def with_old_sketch(policy: Policy, log: Log) -> dict[str, Any]:
    """The provenance that version 0.1 would have written."""
    once = np.sort(old_fingerprints(log))[:256]
    sketch = {"fingerprints": base64.b64encode(once.tobytes()).decode(), "whole": False, "chance": 0.0}
    return {**policy.provenance, "source": {**policy.provenance["source"], "sketch": sketch}}


def numbers_of_64_bits(value: Any) -> Iterator[int]:
    """All that could be fingerprints of rows in a description: in base64, in hexadecimal digits, as whole numbers."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from numbers_of_64_bits(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from numbers_of_64_bits(one)
    elif isinstance(value, int) and not isinstance(value, bool):
        if value >= 1 << 32:
            yield value % (1 << 64)
    elif isinstance(value, str):
        for part in value.split(":"):
            for decode in (bytes.fromhex, lambda text: base64.b64decode(text, validate=True)):
                try:
                    content = decode(part)
                except ValueError:
                    continue
                yield from np.frombuffer(content[: len(content) // 8 * 8], "<u8").tolist()


def rebuilt_rows(description: Any, log: Log, most: int = 1_000) -> int:
    """Rows that a meet in the middle finds: of the cells that columns can hold, all sums of one half of the columns
    and, for each number in the file, what the other half must add."""
    domains = {"age": AGES, "ward": WARDS, "stage": STAGES, "smoker": (False, True), "bed": range(400)}
    domains |= {"drug": DRUGS, "well": (0, 1)}
    halves = (("age", "ward", "stage"), ("smoker", "bed", "drug", "well"))
    left, right = (np.sort(sums_of(half, domains)) for half in halves)
    found = 0
    for number in list(dict.fromkeys(numbers_of_64_bits(description)))[:most]:
        with np.errstate(over="ignore"):
            wanted = np.uint64(number) - left
        found += bool(np.isin(wanted, right, assume_unique=False).any())
    return found


def sums_of(names: Iterable[str], domains: Mapping[str, Any]) -> np.ndarray:
    """Sums of the hashes of all combinations of cells."""
    total = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for name in names:
            cells = pa.chunked_array([list(domains[name])])
            code = unit_codes(cells) if name == ROLES["action"] else cell_codes_of_old(cells)
            salted = scramble(code + unit_codes(pa.chunked_array([[name]]))[0])
            total = (total[:, None] + salted).ravel()
    return total


def membership_by_numbers(description: Any, members: Log, others: Log) -> Advantage:
    """Who is in the file by a fingerprint, of those whose fingerprints are small enough to be kept by the old rule."""
    there = np.array(list(numbers_of_64_bits(description)), np.uint64)
    inside = np.isin(np.sort(old_fingerprints(members))[:256], there)
    outside = np.isin(np.sort(old_fingerprints(others))[:256], there)
    return advantage_of(inside, outside)


# 3: all rows but one ------------------------------------------------------------------------------------------


def differencing(n: int, people: int, seed: int) -> Advantage:
    """An attacker who knows all rows but one, and two people of whom one is in it; who asks the seal for each.

    Where the seal fits both or neither the guess is a coin's, which is not tossed: it counts as 0, a right one as 1.
    """
    gains = np.array([gain_from_seal(n, seed + number) for number in range(people)])
    return Advantage(float(gains.mean()), float(np.sqrt(max(gains.var(), 1 / people) / people)), people)


def gain_from_seal(n: int, seed: int) -> int:
    """1, 0 or -1: the log is that of the first person."""
    columns = patients(n + 1, seed)
    one, other = ({name: np.delete(cells, place) for name, cells in columns.items()} for place in (n, n - 1))
    key, _, digest = seal(log_of(one)).partition(":")
    fits = [digest in group_digests(log_of(each), bytes.fromhex(key)) for each in (one, other)]
    return int(fits[0]) - int(fits[1])


# 4: rare texts and exact numbers ------------------------------------------------------------------------------


def texts_and_numbers(value: Any) -> Iterator[Any]:
    """Everything in a description."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield name
            yield from texts_and_numbers(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts_and_numbers(one)
    elif value is not None:
        yield value


def named_in(description: Any, names: Iterable[str]) -> np.ndarray:
    """Which of these texts stand anywhere in the file."""
    text = json.dumps(description, ensure_ascii=False)
    return np.array([name in text for name in names])


def numbers_in(description: Any, values: np.ndarray) -> np.ndarray:
    """Which of these numbers stand in the file exactly."""
    there = [one for one in texts_and_numbers(description) if isinstance(one, float | int)]
    return np.isin(values, np.array(there, float))


# 5 and 6: cells of similar rows, leaves of trees --------------------------------------------------------------


def single_people_in_cells(policy: Policy) -> int:
    """Cells in which one person alone got an action: their outcome is in the file."""
    assert policy.similar is not None
    return int((policy.similar.cells.rows == 1).sum())


def membership_by_cells(policy: Policy, members: Log, others: Log) -> Advantage:
    """Says "was there" where somebody in the person's cell got the same action, and the mean outcome of those who did
    is near that person's; the fewer there are the nearer it must be."""
    assert policy.similar is not None
    similar = policy.similar

    def marks(log: Log) -> np.ndarray:
        found, n = similar.tallies(policy.encoding.design(log)), np.arange(len(log))
        N, S = found.rows[n, log.A], found.rewards[n, log.A]
        return np.asarray((N > 0) & (np.abs(log.R - S / np.maximum(N, 1)) <= 0.5))

    return advantage_of(marks(members), marks(others))


def outcome_inference(policy: Policy, members: Log, others: Log) -> tuple[float, float, float]:
    """How often a person's outcome is the one that the policy promises the action they got: members, others, error.

    What is learned of everybody serves for both; only the difference tells of those who were in the log.
    """
    hits = []
    for log in (members, others):
        r = policy.promised(policy.encoding.design(log))
        assert r is not None
        hits.append((r[np.arange(len(log)), log.A] > 0.5) == (log.R > 0.5))
    inside, outside = (float(one.mean()) for one in hits)
    error = float(np.sqrt(sum(one.var() / len(one) for one in hits)))
    return inside, outside, error


# 7: shadow policies ------------------------------------------------------------------------------------------


def losses(policy: Policy, log: Log) -> np.ndarray:
    """How little what the policy says of a person fits what happened: promised outcomes where there are any, else the
    probability of the action that was taken, for or against it by its outcome."""
    X, n = policy.encoding.design(log), np.arange(len(log))
    r = policy.model.rewards(X)
    if r is not None:
        return np.abs(log.R - r[n, log.A])
    h = policy.model.probabilities(X)[n, log.A]
    return np.where(log.R > 0.5, 1 - h, h)


def by_shadow(policy: Policy, shadow: Policy, sides: Mapping[str, tuple[Log, Log]]) -> Advantage:
    """Membership by loss: the bound is the one that is best on a policy of the attacker's own, learned as this one."""
    inside, outside = (losses(shadow, log) for log in sides["shadow"])
    bounds = np.quantile(np.concatenate([inside, outside]), np.linspace(0, 1, 101))
    gains = [np.mean(inside <= bound) - np.mean(outside <= bound) for bound in bounds]
    bound = bounds[int(np.argmax(gains))]
    return advantage_of(*(losses(policy, log) <= bound for log in sides["target"]))
