"""Recommendations for a file or a directory of any size."""

import os
from pathlib import Path
from typing import Any

from ponn.engine.choice import EngineName, engine_of
from ponn.engine.passes import Passes, Tell
from ponn.log.reading import is_directory
from ponn.policy.batches import Asked, Scored, write_recommendations
from ponn.policy.directories import recommend_directory
from ponn.policy.policy import Policy
from ponn.tables.files import WRITERS


def recommend(
    policy: Policy,
    rows: str | os.PathLike[str],
    out: Any,
    *,
    engine: EngineName = None,
    progress: Any = None,
    threads: int | None = None,
    **asked: Any,
) -> Scored:
    """Recommend an action for each row of a file or directory; see `ponn.policy.batches.write_recommendations`.

    From a directory to a name without a known ending: a directory with a file of answers for each file of rows.
    """
    if not is_directory(rows) or not isinstance(out, str | os.PathLike) or Path(out).suffix in WRITERS:
        return write_recommendations(policy, rows, out, threads=threads, progress=progress, **asked)
    chosen = engine_of(engine, threads)
    try:
        asked |= {name: tuple(asked[name]) for name in ("keep", "columns") if name in asked}
        return recommend_directory(policy, rows, out, Passes(chosen, None, told_rows(progress)), Asked(**asked))
    finally:
        if chosen is not engine:
            chosen.close()


def told_rows(progress: Any) -> Tell:
    """Progress of passes for those who want to know rows and rows in all."""

    def say(message: str, done: int = 0, total: int = 0) -> None:
        if progress and total:
            progress(done, total)

    return say
