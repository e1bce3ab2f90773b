"""The last window of an accumulation is short, and its only micro-batch stays under `no_sync`.

The loop synchronises by the micro-batch's number and steps at the end of the data as well. Real gloo: no error; the
parameters differ after the last step.
"""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, every_rank, finds, repairs, scenario

MICRO_BATCHES = 3
WINDOW = 2


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["modelscope/FunASR#3472", "huggingface/picotron#5"],
    tags=["reducer", "accumulation", "ddp"],
)
def accumulation_window_off_by_one(rank: int) -> None:
    """Synchronise after each second micro-batch, step there and at the end."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(MICRO_BATCHES):
        is_full = (i + 1) % WINDOW == 0
        with nullcontext() if is_full else model.no_sync():
            model(torch.randn(8, 10)).square().mean().backward()
        if is_full or i == MICRO_BATCHES - 1:
            optimizer.step()  # found here
            optimizer.zero_grad()


@repairs(accumulation_window_off_by_one)
def repaired(rank: int) -> None:
    """One condition decides when to synchronise and when to step."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(MICRO_BATCHES):
        is_last_of_window = (i + 1) % WINDOW == 0 or i == MICRO_BATCHES - 1
        with nullcontext() if is_last_of_window else model.no_sync():
            model(torch.randn(8, 10)).square().mean().backward()
        if is_last_of_window:
            optimizer.step()
            optimizer.zero_grad()
