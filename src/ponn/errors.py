"""Errors a user can cause, and their words: what was seen, what was expected, where, and what to do."""

from collections.abc import Iterable

SHOWN = 5  # how many rows or values an error lists


class PonnError(ValueError):
    """A mistake in the input or the call that the user can mend."""


class LimitError(PonnError):
    """Work that reached a limit of memory, time or size."""

    status = 413  # of HTTP


class LogError(PonnError):
    """The table was read and its columns exist, but what they hold cannot be learned from."""


class Note(str):
    """A note on a log that quotes rows, cells or counts of a few people, and what may be passed on of it."""

    passed_on: str

    def __new__(cls, text: str, passed_on: str = "") -> "Note":
        """The note, and what is left of it for others."""
        found = super().__new__(cls, text)
        found.passed_on = passed_on
        return found


def one_line(error: Exception) -> str:
    """The start of an exception's message, on one line, without a full stop."""
    return " ".join(str(error).split())[:300].removesuffix(".")


def listing(names: Iterable[object], most: int = 8) -> str:
    """Names in quotes, the first few of them."""
    names = list(names)
    told = ", ".join(repr(name) for name in names[:most])
    return told + (f" and {len(names) - most} more" if len(names) > most else "")


def install_line(*extras: str) -> str:
    """What installs ponn with extras; the name `ponn` on the package index belongs to another project."""
    return f"pip install 'ponn-policy[{','.join(extras)}]'"
