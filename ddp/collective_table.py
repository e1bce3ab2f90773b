"""A table of the collectives of process groups.

For each it says what a rank without input must contribute. tests/architecture/test_operations.py compares the table
with the simulator's own, which the engine does not import.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import ProcessGroup

# torch 2.13 has renamed these two.
_all_gather_single: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

Contribution = tuple["Tensor | Sequence[Tensor]", Any]
"""What a rank contributes to a call, from the arguments of the group's method: tensors and options."""


class JoinedRankPart(NamedTuple):
    """What a rank without input contributes to one collective."""

    method: str
    """The process group's method that the other ranks call."""
    group: ProcessGroup
    own: list[Tensor]
    """The tensors that this rank contributes."""
    op: Any
    root: int
    """The global rank of the collective's root, if it has one."""

    def empty_tensor_per_rank(self) -> list[Tensor]:
        """Return one empty tensor for each rank, shaped like this rank's tensor."""
        return [torch.empty_like(self.own[0]) for _ in range(dist.get_world_size(self.group))]

    def empty_for_all_ranks(self, tensor: Tensor) -> Tensor:
        """Return one empty tensor for the results of all ranks, concatenated along the first dimension."""
        rows, *rest = tensor.shape or (1,)
        return tensor.new_empty(dist.get_world_size(self.group) * rows, *rest)

    def empty_for_one_rank(self, tensor: Tensor) -> Tensor:
        """Return an empty tensor for this rank's part of a tensor."""
        rows, *rest = tensor.shape
        return tensor.new_empty(rows // dist.get_world_size(self.group), *rest)


class CollectiveRow(NamedTuple):
    """One collective in the table."""

    name: str
    """The collective's name in torch.distributed."""
    methods: tuple[str, ...]
    """The names of the process group's methods for the collective, in torch 2.11 to 2.14."""
    contribution: Callable[..., Contribution | None] | None = None
    """Computes the contribution of a rank without input from the call's arguments; None if such a rank cannot know the
    shapes. If the field is None, such ranks can never take part in this collective."""
    take: Callable[[JoinedRankPart], object] | None = None
    """Makes the collective on a rank without input, and waits for its end."""
    is_rooted: bool = False


def _from_first_argument(tensors: Any, options: Any = None, *rest: Any) -> Contribution:
    return tensors, options


def _from_second_argument(outputs: Any, tensors: Any, options: Any = None, *rest: Any) -> Contribution:
    return tensors, options


def _equal_exchanged_tensors(outputs: list[Tensor], tensors: list[Tensor], *rest: Any) -> Contribution | None:
    return (tensors, None) if len({tuple(tensor.shape) for tensor in (*outputs, *tensors)}) <= 1 else None


def _equal_split_tensor(output: Tensor, tensor: Tensor, outputs: Any, inputs: Any, *rest: Any) -> Contribution | None:
    return (tensor, None) if len({*outputs, *inputs}) <= 1 and output.shape == tensor.shape else None


def _from_no_tensors(*rest: Any) -> Contribution:
    return [], None


def _join_all_reduce_coalesced(part: JoinedRankPart) -> None:
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = part.op
    part.group.allreduce_coalesced(part.own, options).wait()


def _join_all_gather_coalesced(part: JoinedRankPart) -> None:
    getattr(part.group, part.method)(
        [part.empty_for_all_ranks(each) for each in part.own], part.own, AllgatherOptions()
    ).wait()


def _join_gather(part: JoinedRankPart) -> None:
    outputs = part.empty_tensor_per_rank() if dist.get_rank() == part.root else None
    dist.gather(part.own[0], outputs, part.root, group=part.group)


def _join_reduce_scatter(part: JoinedRankPart) -> None:
    output = torch.empty_like(part.own[dist.get_rank(part.group)])
    dist.reduce_scatter(output, part.own, op=part.op, group=part.group)


def _join_reduce_scatter_coalesced(part: JoinedRankPart) -> None:
    options = dist.ReduceScatterOptions()
    options.reduceOp = part.op
    getattr(part.group, part.method)([part.empty_for_one_rank(each) for each in part.own], part.own, options).wait()


_ROWS = (
    CollectiveRow(
        "all_reduce",
        ("allreduce",),
        _from_first_argument,
        lambda p: dist.all_reduce(p.own[0], op=p.op, group=p.group),
    ),
    CollectiveRow("all_reduce_coalesced", ("allreduce_coalesced",), _from_first_argument, _join_all_reduce_coalesced),
    CollectiveRow(
        "broadcast",
        ("broadcast",),
        _from_first_argument,
        lambda p: dist.broadcast(p.own[0], p.root, group=p.group),
        is_rooted=True,
    ),
    CollectiveRow(
        "all_gather",
        ("allgather",),
        _from_second_argument,
        lambda p: dist.all_gather(p.empty_tensor_per_rank(), p.own[0], group=p.group),
    ),
    CollectiveRow(
        "all_gather_into_tensor",
        ("all_gather_single", "_allgather_base"),
        _from_second_argument,
        lambda p: _all_gather_single(p.empty_for_all_ranks(p.own[0]), p.own[0], group=p.group),
    ),
    CollectiveRow(
        "reduce",
        ("reduce",),
        _from_first_argument,
        lambda p: dist.reduce(p.own[0], p.root, op=p.op, group=p.group),
        is_rooted=True,
    ),
    CollectiveRow(
        "reduce_scatter",
        ("reduce_scatter",),
        lambda outputs, lists, options=None: (lists[0], options),
        _join_reduce_scatter,
    ),
    CollectiveRow(
        "reduce_scatter_tensor",
        ("reduce_scatter_single", "_reduce_scatter_base"),
        _from_second_argument,
        lambda p: _reduce_scatter_single(p.empty_for_one_rank(p.own[0]), p.own[0], op=p.op, group=p.group),
    ),
    CollectiveRow("gather", ("gather",), _from_second_argument, _join_gather, is_rooted=True),
    CollectiveRow("gather_single", ("gather_single",)),
    CollectiveRow("gather_into_tensor", ("gather_into_tensor",)),
    CollectiveRow(
        "scatter",
        ("scatter",),
        lambda outputs, lists, options: (outputs, options),
        lambda p: dist.scatter(p.own[0], None, p.root, group=p.group),
        is_rooted=True,
    ),
    CollectiveRow(
        "all_to_all",
        ("alltoall",),
        _equal_exchanged_tensors,
        lambda p: dist.all_to_all(list(map(torch.empty_like, p.own)), p.own, group=p.group),
    ),
    CollectiveRow(
        "all_to_all_single",
        ("all_to_all_single", "alltoall_base"),
        _equal_split_tensor,
        lambda p: dist.all_to_all_single(torch.empty_like(p.own[0]), p.own[0], group=p.group),
    ),
    CollectiveRow("barrier", ("barrier",), _from_no_tensors, lambda p: dist.barrier(group=p.group)),
    CollectiveRow(
        "monitored_barrier",
        ("monitored_barrier",),
        _from_no_tensors,
        lambda p: dist.monitored_barrier(group=p.group),
    ),
    CollectiveRow("all_gather_coalesced", ("allgather_coalesced",)),
    CollectiveRow(
        "all_gather_into_tensor_coalesced",
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        _from_second_argument,
        _join_all_gather_coalesced,
    ),
    CollectiveRow(
        "reduce_scatter_tensor_coalesced",
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        _from_second_argument,
        _join_reduce_scatter_coalesced,
    ),
    CollectiveRow("send", ("send",)),
    CollectiveRow("recv", ("recv", "recv_anysource")),
    CollectiveRow("a batch of calls (batch_isend_irecv)", ("_start_coalescing",)),
)

TABLE = {method: row for row in _ROWS for method in row.methods}
"""The table: for each name of a process group's method, its collective."""
OPERATIONS = tuple(TABLE)
