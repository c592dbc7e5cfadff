"""Which engine makes the passes over a log: by its name, or one that somebody made beforehand."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ponn.engine.passes import Engine, Local, Passes, Tell, run_folder
from ponn.errors import PonnError

EngineName = str | Engine | None


def engine_of(engine: EngineName = None, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by its name: local (default), ray or spark."""
    if engine is not None and not isinstance(engine, str):
        return engine
    if engine in (None, "local"):
        return Local(workers)
    from ponn.engine.clusters import OnRay, OnSpark

    clusters: dict[str | None, type[OnRay] | type[OnSpark]] = {"ray": OnRay, "spark": OnSpark}
    if engine not in clusters:
        raise PonnError(f"There is no engine {engine!r}; expected local, ray or spark.")
    return clusters[engine](workers, address)


@contextmanager
def passes_of(engine: EngineName, say: Tell | None, *what: Any, workers: int | None = None) -> Iterator[Passes]:
    """Passes whose results are kept until they are complete; workers that were started here end here.

    workers: how many, where the engine is only a name or none.
    """
    chosen = engine_of(engine, workers)
    passes = Passes(chosen, run_folder(*what))
    if say is not None:
        passes.say = say
    try:
        yield passes
    finally:
        if chosen is not engine:
            chosen.close()
    passes.forget()
