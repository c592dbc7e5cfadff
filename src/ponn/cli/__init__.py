"""The command line."""

from ponn.cli.program import main

__all__ = ["main"]
