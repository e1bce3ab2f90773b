"""Metrics and losses that are reduced for a log: on one rank only, in another order, or used where they are not valid."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario

TASKS = ["caption", "detect"]
NAMES = ("accuracy", "loss", "perplexity")


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
    """Only rank 0 asks for the value of a metric, whose `compute` gathers from all ranks without saying so.

    It is written as if it were local, inside `if rank == 0`. The gather meets the barrier after it; on gloo both
    wait for their time-outs.
    """
    accuracy = Accuracy()
    accuracy.update(right=rank, total=8)
    value = accuracy.compute() if rank == 0 else None
    dist.barrier()
    return value


@repairs(metric_compute_on_rank0)
def metric_compute_on_rank0_repaired(rank: int) -> float | None:
    """Every rank computes, one reports."""
    accuracy = Accuracy()
    accuracy.update(right=rank, total=8)
    value = accuracy.compute()
    dist.barrier()
    return value if rank == 0 else None


@scenario(
    expected=finds(Code.HAZARD_TENSOR_ORDER, ranks=1),
    reports=["mosaicml/composer#2513", "facebookresearch/maskrcnn-benchmark#309"],
    tags=["raw", "metrics"],
    min_world_size=3,
)
def metrics_reduced_in_own_order(rank: int) -> dict[str, float]:
    """Each rank reduces its metrics in the order in which its dictionary got them, so losses are added to accuracies.

    A dictionary keeps the order of its first entries, and which task comes first depends on the batch that a rank
    has. All calls agree, so no backend notices: every rank reads the same wrong sums.
    """
    # Count the samples of each task over all ranks; rank 1 meets the tasks in another order.
    counts: dict[str, torch.Tensor] = {}
    for task in TASKS if rank != 1 else reversed(TASKS):
        counts[task] = torch.tensor([1.0 if task == "caption" else 100.0])
    for task in counts:
        dist.all_reduce(counts[task])  # found here
    return {task: count.item() for task, count in counts.items()}


@repairs(metrics_reduced_in_own_order)
def metrics_reduced_in_own_order_repaired(rank: int) -> dict[str, float]:
    """All ranks go through the tasks by name."""
    counts: dict[str, torch.Tensor] = {}
    for task in TASKS if rank != 1 else reversed(TASKS):
        counts[task] = torch.tensor([1.0 if task == "caption" else 100.0])
    for task in sorted(counts):
        dist.all_reduce(counts[task])
    return {task: count.item() for task, count in counts.items()}


@scenario(
    expected=finds(Code.HAZARD_UNDEFINED_RESULT, ranks=lambda world_size: tuple(range(1, world_size))),
    reports=["pytorch/pytorch#76527", "pytorch/pytorch#21480"],
    tags=["raw", "metrics"],
    poison=True,
)
def reduced_loss_used_on_every_rank(rank: int) -> float:
    """The loss is reduced for rank 0's log, and every rank continues with what it finds in the tensor.

    Only the destination of a reduce gets the sum. gloo leaves partial sums on the others, another one on each; NCCL
    leaves what was there. All ranks agree, and no backend shows an error.
    """
    loss = torch.tensor([1.0 + rank])
    dist.reduce(loss, dst=0)  # found here
    return loss.item() / dist.get_world_size()


@repairs(reduced_loss_used_on_every_rank)
def reduced_loss_used_on_every_rank_repaired(rank: int) -> float:
    """All ranks get the sum."""
    loss = torch.tensor([1.0 + rank])
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=1),
    reports=["huggingface/trl#7310", "Lightning-AI/pytorch-lightning#19106", "open-mmlab/mmdetection#7116"],
    tags=["control-flow", "raw"],
    min_world_size=3,
)
def reduction_for_each_local_key(rank: int) -> None:
    """Ranks reduce one metric after another, sorted by name, and one rank's batch has left it without one of them.

    The loop runs over the keys that there are. The next metric meets another one, and the last meets a barrier.
    Real gloo: as many numbers each, so values are exchanged in silence, and both time out at the end.
    """
    metrics = {name: torch.ones(1) for name in NAMES if (rank, name) != (1, "accuracy")}
    for name in sorted(metrics):
        dist.all_reduce(metrics[name])
    dist.barrier()  # found here


@repairs(reduction_for_each_local_key)
def reduction_for_each_local_key_repaired(rank: int) -> None:
    """The keys are those of all ranks, with zeros where a rank has no value."""
    metrics = {name: torch.ones(1) for name in NAMES if (rank, name) != (1, "accuracy")}
    for name in NAMES:
        dist.all_reduce(metrics.get(name, torch.zeros(1)))
    dist.barrier()
