"""Work on shards that leaves traces, dies or goes wrong; imported by the workers."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ponn.errors import LogError


@dataclass(frozen=True)
class Numbers:
    """A shard of whole numbers."""

    first: int
    rows: int

    @property
    def name(self) -> str:
        return f"numbers from {self.first}"


SHARDS = tuple(Numbers(first, 10) for first in range(0, 80, 10))


@dataclass(frozen=True)
class Squares:
    """Their squares; each call leaves a trace, and the first on a fatal shard kills its process."""

    folder: str
    fatal: tuple[int, ...] = ()
    deaths: int = 1
    slow: float = 0.0

    def __call__(self, shard: Numbers) -> dict[str, np.ndarray]:
        traces = Path(self.folder)
        before = len(list(traces.glob(f"{shard.first}-*")))
        (traces / f"{shard.first}-{before}").touch()
        if shard.first in self.fatal and before < self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.slow if shard.first == 0 else 0.0)
        return {"x": np.arange(shard.first, shard.first + shard.rows) ** 2, "pid": np.array(os.getpid())}


@dataclass(frozen=True)
class Mistaken:
    """Work that goes wrong."""

    error: str

    def __call__(self, shard: Numbers) -> dict[str, np.ndarray]:
        if shard.first == 30:
            raise {"user": LogError("row 31 is wrong"), "ours": ZeroDivisionError("a bug")}[self.error]
        return {"x": np.array(shard.first)}


def xs(parts):
    return np.concatenate([one["x"] for one in parts])


def calls(folder):
    return sorted(int(one.name.split("-")[0]) for one in folder.iterdir())
