"""A rank looks for itself whether a checkpoint exists: it may look a little too early, and continue without the others.

What it sees depends on which rank is faster, so it mostly works. On gloo the barrier of those who load then meets the
gradients of the one that does not.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


def train(*, resumes: bool) -> None:
    """Take a step; ranks that resume begin together."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    if resumes:
        dist.barrier()  # found here
    model(torch.randn(8, 10)).square().mean().backward()  # found here


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1), shows=4, otherwise=CLEAN),
    reports=["KempnerInstitute/KempnerForge#50", "ai2cm/ace#1407"],
    tags=["ddp", "control-flow"],
)
def local_observation_decides(rank: int) -> None:
    """Rank 0 writes a checkpoint, and the ranks of its machine know; rank 1, on another machine, looks for the file."""
    torch.manual_seed(rank)
    with tempfile.TemporaryDirectory() as own:
        folder = [Path(own).name]
        dist.broadcast_object_list(folder, src=0)
        checkpoint = Path(own).with_name(folder[0]) / "checkpoint"
        if rank == 0:
            checkpoint.touch()
        train(resumes=checkpoint.exists() if rank == 1 else True)
        dist.barrier()


@repairs(local_observation_decides)
def repaired(rank: int) -> None:
    """Rank 0 looks, and sends the others what it has seen."""
    torch.manual_seed(rank)
    with tempfile.TemporaryDirectory() as own:
        checkpoint = Path(own, "checkpoint")
        if rank == 0:
            checkpoint.touch()
        seen = torch.tensor(int(checkpoint.exists()))
        dist.broadcast(seen, src=0)
        train(resumes=bool(seen))
        dist.barrier()
