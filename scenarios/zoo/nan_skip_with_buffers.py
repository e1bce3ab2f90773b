"""One rank skips a batch whose loss is NaN: the buffers of its next forward meet the gradients of the others.

Without buffers the same bug would average gradients of different steps in silence. On gloo broadcast and all-reduce
wait for their time-outs.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def batch(rank: int, step: int) -> Tensor:
    """Random numbers; on rank 1 the batch of step 2 is broken."""
    samples = torch.randn(8, 10)
    return samples * float("nan") if rank == 1 and step == 2 else samples


def network() -> torch.nn.Module:
    """A layer, normalised by running statistics, which are buffers."""
    return torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4))


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=["pytorch/audio#3749", "Lightning-AI/pytorch-lightning#19918"],
    tags=["ddp", "control-flow", "buffers"],
)
def nan_skip_with_buffers(rank: int) -> None:
    """Train on 5 batches, without those that give no number."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(batch(rank, step)).square().mean()  # found here
        if torch.isnan(loss):
            continue
        optimizer.zero_grad()
        loss.backward()  # found here
        optimizer.step()


@repairs(nan_skip_with_buffers)
def repaired(rank: int) -> None:
    """A broken batch is replaced by zeros and its loss weighted by zero: forward and backward happen all the same."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        samples = batch(rank, step)
        is_valid = bool(torch.isfinite(samples).all())
        loss = model(samples if is_valid else torch.zeros_like(samples)).square().mean()
        optimizer.zero_grad()
        (loss if is_valid else 0.0 * loss).backward()
        optimizer.step()
