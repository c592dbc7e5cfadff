"""Worlds with known truth, and small real data: a world by its name, or any classification table turned into one."""

from ponn.simulate.catalogue import WORLDS, to_bandit, world

__all__ = ["WORLDS", "to_bandit", "world"]
