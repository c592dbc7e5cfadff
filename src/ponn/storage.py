"""Files that are there whole or not at all, and folders that nobody else can look into.

Everything that ponn writes under a name that somebody gave goes through `replacing`: the new content is written beside
the old one, under a name that nobody can guess or share, is on disk before it takes the old one's place, and leaves
nothing behind where it fails. Whoever is killed in the middle leaves a file or folder that nobody holds a lock on any
more; the next process that writes there removes it.
"""

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ponn.errors import PonnError

try:
    import fcntl
except ImportError:  # on Windows there are no such locks, and what a killed process leaves stays
    fcntl = None  # type: ignore[assignment]

PRIVATE = 0o600  # of files with cases: only their owner reads them
PRIVATE_FOLDER = 0o700
USUAL = 0o666  # of other files, less what the user's mask takes away
UNFINISHED = ".ponn-", ".part"  # how the name of a file that is being written begins and ends
FOLDER = "ponn-"  # how the name of a temporary folder begins
LOCK = ".lock"  # in a temporary folder: held by the process that works there


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Write a file that takes the place of another: a path has the old content or all of the new one.

    private: may only its owner read the file? Else a new file has the usual rights, and one that is replaced keeps its
    own. A link is replaced, never followed. Raises OSError where the disk is full or the folder cannot be written to.
    """
    mode = PRIVATE if private else mode_of(path)
    remove_leftovers(path.parent)
    unfinished, handle = open_unfinished(path.parent, private)
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            yield file
        if mode is not None:
            os.chmod(unfinished, mode)
        os.fsync(handle)
        if fcntl is None:
            os.close(handle)  # what is open has no other name on Windows
        os.replace(unfinished, path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            os.close(handle)  # and with it the lock: not before the file has its name
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file by one with this content."""
    with replacing(path, private=private) as file:
        file.write(content)


def mode_of(path: Path) -> int | None:
    """The rights of a file that is to be replaced; None where there is none. Refuses what is no file."""
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found):
        return None
    if not stat.S_ISREG(found):
        kind = "a folder" if stat.S_ISDIR(found) else "a device, pipe or socket"
        raise PonnError(f"{path} is {kind}; expected the name of a file to write.")
    return stat.S_IMODE(found)


def open_unfinished(folder: Path, private: bool) -> tuple[Path, int]:
    """A new file under a name of its own, and a handle that holds its lock."""
    while True:
        path = folder / secrets.token_hex(8).join(UNFINISHED)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE if private else USUAL)
        if takes_lock(handle) and path.exists():  # else somebody who looked for leftovers was faster
            return path, handle
        os.close(handle)


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can look into, or close one of ours that is there."""
    path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    found = path.stat()
    if os.name != "nt" and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) != PRIVATE_FOLDER:
        path.chmod(PRIVATE_FOLDER)


class PrivateFolder:
    """A temporary folder that only its owner can look into; gone when it is closed, or when its process is killed and
    another one makes such a folder.
    """

    def __init__(self) -> None:
        remove_leftovers(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=FOLDER))  # with the rights of PRIVATE_FOLDER
            try:
                self.lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
                if takes_lock(self.lock) and (self.path / LOCK).exists():
                    return
                os.close(self.lock)
            except FileNotFoundError:  # somebody who looked for leftovers was faster
                continue
            except OSError:
                shutil.rmtree(self.path, ignore_errors=True)
                raise

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


# What killed processes leave -----------------------------------------------------------------------------


@cache
def remove_leftovers(folder: Path) -> None:
    """Remove what processes that are no more have left unfinished in a folder; once per process and folder."""
    if fcntl is None:
        return
    beginning, end = UNFINISHED
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.name.startswith(beginning) and entry.name.endswith(end) and entry.is_file(follow_symlinks=False):
                remove_if_left(Path(entry.path), Path(entry.path))
            elif entry.name.startswith(FOLDER) and entry.is_dir(follow_symlinks=False):
                remove_if_left(Path(entry.path), Path(entry.path) / LOCK)


def remove_if_left(path: Path, lock: Path) -> None:
    """Remove a file or folder of ours if nobody holds its lock any more."""
    with suppress(OSError):
        handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if os.fstat(handle).st_uid == os.getuid() and takes_lock(handle):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def takes_lock(handle: int) -> bool:
    """Take the lock of an open file, which goes with the last handle of that opening; False where somebody holds it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody can look for leftovers there either
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Have the names of new files on disk."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
