"""Pipelines of stages, one of which has another schedule than its neighbours."""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(0, 1)),
    reports=["pytorch/pytorch#172668"],
    tags=["pipeline", "point-to-point"],
    world_size=2,
    max_world_size=2,
)
def deferred_receive(rank: int) -> None:
    """A schedule defers a receive, so two neighbouring stages both send while the other is not there to receive.

    Each stage's own order looks right, and a validator of single stages accepts it. Where a send waits for its
    receive, as on real gloo here, both time out.
    """
    # Two activations go forward and one gradient comes back.
    first, second, gradient = (torch.full((4,), index) for index in range(3))
    if rank == 0:
        dist.send(first, 1)
        dist.send(second, 1)  # found here
        dist.recv(gradient, 1)
    else:
        dist.recv(first, 0)
        dist.send(gradient, 0)  # found here
        dist.recv(second, 0)


@repairs(deferred_receive)
def deferred_receive_repaired(rank: int) -> None:
    """What is to come is received before what depends on it is sent."""
    first, second, gradient = (torch.full((4,), index) for index in range(3))
    if rank == 0:
        dist.send(first, 1)
        dist.send(second, 1)
        dist.recv(gradient, 1)
    else:
        dist.recv(first, 0)
        dist.recv(second, 0)
        dist.send(gradient, 0)


def train(rank: int, micro_batches: int, steps: int = 1, is_1f1b: bool = False) -> None:
    """Train a pipeline of a stage for each rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    world_size = dist.get_world_size()
    stage = PipelineStage(torch.nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
    schedule = (Schedule1F1B if is_1f1b else ScheduleGPipe)(
        stage, n_microbatches=micro_batches, loss_fn=torch.nn.functional.mse_loss
    )
    data = torch.ones(micro_batches * 2, 4)
    for _ in range(steps):
        if rank == 0:
            schedule.step(data)  # found here
        elif rank == world_size - 1:
            schedule.step(target=data, losses=[])  # found here
        else:
            schedule.step()  # found here


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    tags=["pipeline", "point-to-point", "loop"],
    world_size=3,
    min_world_size=3,
    max_world_size=3,
)
def pipeline_stage_steps_less_often(rank: int) -> None:
    """One stage of a pipeline makes a step fewer, as its loader drops the last batch: the others wait for it.

    Every rank of a pipeline iterates its own loader, if only for its length. Real gloo: the stages beside it get an
    error as its process ends, or time out.
    """
    train(rank, 2, steps=1 if rank == 1 else 2)


@repairs(pipeline_stage_steps_less_often)
def pipeline_stage_steps_less_often_repaired(rank: int) -> None:
    """As many steps for all."""
    train(rank, 2, steps=2)


@scenario(
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(1, 2)),
    tags=["pipeline", "point-to-point"],
    world_size=3,
    min_world_size=3,
    max_world_size=3,
)
def pipeline_stage_with_other_schedule(rank: int) -> None:
    """One stage of a pipeline runs 1F1B, the others GPipe: its gradients are due before its activations have come.

    Each rank reads the schedule from a file of its own. After the first micro-batches the stages send and receive
    in orders that do not fit. Real gloo: all time out.
    """
    train(rank, 4, is_1f1b=rank == 1)


@repairs(pipeline_stage_with_other_schedule)
def pipeline_stage_with_other_schedule_repaired(rank: int) -> None:
    """One schedule for all."""
    train(rank, 4, is_1f1b=True)
