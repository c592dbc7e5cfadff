"""Fixtures that several test files share."""

from browsing import browser

__all__ = ["browser"]
