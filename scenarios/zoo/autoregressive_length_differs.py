"""Each rank generates until its own end of text, with a collective for every token: they leave the loop at other times.

A model whose parameters are sharded gathers them for every token. The rank that ends first continues and averages its
score, which meets a gather of the others. On gloo both sides wait for their time-outs.
"""

import torch
import torch.distributed as dist
from torch import Tensor

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
    """Generate 4 tokens, 2 on rank 1; then average the scores."""
    token = torch.zeros(())
    for _ in range(2 if rank == 1 else 4):
        token = next_token(torch.ones(()), token)
    return average(token)


@repairs(autoregressive_length_differs)
def repaired(rank: int) -> float:
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
