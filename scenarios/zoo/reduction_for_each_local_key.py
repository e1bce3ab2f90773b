"""Ranks reduce one metric after another, sorted by name, and one rank's batch has left it without one of them.

The loop runs over the keys that there are. The next metric meets another one, and the last meets a barrier. Real
gloo: as many numbers each, so values are exchanged in silence, and both time out at the end.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario

NAMES = ("accuracy", "loss", "perplexity")


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=1),
    reports=["huggingface/trl#7310", "Lightning-AI/pytorch-lightning#19106", "open-mmlab/mmdetection#7116"],
    tags=["control-flow", "raw"],
    min_world_size=3,
)
def reduction_for_each_local_key(rank: int) -> None:
    """Add up the metrics of a step; rank 1 has no accuracy."""
    metrics = {name: torch.ones(1) for name in NAMES if (rank, name) != (1, "accuracy")}
    for name in sorted(metrics):
        dist.all_reduce(metrics[name])
    dist.barrier()  # found here


@repairs(reduction_for_each_local_key)
def repaired(rank: int) -> None:
    """The keys are those of all ranks, with zeros where a rank has no value."""
    metrics = {name: torch.ones(1) for name in NAMES if (rank, name) != (1, "accuracy")}
    for name in NAMES:
        dist.all_reduce(metrics.get(name, torch.zeros(1)))
    dist.barrier()
