"""Gradients are accumulated under `no_sync` by a wrapper with a static graph, whose first backward has to see all.

The first backward learns the graph, and under `no_sync` it learns nothing. Real gloo: torch's own assertion fails on
all ranks.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario


def train(rank: int, *, is_static: bool) -> None:
    """A window of two micro-batches."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1), static_graph=is_static)
    with model.no_sync():
        model(torch.randn(8, 10)).square().mean().backward()  # found here by torch
    model(torch.randn(8, 10)).square().mean().backward()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=every_rank),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#187732", "huggingface/accelerate#3679"],
    tags=["reducer", "accumulation", "ddp"],
)
def static_graph_with_no_sync(rank: int) -> None:
    """Accumulate in a graph that is said to stay as it is."""
    train(rank, is_static=True)


@repairs(static_graph_with_no_sync)
def repaired(rank: int) -> None:
    """Without the promise."""
    train(rank, is_static=False)
