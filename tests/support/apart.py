"""Work that tests have done apart; imported by the workers, so nothing heavy is imported here."""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

from ponn.errors import PonnError
from ponn.serving.rows import RowError


class OwnError(PonnError):
    """Of a class that only tests know."""

    status = 418


def add(a, b):
    return {"sum": a + b, "nothing": None, "list": [1.5, "ü"]}


def limits():
    import resource

    mask = os.umask(0)
    names = ("RLIMIT_CORE", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_CPU")
    soft = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
    return soft | {"umask": mask, "open": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()}


def refuse_row():
    raise RowError(3, "age", "it is a text", "a number")


def refuse_own():
    raise OwnError("not so")


def mistake(cell):
    return {}[cell]


def eat_memory():
    kept = []
    while True:
        kept.append(bytearray(1 << 22))


def eat_memory_politely():
    try:
        eat_memory()
    except MemoryError as error:
        raise PonnError("The file could not be read. Is it complete?") from error


def abort_for_memory():
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def never_end():
    while True:
        pass


def never_read(path):
    never_end()


def crash():
    ctypes.string_at(0)


def end():
    os.kill(os.getpid(), signal.SIGKILL)


def talk(size):
    os.write(1, b"x" * size)
    os.write(2, b"secret " * size)
    return "done"


def answer_with(size):
    return "x" * size


def no_plain_value():
    return object()


def write_file(path, size):
    with open(path, "wb") as file:
        file.write(b"x" * size)


def rest(path, seconds):
    """Say who is at work, and stay."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(seconds)


def modules():
    import sys

    return sorted(sys.modules)
