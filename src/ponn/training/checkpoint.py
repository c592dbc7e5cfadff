"""What is kept of training after every epoch, so that another process can go on with the same bits."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ponn.engine.passes import pack, read_kept, unpack, write_kept
from ponn.training.objective import Ratio

VECTORS = ("weight", "mean", "square", "steps", "best")  # of the network, of its optimizer, of the best epoch


@dataclass(frozen=True, eq=False)
class State:
    """Training as it was after an epoch."""

    attempt: int
    vectors: tuple[np.ndarray, ...]  # VECTORS
    generator: np.ndarray
    history: tuple[tuple[float, float, Ratio | None], ...]  # an entry per epoch, the untrained network's first
    best_epoch: int
    positions: list[tuple[int, ...]]  # where each process was in its stream, by rank


@dataclass(frozen=True)
class Checkpoint:
    """The newest state of one training, in a file that is complete or not there."""

    path: Path

    def write(self, state: State) -> None:
        """Keep a state in the place of the one before."""
        plain = {name: getattr(state, name) for name in ("attempt", "history", "best_epoch", "positions")}
        arrays = dict(zip(VECTORS, state.vectors, strict=True))
        told = np.frombuffer(json.dumps(plain).encode(), np.uint8)
        content = pack({**arrays, "generator": state.generator, "told": told})
        write_kept(self.path, content, "The state of training")

    def read(self) -> State | None:
        """The state that was kept; None where there is none."""
        content = read_kept(self.path)
        if content is None:
            return None
        found = unpack(content)
        plain: dict[str, Any] = json.loads(found["told"].tobytes())
        plain["history"] = tuple((train, valid, ratio_of(one)) for train, valid, one in plain["history"])
        plain["positions"] = [tuple(one) for one in plain["positions"]]
        return State(vectors=tuple(found[name] for name in VECTORS), generator=found["generator"], **plain)


def ratio_of(plain: list[Any] | None) -> Ratio | None:
    """A ratio from plain values."""
    return None if plain is None else Ratio(plain[0], tuple(plain[1]))
