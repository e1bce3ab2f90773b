"""Each rank reduces its metrics in the order in which its dictionary got them, so losses are added to accuracies.

A dictionary keeps the order of its first entries, and which task comes first depends on the batch that a rank has. All
calls agree, so no backend notices: every rank reads the same wrong sums.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario

TASKS = ["caption", "detect"]


@scenario(
    expected=finds(Code.HAZARD_TENSOR_ORDER, ranks=1),
    reports=["mosaicml/composer#2513", "facebookresearch/maskrcnn-benchmark#309"],
    tags=["raw", "metrics"],
    min_world_size=3,
)
def metrics_reduced_in_own_order(rank: int) -> dict[str, float]:
    """Count the samples of each task over all ranks; rank 1 meets the tasks in another order."""
    counts: dict[str, torch.Tensor] = {}
    for task in TASKS if rank != 1 else reversed(TASKS):
        counts[task] = torch.tensor([1.0 if task == "caption" else 100.0])
    for task in counts:
        dist.all_reduce(counts[task])  # found here
    return {task: count.item() for task, count in counts.items()}


@repairs(metrics_reduced_in_own_order)
def repaired(rank: int) -> dict[str, float]:
    """All ranks go through the tasks by name."""
    counts: dict[str, torch.Tensor] = {}
    for task in TASKS if rank != 1 else reversed(TASKS):
        counts[task] = torch.tensor([1.0 if task == "caption" else 100.0])
    for task in sorted(counts):
        dist.all_reduce(counts[task])
    return {task: count.item() for task, count in counts.items()}
