"""A function of another file, for test_compiled_lines.py to compile along."""

import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def mean_of(tensor):
    """Of all ranks."""
    total = functional.all_reduce(tensor, "sum", dist.group.WORLD)
    return total / dist.get_world_size()
