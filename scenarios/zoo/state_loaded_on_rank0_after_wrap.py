"""Weights are restored on rank 0 after the model was wrapped, and the other ranks keep theirs.

The wrapper sends rank 0's state once, at its construction; later it averages gradients only. Real gloo: no error; the
replicas differ from then on, by the same difference in each step.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def checkpoint() -> dict[str, torch.Tensor]:
    """What an earlier run has saved."""
    return {"weight": torch.full((1, 10), 0.5), "bias": torch.zeros(1)}


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(0)),
    reports=["vllm-project/speculators#926"],
    tags=["wrapping", "ddp"],
)
def state_loaded_on_rank0_after_wrap(rank: int) -> None:
    """Rank 0, which has the file, loads the checkpoint into its wrapped model."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    if rank == 0:
        model.module.load_state_dict(checkpoint())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()  # found here


@repairs(state_loaded_on_rank0_after_wrap)
def repaired(rank: int) -> None:
    """Rank 0 loads the checkpoint before the model is wrapped, so that wrapping sends it to the others."""
    torch.manual_seed(rank)
    module = torch.nn.Linear(10, 1)
    if rank == 0:
        module.load_state_dict(checkpoint())
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
