"""Each rank stops early by its own validation loss: one leaves the loop, and its summary meets the others' gradients.

On gloo the rank that expects fewer bytes aborts its process, and the others see a reset connection; neither names the
loop.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


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
    """Train up to 6 epochs of a batch, while the validation loss falls; then add up the losses."""
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
def repaired(rank: int) -> float:
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
