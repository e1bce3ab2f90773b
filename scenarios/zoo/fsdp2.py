"""Models that are sharded by FSDP2."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def sharded(model: Module, layers: Iterable[Module] = ()) -> Module:
    """The model as a unit of FSDP2, each of these layers as a unit of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in (*layers, model):
        fully_shard(unit, mesh=mesh)
    return model


def two_layers() -> Module:
    """Each a unit of its own."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    return sharded(model, model)


@scenario(expected=finds(Code.MISMATCH_OPERATION, ranks=0), tags=["fsdp2", "control-flow"], min_world_size=3)
def fsdp2_evaluation_on_one_rank(rank: int) -> None:
    """Rank 0 evaluates a model sharded by FSDP2, whose forward takes every rank, and the others are in a barrier.

    With DDP's inner module the same loop is right, as each rank has the whole model. Real gloo: both sides time
    out.
    """
    model = two_layers()
    model(torch.ones(2, 4)).sum().backward()
    if rank == 0:
        with torch.no_grad():
            model(torch.ones(2, 4))  # found here
    dist.barrier()


@repairs(fsdp2_evaluation_on_one_rank)
def fsdp2_evaluation_on_one_rank_repaired(rank: int) -> None:
    """All ranks evaluate."""
    model = two_layers()
    model(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():
        model(torch.ones(2, 4))
    dist.barrier()


class Blocks(Module):
    """Layers of one size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, batch: Tensor, left_out: int | None = None) -> Tensor:
        """The batch, through all layers but one."""
        for index, layer in enumerate(self.layers):
            batch = batch if index == left_out else layer(batch)  # found here
        return batch


def sharded_blocks() -> Module:
    """Each layer a unit of its own."""
    model = Blocks()
    return sharded(model, model.layers)


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=1),
    reports=["pytorch/pytorch#75902"],
    tags=["fsdp2", "control-flow"],
    min_world_size=3,
)
def fsdp2_layer_dropped_on_one_rank(rank: int) -> None:
    """One rank drops a layer at random, and each layer is a unit of FSDP2: its gathers are one unit off.

    Gathers pair by their order. So the parameters of the next layer are put together from shards of two layers, and
    real gloo, which compares sizes at most, says nothing before the last gather.
    """
    model = sharded_blocks()
    model(torch.ones(2, 4), 1 if rank == 1 else None).sum().backward()


@repairs(fsdp2_layer_dropped_on_one_rank)
def fsdp2_layer_dropped_on_one_rank_repaired(rank: int) -> None:
    """All ranks draw the layer from one seed."""
    model = sharded_blocks()
    generator = torch.Generator().manual_seed(7)
    model(torch.ones(2, 4), int(torch.randint(3, (1,), generator=generator))).sum().backward()


class Routed(Module):
    """A second layer for batches that need it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, batch: Tensor, is_long: bool) -> Tensor:
        """The batch, through one layer or both."""
        first: Tensor = self.first(batch)
        second: Tensor = self.second(first)
        return second if is_long else first


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=1),
    reports=["pytorch/pytorch#158719", "pytorch/pytorch#170667", "pytorch/pytorch#174862"],
    tags=["fsdp2", "unused"],
    min_world_size=3,
)
def fsdp2_parameter_used_on_one_rank(rank: int) -> None:
    """A unit of FSDP2 has two layers, and one rank's batch uses only the first: its gradients are fewer.

    A unit reduces the gradients that there are as one tensor, so the ranks bring tensors of different lengths. Real
    gloo: the process with the shorter one aborts, the others read a closed connection.
    """
    # One forward and backward; the batch of rank 1 is short.
    model = sharded(Routed())
    model(torch.ones(2, 4), rank != 1).sum().backward()  # found here


@repairs(fsdp2_parameter_used_on_one_rank)
def fsdp2_parameter_used_on_one_rank_repaired(rank: int) -> None:
    """The loss depends on both layers everywhere, on the second by zero where the batch is short."""
    model = sharded(Routed())
    long, short = (model(torch.ones(2, 4), is_long).sum() for is_long in (True, False))
    (long + 0 * short if rank != 1 else short + 0 * long).backward()


@scenario(expected=finds(Code.MISMATCH_ORIGIN, ranks=1), tags=["fsdp2", "optimizer", "control-flow"], min_world_size=3)
def fsdp2_step_skipped_on_one_rank(rank: int) -> None:
    """One rank skips an optimizer step, and its shards stay behind: parameters are put together from two steps.

    The loss of its own batch decides, which is infinite there only. Nothing is out of step for the backend: real
    gloo trains on, with parameters that no single step has had.
    """
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()  # found here
        loss.backward()
        if (rank, step) != (1, 1):
            optimizer.step()


@repairs(fsdp2_step_skipped_on_one_rank)
def fsdp2_step_skipped_on_one_rank_repaired(rank: int) -> None:
    """One rank that cannot step keeps all from it."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        may_step = torch.tensor(int((rank, step) != (1, 1)))
        dist.all_reduce(may_step, op=dist.ReduceOp.MIN)
        if may_step:
            optimizer.step()
