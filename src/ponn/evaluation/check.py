"""`ponn.check`: what is in a table, wherever its rows are, and whether a policy can be learned from it."""

from typing import Any

from ponn.engine.choice import EngineName
from ponn.errors import LogError
from ponn.evaluation import readiness
from ponn.evaluation.readiness import ActionCount, Check, EligibleCount, FeatureLine
from ponn.log.encoding import Encoding
from ponn.log.reading import is_large, read_log
from ponn.log.sharded import ShardedLog
from ponn.log.shards import find_pieces
from ponn.log.spark import is_frame
from ponn.settings import Settings
from ponn.tables.remote import place_of


def check(source: Any, *, engine: EngineName = None, progress: Any = None, **columns: Any) -> Check:
    """Look at a table as `read_log` would read it, without refusing it.

    Of a large directory, counts are of all rows, and what needs rows in memory is looked at in a sample.

    Parameters
    ----------
    source, columns
        As in `read_log`.
    engine
        Who looks at a directory that stays on disk; see `read_log`.
    progress
        A function that is called with what is being done.

    Returns
    -------
    Check
        Actions with their counts, features, what deserves a look, and whether a policy can be learned: `ready`, `why`.

    Examples
    --------
    >>> import ponn
    >>> table = {"age": [34, 61, 45, 70, 52, 29] * 20, "drug": ["a", "b"] * 60, "better": [1, 0, 1, 0, 1, 1] * 20}
    >>> found = ponn.check(table, action="drug", reward="better")
    >>> found.ready
    True
    >>> found.why
    '120 rows, 2 actions, 1 features, a reward that varies.'
    >>> ponn.check(table | {"better": [1] * 120}, action="drug", reward="better").ready
    False
    """
    if engine is None and not is_large(source) and not is_frame(source):
        return readiness.check(source, **columns)
    try:
        found = read_log(source, lazy=True, engine=engine, progress=progress, **columns)
    except LogError as problem:
        rows = source.count() if is_frame(source) else sum(one.rows for one in find_pieces(place_of(source)))
        return Check(rows, (), (), (), (), (), (), None, False, str(problem))
    assert isinstance(found, ShardedLog)
    return check_sharded(found)


def check_sharded(found: ShardedLog) -> Check:
    """What is in a log on disk."""
    survey, sample = found.survey, found.sample.log
    encoding = Encoding(
        tuple(found.fit_feature(name, survey.columns[name], 100, Settings()) for name in found.features), survey.rows
    )
    actions = tuple(ActionCount(label, rows, total / rows) for label, (rows, total) in sorted(survey.actions.items()))
    profiles = {name: one.profile(name) for name, one in survey.columns.items()}
    lines: tuple[FeatureLine, ...] = tuple(readiness.describe(one, profiles[one.name]) for one in encoding.features)
    step_a, everyone, told = readiness.look_at_overlap(sample, encoding)
    note = f"What rows hold together was looked at in a random sample of {len(sample):,} of {survey.rows:,} rows."
    return Check(
        rows=survey.rows,
        actions=actions,
        features=lines,
        notes=(*found.notes, *encoding.notes, note, *told),
        suspicious=(
            *readiness.suspicious_features(sample, encoding),
            *readiness.odd_texts(sample),
            *(() if step_a is None else readiness.doubts(step_a)),
        ),
        overlap=() if step_a is None else tuple(readiness.action_overlap(step_a)),
        balance=() if step_a is None else tuple(readiness.worst_balance(step_a, encoding)),
        unsupported=None if step_a is None else step_a.unsupported,
        everyone=everyone,
        eligible=tuple(EligibleCount(label, survey.eligible[label]) for label in found.actions if survey.eligible),
        **readiness.verdict(sample, actions, survey.rows),
    )
