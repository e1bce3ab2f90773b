"""One stage of a pipeline makes a step fewer, as its loader drops the last batch: the others wait for it.

Every rank of a pipeline iterates its own loader, if only for its length. Real gloo: the stages beside it get an error
as its process ends, or time out.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, repairs, scenario


def train(rank: int, micro_batches: int, steps: int = 1) -> None:
    """Train a pipeline of a stage for each rank."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    world_size = dist.get_world_size()
    stage = PipelineStage(torch.nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=micro_batches, loss_fn=torch.nn.functional.mse_loss)
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
    """Two steps of two micro-batches; rank 1 makes one."""
    train(rank, 2, steps=1 if rank == 1 else 2)


@repairs(pipeline_stage_steps_less_often)
def repaired(rank: int) -> None:
    """As many steps for all."""
    train(rank, 2, steps=2)
