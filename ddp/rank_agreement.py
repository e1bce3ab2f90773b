"""The order in which gradients come: recorded in the first reduced backward, agreed on by all ranks.

It is not known before a backward has run. The first layout of the buckets follows the reverse order of definition.
Where that is wrong, nothing can start before the end: the bucket that must go first fills last. So the first reduced
backward records the order in which gradients came, and the next forward lays the buckets out by it, on all ranks by
that of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ddpsim.ddp.backward_progress import StaticGraph
from ddpsim.ddp.bucket_plan import complete_order


class DiscoveredOrder:
    """What is known of it: nothing, recorded on this rank, or agreed on."""

    __slots__ = ("_count", "_seen", "agreed", "is_due")

    def __init__(self, count: int) -> None:
        self._count = count
        self._seen: list[int] = []
        self.is_due = False
        """A backward has been recorded, and the ranks have not agreed on its order yet."""
        self.agreed: tuple[int, ...] | None = None
        """Indices of all parameters in the order in which the buckets take them, once the ranks agreed."""

    def record(self, index: int) -> None:
        """A gradient has come."""
        if self.agreed is None:
            self._seen.append(index)

    def forget(self) -> None:
        """The backward that was being recorded came to nothing."""
        self._seen.clear()

    def end_backward(self) -> None:
        """A backward has been reduced."""
        self.is_due = self.agreed is None

    @property
    def is_known(self) -> bool:
        """Whether a backward has been recorded, here or elsewhere."""
        return self.is_due or self.agreed is not None

    @property
    def best(self) -> tuple[int, ...]:
        """All parameters, in the order agreed on, or as recorded here so far."""
        return self.agreed if self.agreed is not None else complete_order(self._seen, self._count)

    def agree(self, source: int, group: ProcessGroup, device: torch.device) -> tuple[int, ...]:
        """Take the order of group rank `source`; a collective that every rank of the group has to make."""
        indices = torch.tensor(self.best, dtype=torch.int64, device=device)
        dist.broadcast(indices, group=group, src=dist.get_global_rank(group, source))
        return self.adopt(indices.tolist())

    def adopt(self, order: Sequence[int]) -> tuple[int, ...]:
        """Take over an order that the ranks agreed on."""
        self.agreed = tuple(order)
        self.is_due = False
        self._seen.clear()
        return self.agreed


class UsedMap:
    """The map of one backward, on its way."""

    __slots__ = ("_users", "_work")

    def __init__(self, used: Iterable[int], count: int, group: ProcessGroup, device: torch.device) -> None:
        users = torch.zeros(count, dtype=torch.int32)
        users[list(used)] = 1
        self._users: Tensor = users.to(device)
        """int32 [count]: how many ranks have used each parameter, once the work is done."""
        self._work: Any = dist.all_reduce(self._users, group=group, async_op=True)

    def wait(self) -> None:
        """Wait, and read nothing: on an accelerator the program need not stop for it."""
        self._work.wait()

    def unused(self) -> frozenset[int]:
        """Wait; return the indices of the parameters that no rank has used."""
        self._work.wait()
        return frozenset(index for index, users in enumerate(self._users.tolist()) if not users)


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
