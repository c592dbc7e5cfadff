"""Places of files: paths of this machine, or URIs of what pyarrow can read (s3://, gs://, hdfs:// ...)."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ponn.errors import PonnError, one_line

Place = Path | str  # a string is a URI


def is_uri(source: Any) -> bool:
    """Does it name a place by a URI that is not of this machine's files?"""
    return isinstance(source, str) and "://" in source and not source.startswith("file://")


def place_of(source: str | os.PathLike[str]) -> Place:
    """A URI as it is; everything else, file:// too, as a path."""
    if isinstance(source, str) and is_uri(source):
        return source
    if isinstance(source, str) and source.startswith("file://"):
        return Path(unquote(urlsplit(source).path))
    return Path(source)


@lru_cache(maxsize=16)
def filesystem(root: str) -> tuple[Any, str]:
    """The file system of a URI without its path, and what its paths begin with; one connection for all its files."""
    from pyarrow.fs import FileSystem

    try:
        system, start = FileSystem.from_uri(root)
    except (OSError, ValueError) as error:  # pyarrow's errors are among them
        raise PonnError(
            f"{root} cannot be opened: {one_line(error)}. Expected a path, or a URI that pyarrow reads, e.g. "
            "s3://bucket/folder or gs://bucket/folder."
        ) from error
    return system, start.rstrip("/")


def located(uri: str) -> tuple[Any, str]:
    """The file system of a URI and the path there."""
    scheme, host, path, query, _ = urlsplit(uri)
    system, start = filesystem(urlunsplit((scheme, host, "", query, "")))
    return system, start + path.rstrip("/")


def is_folder(uri: str) -> bool:
    """Is there a folder at a URI?"""
    from pyarrow.fs import FileType

    system, path = located(uri)
    try:
        return bool(system.get_file_info(path).type == FileType.Directory)
    except OSError as error:
        raise PonnError(
            f"{uri} cannot be looked at: {one_line(error)}. Are rights and network as they should be?"
        ) from error


def files_below(uri: str) -> list[str]:
    """URIs of all files below one, in order of their names."""
    from pyarrow.fs import FileSelector

    system, path = located(uri)
    scheme, host, folder, query, _ = urlsplit(uri)
    found = sorted(one.path for one in system.get_file_info(FileSelector(path, recursive=True)) if one.is_file)
    below = [one.removeprefix(path) for one in found]
    return [urlunsplit((scheme, host, folder.rstrip("/") + one, query, "")) for one in below]


def openable(place: Place) -> Any:
    """What pyarrow's readers take."""
    if not is_uri(place):
        return place
    system, path = located(str(place))
    return system.open_input_file(path)


def opened(place: Place) -> Any:
    """A file to read bytes from."""
    import pyarrow as pa

    return openable(place) if is_uri(place) else pa.OSFile(str(place))


def stamp_of(place: Place) -> tuple[int, int]:
    """Size and time of a file."""
    if is_uri(place):
        system, path = located(str(place))
        info = system.get_file_info(path)
        if info.size is None:
            raise FileNotFoundError(f"there is no file {place}")
        return int(info.size), int(info.mtime_ns or 0)
    found = os.stat(place)
    return found.st_size, found.st_mtime_ns
