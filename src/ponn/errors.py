"""Errors a user can cause. Each message says what was seen, what was expected, where, and what to do."""


class PonnError(ValueError):
    """A mistake in the input or the call that the user can mend."""


class LogError(PonnError):
    """The table was read and its columns exist, but what they hold cannot be learned from."""
