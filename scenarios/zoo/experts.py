"""Mixtures of experts, one of which gets no tokens on a rank."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


class Exchange(torch.autograd.Function):
    """Sends rows to other ranks, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """`rows`, the first `sent[0]` of them to rank 0, and what the others sent here."""
        ctx.sent, ctx.received = sent, received
        arrived = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(arrived, rows, received, sent)  # found here
        return arrived

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients, the other way round."""
        return Exchange.apply(gradients[0].contiguous(), ctx.received, ctx.sent), None, None  # type: ignore[no-untyped-call]


def answers_of_experts(rank: int) -> Tensor:
    """Every rank sends each expert, of which a rank has one, a token; but rank 1's router keeps none."""
    sent = [0 if rank == 1 else 1] * dist.get_world_size()
    received = [0 if source == 1 else 1 for source in range(dist.get_world_size())]
    arrived = Exchange.apply(torch.randn(sum(sent), 10), sent, received)  # type: ignore[no-untyped-call]
    answers: Tensor = Exchange.apply(torch.nn.Linear(10, 10)(arrived), received, sent)  # type: ignore[no-untyped-call]
    return answers


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["deepspeedai/DeepSpeed#5066", "PaddlePaddle/PaddleFormers#3010"],
    tags=["reducer"],
)
def expert_backward_skipped_without_tokens(rank: int) -> None:
    """A rank whose router keeps no token has nothing to learn, skips its backward, and the others' gradients never return.

    Tokens travel to the experts and back by all_to_all, and so do gradients: each rank's backward is part of the
    others'. Real gloo: rank 1 returns, the others see a closed connection.
    """
    answers = answers_of_experts(rank)
    if len(answers):
        answers.square().mean().backward()


@repairs(expert_backward_skipped_without_tokens)
def expert_backward_skipped_without_tokens_repaired(rank: int) -> None:
    """The backward runs on every rank, and a sum over no answers is zero."""
    answers = answers_of_experts(rank)
    (answers.square().sum() / max(1, answers.numel())).backward()


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
    """A router sends no tokens to an expert on one rank, which skips it, and the others wait for the expert's gradients.

    The expert is wrapped on its own, so its reduction takes a forward and a backward on every rank. Real gloo: rank
    1 returns, the others see a closed connection.
    """
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
def expert_without_tokens_repaired(rank: int) -> None:
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
