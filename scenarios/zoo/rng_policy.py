"""Control: every rank has a random seed of its own, for the weights before wrapping and for noise after it.

Wrapping makes the weights rank 0's; dropout should differ, as equal seeds would waste noise. What the ranks must
decide equally has another generator, seeded with the same number everywhere: here, whether to mirror a batch.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, scenario


@scenario(
    expected=CLEAN,
    reports=[
        "pytorch/pytorch#31771",
        "pytorch/examples#760",
        "facebookresearch/detr#544",
        "goodfire-ai/spd#412",
        "pytorch/vision#7722",
    ],
    tags=["ddp", "oracle"],
)
def rng_policy(rank: int) -> None:
    """Three steps with dropout."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(), torch.nn.Linear(3, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shared = torch.Generator().manual_seed(0)
    for _ in range(3):
        batch = torch.randn(8, 4)
        if torch.rand((), generator=shared) < 0.5:
            batch = batch.flip(1)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
