"""Tables that somebody uploads to be scored. They are read apart (`processes.py`)."""

from pathlib import Path

from ponn.errors import PonnError
from ponn.policy.batches import write_recommendations
from ponn.policy.policy import Policy
from ponn.tables.limits import Limits
from ponn.tables.streams import open_stream

# More columns than any log has; every look at one costs as much as a thousand rows.
MOST_COLUMNS = 10_000
READABLE = Limits(columns=MOST_COLUMNS)  # of the studio: how many rows follows from the memory of who reads them
SCORABLE = Limits(columns=MOST_COLUMNS, cells=50_000_000, bytes=1 << 28)  # four times the largest upload
ROWS, OUT = "rows.csv", "out.csv"  # in the folder of one request


def load_ahead() -> None:
    """Import what would be imported for each file."""
    import pyarrow.csv  # noqa: F401


def score_upload(policy: Policy, folder: str) -> None:
    """Recommendations for the rows of a file, its columns kept, in another. Nothing is drawn and nothing is logged."""
    rows, out = Path(folder, ROWS), Path(folder, OUT)
    try:
        keep = open_stream(rows, limits=SCORABLE).schema.names
        write_recommendations(policy, rows, out, keep=keep, threads=1, limits=SCORABLE)
    except PonnError as error:
        error.args = (str(error).replace(str(rows), "The file"),)
        raise
