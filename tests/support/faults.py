"""Workers that are killed, for tests; imported by the workers, so nothing heavy is imported here."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fatal:
    """Work that kills its process the first time that it is asked for."""

    work: Any
    trace: str

    def __call__(self, shard):
        if not Path(self.trace).exists():
            Path(self.trace).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.work(shard)


class Killing:
    """An engine of which a worker is killed in every named step, once."""

    def __init__(self, inner, steps, folder):
        self.inner, self.steps, self.folder = inner, steps, folder

    def run(self, work, shards):
        step = type(work).__name__
        fatal = Fatal(work, str(self.folder / step)) if step in self.steps else work
        return self.inner.run(fatal, shards)

    def close(self):
        """The inner engine is closed by its owner."""


@dataclass(frozen=True)
class Deadly:
    """Rows whose reader kills its process once, when training has been kept."""

    work: Any
    state: str
    trace: str

    def parts(self, shard):
        if Path(self.state).exists() and not Path(self.trace).exists():
            Path(self.trace).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from self.work.parts(shard)
