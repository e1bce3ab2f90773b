"""Checkpoints: who writes them, who decides that it is time, and who looks whether they exist."""

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario

SAVE_EVERY_SECONDS = 5.0


def save(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy the model's state on rank 0; when it returns, all ranks may rely on the copy."""
    copy = {name: tensor.clone() for name, tensor in model.state_dict().items()} if dist.get_rank() == 0 else {}
    dist.barrier()  # found here
    return copy


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=odd_one_out(0)),
    reports=["alan-turing-institute/autocast#386"],
    tags=["control-flow", "raw"],
)
def collective_save_inside_rank0_branch(rank: int) -> None:
    """A save that ends in a barrier is called by rank 0 only: its barrier pairs with the next one, and the last is alone.

    Each later barrier of rank 0 meets the one after it of the others, so they do not wait for what they should. On
    gloo the others are done, and rank 0 sees its connection close.
    """
    model = torch.nn.Linear(10, 1)
    if rank == 0:
        save(model)
    dist.barrier()


@repairs(collective_save_inside_rank0_branch)
def collective_save_inside_rank0_branch_repaired(rank: int) -> None:
    """Every rank calls the helper, which decides itself which rank writes."""
    model = torch.nn.Linear(10, 1)
    save(model)
    dist.barrier()


def optimizer() -> "torch.distributed.optim.ZeroRedundancyOptimizer":
    """Over the parameters of a small network, after a step."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    sharded = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    sharded.step()
    return sharded


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=0),
    reports=["pytorch/pytorch#60285", "pytorch/pytorch#54736"],
    tags=["optimizer", "checkpoint", "control-flow"],
    min_world_size=3,
)
def consolidated_on_rank0(rank: int) -> None:
    """Rank 0 collects sharded optimizer state where it writes the checkpoint, which takes every rank.

    Each rank has its own part of the state and sends it to rank 0. Real gloo: rank 0 waits for parts, the others
    are in a barrier, and all time out.
    """
    sharded = optimizer()
    if rank == 0:
        sharded.consolidate_state_dict(to=0)  # found here
    dist.barrier()


@repairs(consolidated_on_rank0)
def consolidated_on_rank0_repaired(rank: int) -> None:
    """All ranks take part, and one writes."""
    optimizer().consolidate_state_dict(to=0)
    dist.barrier()


@scenario(
    expected=finds(Code.MISMATCH_OPERATION, ranks=odd_one_out(1)),
    reports=["speechbrain/speechbrain#1166"],
    tags=["ddp", "control-flow"],
)
def local_clock_decides(rank: int) -> None:
    """Each rank looks at its own clock to see whether it is time to save: at some step a slow rank does, and no other.

    Before a collective the ranks are not equally far, so a limit may lie between the times they read. On gloo the
    barrier of the save meets the gradients of those that do not save yet.
    """
    # Read a batch, which takes rank 1 longer, save if it is time, and train, 4 times.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    saved = time.monotonic()
    for _ in range(4):
        time.sleep(2.0 if rank == 1 else 1.0)
        if time.monotonic() - saved > SAVE_EVERY_SECONDS:
            dist.barrier()  # found here
            saved = time.monotonic()
        model(torch.randn(8, 10)).square().mean().backward()  # found here


@repairs(local_clock_decides)
def local_clock_decides_repaired(rank: int) -> None:
    """Rank 0 reads its clock, and informs the others."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    saved = time.monotonic()
    for _ in range(4):
        time.sleep(2.0 if rank == 1 else 1.0)
        is_time = torch.tensor(int(time.monotonic() - saved > SAVE_EVERY_SECONDS))
        dist.broadcast(is_time, src=0)
        if is_time:
            dist.barrier()
            saved = time.monotonic()
        model(torch.randn(8, 10)).square().mean().backward()


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
    """A rank looks for itself whether a checkpoint exists: it may look a little too early, and continue without the others.

    What it sees depends on which rank is faster, so it mostly works. On gloo the barrier of those who load then
    meets the gradients of the one that does not.
    """
    # Rank 0 writes a checkpoint, and the ranks of its machine know; rank 1, on another machine, looks for the file.
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
def local_observation_decides_repaired(rank: int) -> None:
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
