"""One stage of a pipeline runs 1F1B, the others GPipe: its gradients are due before its activations have come.

Each rank reads the schedule from a file of its own. After the first micro-batches the stages send and receive in
orders that do not fit. Real gloo: all time out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


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
    expected=finds(Code.DEADLOCK_CYCLE, ranks=(1, 2)),
    tags=["pipeline", "point-to-point"],
    world_size=3,
    min_world_size=3,
    max_world_size=3,
)
def pipeline_stage_with_other_schedule(rank: int) -> None:
    """One step of four micro-batches; rank 1 has another schedule."""
    train(rank, 4, is_1f1b=rank == 1)


@repairs(pipeline_stage_with_other_schedule)
def repaired(rank: int) -> None:
    """One schedule for all."""
    train(rank, 4, is_1f1b=True)
