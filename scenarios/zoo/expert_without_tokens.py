"""A router sends no tokens to an expert on one rank, which skips it, and the others wait for the expert's gradients.

The expert is wrapped on its own, so its reduction takes a forward and a backward on every rank. Real gloo: rank 1
returns, the others see a closed connection.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def routed_tokens(rank: int, step: int) -> Tensor:
    """The tokens that a router sends to the expert: in step 2 there are none on rank 1."""
    return torch.randn(0 if rank == 1 and step == 2 else 5, 10)


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=[
        "deepspeedai/DeepSpeed#5066",
        "NVIDIA/Megatron-LM#4851",
        "NVIDIA-NeMo/Automodel#935",
        "PaddlePaddle/PaddleFormers#3010",
    ],
    tags=["reducer", "ddp"],
)
def expert_without_tokens(rank: int) -> None:
    """Run the expert on the tokens that there are."""
    torch.manual_seed(rank)
    expert = DistributedDataParallel(torch.nn.Linear(10, 10))
    optimizer = torch.optim.SGD(expert.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        tokens = routed_tokens(rank, step)
        if len(tokens):
            expert(tokens).square().mean().backward()  # found here
        optimizer.step()


@repairs(expert_without_tokens)
def repaired(rank: int) -> None:
    """An expert without tokens runs on a dummy token of weight zero."""
    torch.manual_seed(rank)
    expert = DistributedDataParallel(torch.nn.Linear(10, 10))
    optimizer = torch.optim.SGD(expert.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        tokens = routed_tokens(rank, step)
        loss = expert(tokens).square().mean() if len(tokens) else 0.0 * expert(torch.zeros(1, 10)).sum()
        loss.backward()
        optimizer.step()
