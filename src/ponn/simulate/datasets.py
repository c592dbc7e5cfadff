"""Small real data shipped with the package; sources and licences are in data/ATTRIBUTION.md."""

from importlib import resources

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ponn.errors import PonnError

NAMES = ("pendigits", "satimage", "optdigits", "actg175")
PARTS = ("train", "test")


def load(name: str, part: str | None = None) -> pa.Table:
    """One of the shipped tables. The digits and satimage tables have a column `part`: the official UCI split."""
    if name not in NAMES:
        raise PonnError(f"There is no data set {name!r}; expected one of {', '.join(NAMES)}.")
    with resources.as_file(resources.files("ponn.simulate") / "data" / f"{name}.parquet") as path:
        table = pq.ParquetFile(path).read()
    if part is None:
        return table
    if part not in PARTS or "part" not in table.column_names:
        raise PonnError(f"The data set {name!r} has no part {part!r}.")
    return table.filter(pc.equal(table.column("part"), part)).drop_columns(["part"])
