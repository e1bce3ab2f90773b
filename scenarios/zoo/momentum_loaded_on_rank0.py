"""The optimizer's momentum is restored on rank 0 only, and equal gradients make unequal steps.

No wrapper synchronises an optimizer's state. Real gloo: no error; the replicas differ from the first step on, though
parameters were equal when training went on.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def load_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Put in what an earlier run has saved."""
    state = optimizer.state_dict()
    places = state["param_groups"][0]["params"]
    state["state"] = {place: {"momentum_buffer": torch.ones(1, 10)} for place in places}
    optimizer.load_state_dict(state)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(0)),
    reports=["vllm-project/speculators#926"],
    tags=["wrapping", "optimizer", "ddp"],
)
def momentum_loaded_on_rank0(rank: int) -> None:
    """Load the weights before wrapping, which sends them, and the optimizer on rank 0."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 0:
        load_momentum(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()  # found here


@repairs(momentum_loaded_on_rank0)
def repaired(rank: int) -> None:
    """Every rank loads the optimizer."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    load_momentum(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
