"""Ranks that leave a loop or a function early, by what they see themselves."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def next_token(shard: Tensor, token: Tensor) -> Tensor:
    """One step of a model, of which each rank keeps a shard."""
    parameters = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parameters, shard)  # found here
    return torch.stack(parameters).mean() + token


def average(score: Tensor) -> float:
    """The mean over the ranks."""
    dist.all_reduce(score)  # found here
    return score.item() / dist.get_world_size()


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=["deepspeedai/DeepSpeed#8262", "huggingface/transformers#30150"],
    tags=["loop", "raw"],
)
def autoregressive_length_differs(rank: int) -> float:
    """Each rank generates until its own end of text, with a collective for every token: they leave the loop at other times.

    A model whose parameters are sharded gathers them for every token. The rank that ends first continues and
    averages its score, which meets a gather of the others. On gloo both sides wait for their time-outs.
    """
    # Generate 4 tokens, 2 on rank 1; then average the scores.
    token = torch.zeros(())
    for _ in range(2 if rank == 1 else 4):
        token = next_token(torch.ones(()), token)
    return average(token)


@repairs(autoregressive_length_differs)
def autoregressive_length_differs_repaired(rank: int) -> float:
    """A rank at its end takes part in the steps of the others, without using them, until all are at theirs."""
    token = torch.zeros(())
    length = 0
    while True:
        is_done = length == (2 if rank == 1 else 4)
        all_are_done = torch.tensor(int(is_done))
        dist.all_reduce(all_are_done, op=dist.ReduceOp.MIN)
        if all_are_done:
            break
        following = next_token(torch.ones(()), token)
        if not is_done:
            token, length = following, length + 1
    return average(token)


def gathered(samples: list[int], *, returns_early: bool) -> list[int]:
    """The samples of all ranks."""
    if returns_early and not samples:
        return []
    every: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, samples)  # found here
    return [sample for part in every for sample in part]


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["huggingface/trl#5841"],
    tags=["control-flow", "raw"],
    min_world_size=3,
)
def early_return_when_nothing_is_local(rank: int) -> list[int]:
    """A rank that has nothing to gather returns at once, and the others wait for it in the gather.

    The guard saves work on one machine; with ranks, an empty list has to be gathered, too. Real gloo: the others
    get an error as its process ends, or time out.
    """
    return gathered([] if rank == 1 else [rank], returns_early=True)


@repairs(early_return_when_nothing_is_local)
def early_return_when_nothing_is_local_repaired(rank: int) -> list[int]:
    """Ranks without samples gather as well."""
    return gathered([] if rank == 1 else [rank], returns_early=False)


def validation_loss(rank: int, epoch: int) -> float:
    """It falls on every rank, except that on rank 1 it rises from epoch 3 on."""
    return 1.0 + epoch if rank == 1 and epoch >= 3 else 1.0 / (1 + epoch)


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=[
        "Lightning-AI/pytorch-lightning#379",
        "ultralytics/yolov5#8345",
        "speechbrain/speechbrain#2051",
        "isi-nlp/rtg#11",
        "pytorch/pytorch#134920",
    ],
    tags=["ddp", "control-flow"],
)
def early_stop_decided_locally(rank: int) -> float:
    """Each rank stops early by its own validation loss: one leaves the loop, and its summary meets the others' gradients.

    On gloo the rank that expects fewer bytes aborts its process, and the others see a reset connection; neither
    names the loop.
    """
    # Train up to 6 epochs of a batch, while the validation loss falls; then add up the losses.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    best = float("inf")
    for epoch in range(6):
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        if validation_loss(rank, epoch) > best:
            break
        best = validation_loss(rank, epoch)
    summary = torch.tensor([best])
    dist.all_reduce(summary)  # found here
    return summary.item()


@repairs(early_stop_decided_locally)
def early_stop_decided_locally_repaired(rank: int) -> float:
    """The ranks share whether to stop: as soon as one of them wants to, all do."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    best = float("inf")
    for epoch in range(6):
        model(torch.randn(8, 10)).square().mean().backward()
        stop = torch.tensor(int(validation_loss(rank, epoch) > best))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop:
            break
        best = validation_loss(rank, epoch)
    summary = torch.tensor([best])
    dist.all_reduce(summary)
    return summary.item()


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["Lightning-AI/pytorch-lightning#379", "ultralytics/yolov5#8345", "isi-nlp/rtg#11"],
    tags=["ddp", "control-flow"],
)
def early_stop_then_return(rank: int) -> None:
    """A rank stops early by its own validation loss and returns, while the others train on and wait for it.

    The rule is sound, but every rank applies it to numbers of its own. On gloo the others see a closed connection.
    """
    # Train up to 6 steps; rank 1 has had no better loss for too long after step 3.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    for step in range(6):
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        patience_is_over = rank == 1 and step == 3
        if patience_is_over:
            return


@repairs(early_stop_then_return)
def early_stop_then_return_repaired(rank: int) -> None:
    """As soon as the patience of one rank is over, all return."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    for step in range(6):
        model(torch.randn(8, 10)).square().mean().backward()
        patience_is_over = torch.tensor(int(rank == 1 and step == 3))
        dist.all_reduce(patience_is_over, dist.ReduceOp.MAX)
        if patience_is_over:
            return
