"""Fixtures that several test files share."""

from hypothesis import settings

from browsing import browser

__all__ = ["browser"]

# How long an example takes says more about the machine than about the code
settings.register_profile("ponn", deadline=None)
settings.load_profile("ponn")
