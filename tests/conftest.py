"""Fixtures that several test files share, and the order of the files."""

import os

import pytest
from hypothesis import settings

from browsing import browser
from commands import here

__all__ = ["browser", "here"]

# Two processes test at a time, and threads of OpenMP that wait for each other take most of the processors' time. Read
# when numpy, torch and scikit-learn are loaded, here and in every process that is started.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says more about the machine than about the code
settings.register_profile("ponn", deadline=None)
settings.load_profile("ponn")

# Files are dealt out to processes one after the other: those that take longest come first, so that none is left at the
# end for one process alone.
LONGEST = ("test_docs", "test_trainers", "test_clusters", "test_learn_on_disk", "test_studio", "test_evaluation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
