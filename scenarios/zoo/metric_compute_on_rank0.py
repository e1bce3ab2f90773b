"""Only rank 0 asks for the value of a metric, whose `compute` gathers from all ranks without saying so.

It is written as if it were local, inside `if rank == 0`. The gather meets the barrier after it; on gloo both wait for
their time-outs.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


class Accuracy:
    """The share of right answers, over all ranks."""

    def __init__(self) -> None:
        self.counts = torch.zeros(2)

    def update(self, right: int, total: int) -> None:
        """Count the answers of a batch."""
        self.counts += torch.tensor([right, total])

    def compute(self) -> float:
        """The accuracy."""
        counts = [torch.empty(2) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, self.counts)  # found here
        right, total = torch.stack(counts).sum(0).tolist()
        return float(right / total)


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(0)),
    reports=["Lightning-AI/torchmetrics#938", "Lightning-AI/torchmetrics#2684", "huggingface/accelerate#2785"],
    tags=["control-flow", "raw"],
)
def metric_compute_on_rank0(rank: int) -> float | None:
    """Count on all ranks, and let rank 0 report the result."""
    accuracy = Accuracy()
    accuracy.update(right=rank, total=8)
    told = accuracy.compute() if rank == 0 else None
    dist.barrier()
    return told


@repairs(metric_compute_on_rank0)
def repaired(rank: int) -> float | None:
    """Every rank computes, one reports."""
    accuracy = Accuracy()
    accuracy.update(right=rank, total=8)
    value = accuracy.compute()
    dist.barrier()
    return value if rank == 0 else None
