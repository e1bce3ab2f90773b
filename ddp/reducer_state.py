"""What a reducer finds out by training, as one tensor: ranks that joined before they saw it take it over afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ddpsim.ddp.rebuild import DiscoveredOrder
from ddpsim.ddp.static_graph import StaticGraph

_ROWS = 4


@dataclass(frozen=True, slots=True)
class ReducerState:
    """Of one reducer; everything by index of the parameter."""

    steps: int
    """The number of its latest synchronizing forward."""
    order: tuple[int, ...] | None
    """Of the gradients, if a backward has shown it."""
    times: tuple[int, ...] | None
    """How often each parameter gets a gradient in a static graph, if the first backward has shown it."""
    unused_everywhere: frozenset[int]
    """Parameters of a static graph that no rank uses."""
    count: int
    """How many parameters there are."""

    @classmethod
    def of(cls, steps: int, order: DiscoveredOrder, static_graph: StaticGraph | None, count: int) -> ReducerState:
        """What was found out here."""
        learned = static_graph if static_graph is not None and static_graph.is_learned else None
        return cls(
            steps,
            order.best if order.is_known else None,
            None if learned is None else learned.times_by_index(count),
            (learned and learned.unused_everywhere) or frozenset(),
            count,
        )

    def shared(self, source: int, group: ProcessGroup, device: torch.device) -> ReducerState:
        """What group rank `source` has found out; a collective that every rank of the group has to make."""
        rows = self.encode().to(device)
        dist.broadcast(rows, dist.get_global_rank(group, source), group=group)
        return self.decode(rows)

    def encode(self) -> Tensor:
        """As int64 [4, count + 1]: each row begins with a number, or with whether it is known."""
        rows = torch.zeros(_ROWS, self.count + 1, dtype=torch.int64)
        rows[0, 0] = self.steps
        for row, values in ((1, self.order), (2, self.times)):
            if values is not None:
                rows[row] = torch.tensor([1, *values])
        rows[3, [index + 1 for index in self.unused_everywhere]] = 1
        return rows

    @classmethod
    def decode(cls, tensor: Tensor) -> ReducerState:
        """From `encode`."""
        steps, order, times, unused = tensor.tolist()
        return cls(
            steps[0],
            tuple(order[1:]) if order[0] else None,
            tuple(times[1:]) if times[0] else None,
            frozenset(index for index, flag in enumerate(unused[1:]) if flag),
            len(unused) - 1,
        )
