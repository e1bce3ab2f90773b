"""A forward or a backward more than the reducer expects, on one rank or on all."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, odd_one_out, repairs, scenario


def train() -> DistributedDataParallel:
    """Train a model that keeps running statistics."""
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return model


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(0)),
    reports=[
        "pytorch/pytorch#54059",
        "jpata/particleflow#233",
        "LibreYOLO/libreyolo#594",
        "pytorch/pytorch#89716",
    ],
    tags=["ddp", "control-flow", "buffers"],
)
def rank0_eval_through_wrapper_with_buffers(rank: int) -> None:
    """Rank 0 evaluates through the wrapper: its forward broadcasts the buffers, while the others wait in a barrier.

    A forward synchronises buffers in evaluation and under `no_grad`, too. On gloo broadcast and barrier wait for
    their time-outs; a model without buffers gets away with it.
    """
    torch.manual_seed(rank)
    model = train()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            model(torch.randn(8, 4))  # found here
    dist.barrier()


@repairs(rank0_eval_through_wrapper_with_buffers)
def rank0_eval_through_wrapper_with_buffers_repaired(rank: int) -> None:
    """Rank 0 evaluates the inner module, which communicates nothing."""
    torch.manual_seed(rank)
    model = train()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(8, 4))
    dist.barrier()


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=0),
    under_ddp=finds(Code.MISMATCH_OPERATION, ranks=0),
    reports=["pytorch/pytorch#54159", "pytorch/pytorch#54059", "pytorch/PiPPy#665"],
    tags=["reducer", "ddp"],
    min_world_size=3,
)
def rank0_forward_rebuilds_buckets(rank: int) -> None:
    """Rank 0 makes one forward more, which broadcasts how buckets are rebuilt after the first step.

    It needs no buffers: the layout of the buckets is shared once, in the forward that follows the first backward.
    Real gloo: the broadcast meets a barrier, and both time out.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model(torch.randn(8, 10)).square().mean().backward()
    if rank == 0:
        model(torch.randn(8, 10))  # found here
    dist.barrier()
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(rank0_forward_rebuilds_buckets)
def rank0_forward_rebuilds_buckets_repaired(rank: int) -> None:
    """The extra forward is one of the inner module."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model(torch.randn(8, 10)).square().mean().backward()
    if rank == 0:
        model.module(torch.randn(8, 10))
    dist.barrier()
    model(torch.randn(8, 10)).square().mean().backward()


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["meta-pytorch/torchrec#4758", "pytorch/pytorch#59359"],
    tags=["reducer", "accumulation", "ddp"],
)
def reducer_armed_by_another_forward(rank: int) -> None:
    """Two graphs are outstanding, and the backward of the first uses up the reduction for the second.

    The last forward arms the reducer for the next backward, whichever it is. Real gloo: no error; the second
    graph's gradients stay local and the parameters differ. Our engine raises at the second backward.
    """
    # Pipeline two micro-batches: both forwards, the last outside `no_sync`, then both backwards.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        first = model(torch.randn(8, 10)).square().mean()
    second = model(torch.randn(8, 10)).square().mean()
    first.backward()
    second.backward()  # found here by ddp
    optimizer.step()  # found here by torch


@repairs(reducer_armed_by_another_forward)
def reducer_armed_by_another_forward_repaired(rank: int) -> None:
    """One backward runs both graphs."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        first = model(torch.randn(8, 10)).square().mean()
    second = model(torch.randn(8, 10)).square().mean()
    (first + second).backward()
    optimizer.step()


class Recurrent(torch.nn.Module):
    """A layer that runs twice, and keeps no activations."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(10, 10)
        self.layer = torch.nn.Linear(10, 10)
        self.use_reentrant = use_reentrant

    def forward(self, batch: Tensor) -> Tensor:
        """The batch, through the layer twice."""
        state: Tensor = self.embed(batch)
        for _ in range(2):
            state = checkpoint(self.layer, state, use_reentrant=self.use_reentrant)
        return state


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=[
        "pytorch/pytorch#24005",
        "huggingface/trl#835",
        "modelscope/ms-swift#3171",
        "lucidrains/DALLE2-pytorch#225",
    ],
    tags=["reducer", "ddp"],
)
def reentrant_checkpoint_reuses_layer(rank: int) -> None:
    """A layer is used twice under reentrant checkpointing, and its gradient is announced twice.

    Each checkpoint runs a backward of its own inside the backward, and each of them finishes the layer's gradient.
    Real gloo: every rank raises "mark a variable ready only once".
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(Recurrent(use_reentrant=True))
    model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(reentrant_checkpoint_reuses_layer)
def reentrant_checkpoint_reuses_layer_repaired(rank: int) -> None:
    """Checkpoints that are not reentrant stay inside the one backward."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Recurrent(use_reentrant=False))
    model(torch.randn(8, 10)).square().mean().backward()


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=finds(Code.RANK_ERROR, ranks=every_rank),
    reports=["pytorch/pytorch#59359"],
    tags=["reducer", "ddp"],
)
def second_backward_over_retained_graph(rank: int) -> None:
    """A second backward runs over a retained graph, and its gradients are not averaged.

    A forward arms the reducer for one backward. Real gloo: no error; the second loss adds each rank's own gradients
    to the averaged ones, and the parameters differ. Our engine raises at the second backward.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    answer = model(torch.randn(8, 10))
    answer.square().mean().backward(retain_graph=True)
    answer.abs().mean().backward()  # found here by ddp
    optimizer.step()  # found here by torch


@repairs(second_backward_over_retained_graph)
def second_backward_over_retained_graph_repaired(rank: int) -> None:
    """One backward of the sum of the losses."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    answer = model(torch.randn(8, 10))
    (answer.square().mean() + answer.abs().mean()).backward()
    optimizer.step()


@scenario(
    expected=CLEAN,
    reports=["pytorch/pytorch#175024", "pytorch/pytorch#22095", "pytorch/pytorch#65907", "pytorch/pytorch#175851"],
    tags=["reducer", "buffers", "ddp"],
)
def two_forwards_one_backward_with_buffers(rank: int) -> None:
    """Two forwards before one backward: the second one's broadcast of buffers does not disturb the first one's graph.

    Older releases raised "modified by an inplace operation", as the broadcast changed buffers that the first
    forward had saved. Real gloo with torch 2.13: no error, the replicas stay equal.
    """
    # Compare two views of a batch, each in a forward of its own.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        first, second = torch.randn(8, 10), torch.randn(8, 10)
        (model(first) - model(second)).square().mean().backward()
        optimizer.step()
