"""Tables that somebody uploads to be scored. They are read apart (`processes.py`)."""

from pathlib import Path

from ponn.errors import PonnError
from ponn.policy.batches import write_recommendations
from ponn.policy.policy import Policy
from ponn.tables.limits import Limits
from ponn.tables.streams import open_stream

# More columns than any log has; every look at one costs as much as a thousand rows. How many rows there may be follows
# from the memory and the time of the process that reads them.
READABLE = Limits(columns=10_000)
ROWS, OUT = "rows.csv", "out.csv"  # in the folder of one request


def load_ahead() -> None:
    """Import what would be imported for each file."""
    import pyarrow.csv  # noqa: F401


def score_upload(policy: Policy, folder: str) -> None:
    """Recommendations for the rows of a file, its columns kept, in another. Nothing is drawn and nothing is logged."""
    rows, out = Path(folder, ROWS), Path(folder, OUT)
    try:
        keep = open_stream(rows, limits=READABLE).schema.names
        write_recommendations(policy, rows, out, keep=keep, threads=1, limits=READABLE)
    except PonnError as error:
        error.args = (str(error).replace(str(rows), "The file"),)
        raise
