"""One rank wraps a model with a layer more than the others' model.

The wrapper compares how many parameters there are before it sends rank 0's state. Real gloo: every rank raises, with
the counts and nothing else; our engine says which names rank 1 has alone.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


class Stack(torch.nn.Sequential):
    """A number of layers, and a head."""

    def __init__(self, layers: int) -> None:
        super().__init__(*[torch.nn.Linear(10, 10) for _ in range(layers)], torch.nn.Linear(10, 1))


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=odd_one_out(1)),
    reports=[
        "pytorch/pytorch#73547",
        "pytorch/pytorch#74113",
        "yifan123/flow_grpo#245",
        "huggingface/transformers#30702",
        "Kent0n-Li/ChatDoctor#49",
    ],
    tags=["wrapping", "ddp"],
)
def parameter_set_differs_at_wrap(rank: int) -> None:
    """Wrap a model of 1 layer and a head, of 2 layers and a head on rank 1."""
    model = DistributedDataParallel(Stack(layers=2 if rank == 1 else 1))  # found here
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(parameter_set_differs_at_wrap)
def repaired(rank: int) -> None:
    """Every rank builds the model from the same settings."""
    model = DistributedDataParallel(Stack(layers=2))
    model(torch.randn(8, 10)).square().mean().backward()
