"""A group of all ranks is made where it is first used, and one rank never gets there: the others wait in `new_group`.

Making a group takes all its members at once. On real gloo those in `new_group` hang past any time-out of the group,
and the rank that went on times out in its barrier.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=1),
    reports=["cornstarch-org/Cornstarch#76", "vllm-project/llm-compressor#2869", "pytorch/pytorch#25390"],
    tags=["groups"],
)
def new_group_not_called_by_everyone(rank: int) -> None:
    """Add up warnings over a group of their own, then meet; rank 1 has none to report."""
    has_warnings = rank != 1
    if has_warnings:
        metrics = dist.new_group()
        dist.all_reduce(torch.ones(1), group=metrics)
    dist.barrier()  # found here


@repairs(new_group_not_called_by_everyone)
def repaired(rank: int) -> None:
    """Every rank makes the group at the start, and brings a zero where it has nothing to report."""
    has_warnings = rank != 1
    metrics = dist.new_group()
    dist.all_reduce(torch.ones(1) if has_warnings else torch.zeros(1), group=metrics)
    dist.barrier()
