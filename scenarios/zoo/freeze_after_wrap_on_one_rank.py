"""One rank freezes a layer of a wrapped model, and the others wait for its part of the gradients.

The bucket never fills on that rank, which learns of it at its next forward. Real gloo: rank 1 raises there, the others
see a closed connection. Our engine refuses rank 1's first forward, with the names.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["pytorch/pytorch#22049", "NVIDIA/apex#46"],
    tags=["wrapping", "ddp"],
)
def freeze_after_wrap_on_one_rank(rank: int) -> None:
    """Freeze the body once a rank's own loss is small enough, as it is on rank 1."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [0.9, 0.8, 0.2, 0.1] if rank == 1 else [0.9, 0.8, 0.7, 0.6]
    for loss in losses:
        body.requires_grad_(loss > 0.5)
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()


@repairs(freeze_after_wrap_on_one_rank)
def repaired(rank: int) -> None:
    """The ranks agree on the loss, and the model is wrapped again when the body is frozen."""
    torch.manual_seed(rank)
    body, head = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    model = DistributedDataParallel(torch.nn.Sequential(body, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [0.9, 0.8, 0.2, 0.1] if rank == 1 else [0.9, 0.8, 0.7, 0.6]
    for loss in torch.tensor(losses):
        torch.distributed.all_reduce(loss, op=torch.distributed.ReduceOp.MIN)
        if loss <= 0.5 and body.weight.requires_grad:
            body.requires_grad_(False)
            model = DistributedDataParallel(model.module)
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
