"""Processes that train one network together: each reads its share of the rows, and they average what they find.

Only the contract of torch.distributed is relied on (a process group exists, or none does), so that torchrun, Ray Train
and a lone process run the same loop.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Team:
    """This process among those that train; a lone process is a team of one."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> "Team":
        """The team of the process group, where there is one."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return cls()
        return cls(distributed.get_rank(), distributed.get_world_size())

    def meet(self) -> None:
        """Connect: from here on a process that is gone is noticed by the others, who would wait for it before."""
        if self.size > 1:
            distributed.barrier()

    def average(self, values: Tensor, rows: int) -> None:
        """Put the mean over all processes in the place of values that are means over `rows` rows each."""
        if self.size == 1:
            return
        together = torch.cat([values * rows, values.new_tensor([rows])])
        distributed.all_reduce(together)
        torch.div(together[:-1], together[-1], out=values)

    def averaged(self, value: float, rows: int) -> float:
        """The mean over all processes of a number that is a mean over `rows` rows."""
        found = torch.tensor([value], dtype=torch.float64)
        self.average(found, rows)
        return float(found[0])

    def agreed(self, value: float) -> float:
        """The number that the first process has: processors may differ in the last bit, decisions may not."""
        if self.size == 1:
            return value
        found = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(found, 0)
        return float(found[0])

    def gathered(self, numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Whole numbers of every process, by rank."""
        if self.size == 1:
            return [numbers]
        mine = torch.tensor(numbers, dtype=torch.int64)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(found, mine)
        return [tuple(one.tolist()) for one in found]

    def share(self, first: int, last: int) -> tuple[int, int]:
        """This process's share of neighbouring rows."""
        edges = [first + (last - first) * one // self.size for one in (self.rank, self.rank + 1)]
        return edges[0], edges[1]
