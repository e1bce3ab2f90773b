"""A hook that compresses gradients is registered on one rank only: its half-precision bucket meets float32.

The hook was an option of the launch command, and one machine was started without the change. Real gloo aborts the
process of the rank that expected fewer bytes; the error of its peers speaks of a connection, not of the hook.
"""

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#60237"],
    tags=["raw", "hooks", "ddp"],
)
def compression_hook_on_one_rank(rank: int) -> None:
    """Train one step; rank 1 sends its gradients in half precision."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    if rank == 1:
        model.register_comm_hook(None, fp16_compress_hook)
    model(torch.ones(8, 10)).square().mean().backward()  # found here


@repairs(compression_hook_on_one_rank)
def repaired(rank: int) -> None:
    """Every rank registers the hook."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    model.register_comm_hook(None, fp16_compress_hook)
    model(torch.ones(8, 10)).square().mean().backward()
