"""What the studio tells of a table that was uploaded: its columns, and whether a policy can be learned from it.

Runs apart (`processes.py`): a table that takes all memory, or kills its reader, is an error message.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ponn.evaluation.readiness import check
from ponn.serving.studio.guesses import column_lines, guess_roles
from ponn.serving.uploads import READABLE
from ponn.tables.table import read_table


def load_ahead() -> None:
    """Import what would be imported for each table; it takes a second."""
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet  # noqa: F401

    with suppress(ImportError):
        import sklearn.calibration
        import sklearn.ensemble
        import sklearn.linear_model  # noqa: F401


def describe_upload(path: str) -> dict[str, Any]:
    """The columns of a table, with a guess of their roles."""
    table = read_table(path, limits=READABLE).table
    lines = column_lines(table)
    guess = asdict(guess_roles(table, lines))
    return plain({"rows": len(table), "columns": [asdict(one) for one in lines], "guess": guess})


def check_upload(path: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """What `ponn check` says of a table; keywords: those of `read_log`."""
    return plain(check(path, **keywords).as_json())


def plain(value: Any) -> Any:
    """The value as JSON gives it back; numbers that JSON has no word for are null."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
