"""What the ranks of a reducer agree on by collectives: the order of gradients, unused parameters, learned state.

Before a backward has run, the order of gradients is unknown, and buckets follow the reverse order of definition. If
that is wrong, the bucket that must be first fills last, so no reduction can start early. So the first reduced backward
records the order, and before the next forward all ranks lay out their buckets by the order of one rank.
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
from ddpsim.ddp.bucket_plan import append_unseen_parameters


class GradientOrder:
    """The order in which a backward computes gradients: unknown, recorded on this rank, or agreed on by all ranks."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._seen: list[int] = []
        self.is_due = False
        """Whether a backward's order was recorded and the ranks have not agreed on it yet."""
        self.agreed: tuple[int, ...] | None = None
        """Indices of all parameters in the order of the buckets; None until the ranks have agreed."""

    def record_gradient(self, index: int) -> None:
        """Record that a gradient was computed."""
        if self.agreed is None:
            self._seen.append(index)

    def drop_recorded(self) -> None:
        """Forget the order of gradients that was recorded in a failed backward."""
        self._seen.clear()

    def end_backward(self) -> None:
        """Record that the gradients of a backward were reduced."""
        self.is_due = self.agreed is None

    @property
    def is_known(self) -> bool:
        """Whether this rank or another rank has recorded the order."""
        return self.is_due or self.agreed is not None

    @property
    def known_order(self) -> tuple[int, ...]:
        """All parameters, in the agreed order if there is one, else in the order recorded on this rank."""
        return self.agreed if self.agreed is not None else append_unseen_parameters(self._seen, self._count)

    def agree_on_order(self, source: int, group: ProcessGroup, device: torch.device) -> tuple[int, ...]:
        """Take over the order of group rank `source`; a collective that every rank of the group must make."""
        indices = torch.tensor(self.known_order, dtype=torch.int64, device=device)
        dist.broadcast(indices, group=group, src=dist.get_global_rank(group, source))
        return self.use_agreed_order(indices.tolist())

    def use_agreed_order(self, order: Sequence[int]) -> tuple[int, ...]:
        """Use an order that the ranks agreed on."""
        self.agreed = tuple(order)
        self.is_due = False
        self._seen.clear()
        return self.agreed


class UsedParameterCount:
    """Counts for each parameter how many ranks used it: one small all_reduce in flight."""

    def __init__(self, used: Iterable[int], count: int, group: ProcessGroup, device: torch.device) -> None:
        users = torch.zeros(count, dtype=torch.int32)
        users[list(used)] = 1
        self._users: Tensor = users.to(device)
        """int32 [count]: the number of ranks that used each parameter, once the all_reduce has finished."""
        self._work: Any = dist.all_reduce(self._users, group=group, async_op=True)

    def wait_for_count(self) -> None:
        """Make later work on the device wait for the all_reduce; the program itself does not wait."""
        self._work.wait()

    def unused_parameters(self) -> frozenset[int]:
        """Wait for the all_reduce; return the indices of the parameters that no rank has used."""
        self._work.wait()
        return frozenset(index for index, users in enumerate(self._users.tolist()) if not users)


@dataclass(frozen=True, slots=True)
class LearnedState:
    """What a reducer learned in training, for ranks that ran out of input earlier. Indices are of parameters."""

    steps: int
    """The number of the latest synchronizing forward."""
    order: tuple[int, ...] | None
    """The order of gradients; None before the first backward."""
    times: tuple[int, ...] | None
    """The number of gradients per backward of each parameter of a static graph; None before the first backward."""
    unused_everywhere: frozenset[int]
    """Parameters of a static graph that no rank uses."""
    count: int
    """The number of parameters."""

    @classmethod
    def of_reducer(cls, steps: int, order: GradientOrder, static_graph: StaticGraph | None, count: int) -> LearnedState:
        """Return the state of this rank's reducer."""
        learned = static_graph if static_graph is not None and static_graph.is_learned else None
        return cls(
            steps,
            order.known_order if order.is_known else None,
            None if learned is None else learned.gradient_counts(count),
            (learned and learned.unused_everywhere) or frozenset(),
            count,
        )

    def broadcast_from(self, source: int, group: ProcessGroup, device: torch.device) -> LearnedState:
        """Return what group rank `source` learned; a collective that every rank of the group must make."""
        rows = self.encode().to(device)
        dist.broadcast(rows, dist.get_global_rank(group, source), group=group)
        return self.decode(rows)

    def encode(self) -> Tensor:
        """Encode as int64 [4, count + 1]: the first number of a row is the step, or whether the row is known."""
        rows = torch.zeros(4, self.count + 1, dtype=torch.int64)
        rows[0, 0] = self.steps
        for row, values in ((1, self.order), (2, self.times)):
            if values is not None:
                rows[row] = torch.tensor([1, *values])
        rows[3, [index + 1 for index in self.unused_everywhere]] = 1
        return rows

    @classmethod
    def decode(cls, tensor: Tensor) -> LearnedState:
        """Return the state from the tensor that `encode` returned."""
        steps, order, times, unused = tensor.tolist()
        return cls(
            steps[0],
            tuple(order[1:]) if order[0] else None,
            tuple(times[1:]) if times[0] else None,
            frozenset(index for index, flag in enumerate(unused[1:]) if flag),
            len(unused) - 1,
        )
