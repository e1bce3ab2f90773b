"""A rank dies in the middle of training: its own exception leads the report, the ranks that wait for it come second.

The crash is injected, as by a machine that is lost. On gloo the others see a closed connection, and not why.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Crash
from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["Lightning-AI/pytorch-lightning#6430"],
    tags=["ddp", "control-flow"],
    faults=[Crash(rank=1, before_call=3)],
)
def rank_crash(rank: int) -> None:
    """Train on 3 batches. Nothing is wrong here: the crash is a fault of the scenario."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()  # found here
        optimizer.step()


@repairs(rank_crash)
def repaired(rank: int) -> None:
    """The same program where nothing crashes."""
    rank_crash.program(rank)
