"""Replaces what torch looks up of NCCL for a group with that backend, in a torch that was built without NCCL."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim.simulator.runtime.replaced import Replacement

NCCL_VERSION = (2, 28, 9)
"""Of torch 2.13."""

NCCL_TIMEOUT = timedelta(minutes=10)
"""What a group has that is given none (torch/distributed/constants.py)."""


def replacements() -> list[Replacement]:
    """What to replace, by what is made of it: torch's log of errors asks for the version."""
    if dist.is_nccl_available():
        return []
    return [
        (torch.cuda.nccl, "version", lambda original: lambda: NCCL_VERSION),
        (distributed_c10d, "default_pg_nccl_timeout", lambda original: NCCL_TIMEOUT),
    ]
