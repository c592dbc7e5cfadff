"""Whether a policy learned from the rows of a log, known again without telling anybody who was in them.

Two things are kept of the rows that a policy learned from:

- in the policy file, a seal per log: the digest of one secret group of its rows, and of their places. Who brings the
  same log finds it among the digests of all groups. Who does not have all rows of a group, exactly, learns nothing
  from it, and who has all rows but one learns something of that one in 1 of `groups` cases: when it is in the group.
- beside it, in a file that only its owner reads and that is never served, fingerprints of single rows under a key of
  their own (`Acquaintance`). They know the rows again in any order and among others. They cannot stand in the policy
  file: whatever finds "half of these m rows" also tells "this one row", with 1 / (0.5 sqrt(m)) of the certainty. For
  300 rows that is a membership attack right in 62 % of the cases instead of 50 %.

symbol   meaning
f        fingerprint of a row: 64 bits that depend on its features, action and reward, and on the key
n        training rows; n_1 of their fingerprints stand there once, n_2 twice

Kept are the smallest of the n_1 fingerprints and how often a new row has one of them by chance: 2 n_2 / n, what
Good and Turing give to all that was seen once (Good 1953), with three standard errors more. Rows of a later log that
are known more often than that were learned from.
"""

import base64
import hashlib
import hmac
import json
import math
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.log.log import Log
from ponn.log.profile import NUMBER, kind_of, numbers, texts
from ponn.log.rules import label_text
from ponn.log.shards import scramble, unit_codes
from ponn.storage import write_whole

SIZE = 4_096  # fingerprints that are kept: a file of 44 kB
LARGEST = 1 << 17  # bytes that such a file may have
FOR_SURE = 3.0  # standard errors above chance
ENDING = ".rows"  # of the file beside the policy file
KIND = "ponn rows"  # what such a file says it is
KEY_BYTES = 16
# The group that a seal is the digest of has as many rows as make guessing them hopeless even for somebody who knows
# which rows there are, and not where: 2^64 possibilities. 8 rows of 300 different ones, 22 of 8 kinds. More rows would
# tell more to those who know all of the log but one row.
GROUP_BITS, FEWEST_IN_GROUP = 64, 6
MOST_GROUPS = 4_096  # with more the last rows would tell less than 1 in 4,096, at the price of many digests


# Rows as numbers ----------------------------------------------------------------------------------------------


def row_codes(log: Log) -> np.ndarray:
    """64 bits for every row, the same in whatever order the columns stand and whatever file they were read from."""
    labels = pa.array([label_text(action) for action in log.actions]).take(pa.array(log.A))
    codes = {name: cell_codes(log.table.column(name)) for name in (*log.features, log.columns.reward)}
    codes[log.columns.action] = unit_codes(pa.chunked_array([labels]))
    found = np.zeros(len(log), np.uint64)
    for name in sorted(codes):
        salt = unit_codes(pa.chunked_array([[name]]))[0]
        with np.errstate(over="ignore"):
            found = scramble(found ^ scramble(codes[name] + salt))
    return found  # [n]


def cell_codes(column: pa.ChunkedArray) -> np.ndarray:
    """64 bits per cell; numbers by their value in single precision, whether a file holds 1 or 1.0; else by the text."""
    if kind_of(column.type) == NUMBER:
        with np.errstate(over="ignore"):
            single = numbers(column).astype(np.float32) + np.float32(0)  # -0.0 + 0.0 is 0.0
        return scramble(np.where(np.isnan(single), np.float32(np.nan), single).view(np.uint32).astype(np.uint64))
    return unit_codes(pc.fill_null(texts(column), ""))


# Seals: the whole log, in its order ---------------------------------------------------------------------------


def seal(log: Log) -> str:
    """What a policy file says of a log, so that this very log is known again; of a directory its files' digest."""
    if log.directory is not None:
        return log.directory
    key = secrets.token_bytes(KEY_BYTES)
    digests = list(group_digests(log, key))
    return f"{key.hex()}:{secrets.choice(digests)}"


def seals(sealed: str | None, log: Any) -> bool:
    """Was this the log? Directories, and files of version 0.1, hold the digest itself."""
    if not sealed:
        return False
    key, colon, digest = sealed.partition(":")
    if not colon:
        return sealed == log.digest
    if not isinstance(log, Log):
        return False
    try:
        found = group_digests(log, bytes.fromhex(key))
    except ValueError:  # somebody wrote it by hand
        return False
    return any(hmac.compare_digest(one, digest) for one in found)


def group_digests(log: Log, key: bytes) -> list[str]:
    """The digest of every group of rows with their places; which row is in which group depends on the key."""
    n, codes = len(log), row_codes(log)
    order = np.random.default_rng(np.frombuffer(key, np.uint8)).permutation(n)
    return [
        hashlib.blake2b(
            np.concatenate([[n], rows, codes[rows]]).astype("<u8").tobytes(), key=key, digest_size=16
        ).hexdigest()
        for rows in np.array_split(order.astype(np.uint64), groups_of(codes))
    ]


def groups_of(codes: np.ndarray) -> int:
    """How many groups these rows make."""
    kinds = max(len(np.unique(codes)), 2)
    rows = max(math.ceil(GROUP_BITS / math.log2(kinds)), FEWEST_IN_GROUP)
    return min(max(len(codes) // rows, 1), MOST_GROUPS)


# Acquaintance: single rows, wherever they stand ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Acquaintance:
    """Fingerprints of rows that a policy learned from, for those alone who have the file beside the policy file."""

    id: str  # of the policy that it belongs to
    key: int
    fingerprints: np.ndarray  # the smallest of those that stand there once, in order
    whole: bool  # are they all of those that stand there once?
    chance: float  # how often a new row has one of them by chance, at most
    share: float  # of the training rows from which they were taken

    def known_share(self, log: Log) -> float:
        """About which share of the rows was learned from; 0 where that may be chance."""
        f = fingerprints(log, self.key)
        if not self.whole:
            f = f[f <= self.fingerprints[-1]]
        known, chance = int(np.isin(f, self.fingerprints).sum()), self.chance * len(f)
        if known <= chance + FOR_SURE * (math.sqrt(chance) + 1):
            return 0.0
        return min(known / len(f) / self.share, 1.0)

    def write(self, path: Path) -> None:
        """Write the file beside the policy file, for nobody else to read."""
        told = {
            "kind": KIND,
            "about": "Fingerprints of the rows a policy learned from. Keep it where the log is; do not pass it on.",
            "id": self.id,
            "key": self.key,
            "fingerprints": base64.b64encode(self.fingerprints.astype("<u8").tobytes()).decode(),
            "whole": self.whole,
            "chance": self.chance,
            "share": self.share,
        }
        write_whole(beside(path), json.dumps(told).encode(), private=True)


def acquaintance(log: Log, id: str, share: float = 1.0) -> Acquaintance:
    """What is kept of rows that a policy learned from; share: of all its rows, where these are a sample."""
    key = secrets.randbits(64)
    found, times = np.unique(fingerprints(log, key), return_counts=True)
    once, twice = found[times == 1], int((times == 2).sum())
    chance = min(2 * (twice + FOR_SURE * (math.sqrt(twice) + 1)) / len(log), 1.0)
    return Acquaintance(id, key, once[:SIZE], len(once) <= SIZE, chance, share)


def fingerprints(log: Log, key: int) -> np.ndarray:
    """f of every row."""
    with np.errstate(over="ignore"):
        return scramble(scramble(row_codes(log) + np.uint64(key)) ^ np.uint64(key))  # [n]


def new_id() -> str:
    """A name by which a policy file and the file beside it know each other."""
    return secrets.token_hex(8)


def beside(path: Path) -> Path:
    """The file that stands beside a policy file."""
    return path.with_name(path.name + ENDING)


def read_acquaintance(path: Path, id: str) -> Acquaintance | None:
    """What stands beside a policy file, if it is there, can be read and belongs to that policy."""
    found = read_beside(path)
    if found is None or found.get("id") != id:
        return None
    try:
        once = np.frombuffer(base64.b64decode(found["fingerprints"], validate=True), "<u8").astype(np.uint64)
        chance, share, key = float(found["chance"]), float(found["share"]), int(found["key"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    whole = bool(found.get("whole"))
    fits = 0 <= chance <= 1 and 0 < share <= 1 and 0 <= key < 1 << 64 and (whole or len(once))
    return Acquaintance(id, key, once, whole, chance, share) if fits else None


def read_beside(path: Path) -> dict[str, Any] | None:
    """The file that stands beside a policy file, if it is one of ours."""
    try:
        with beside(path).open("rb") as file:
            found = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("kind") == KIND else None


def forget_beside(path: Path) -> None:
    """Remove what an earlier policy left beside a policy file."""
    if read_beside(path) is not None:
        beside(path).unlink(missing_ok=True)
