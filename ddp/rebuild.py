"""The order in which gradients come: recorded in the first reduced backward, agreed on by all ranks.

It is not known before a backward has run. The first layout of the buckets follows the reverse order of definition.
Where that is wrong, nothing can start before the end: the bucket that must go first fills last. So the first reduced
backward records the order in which gradients came, and the next forward lays the buckets out by it, on all ranks by
that of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

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
