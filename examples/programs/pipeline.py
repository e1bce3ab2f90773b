"""Pipeline parallelism: two stages, four micro-batches, by the GPipe schedule and by 1F1B."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def make_stage(rank, world_size):
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    return module, PipelineStage(module, rank, world_size, torch.device("cpu"))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for kind in (ScheduleGPipe, Schedule1F1B):
        module, stage = make_stage(rank, world_size)
        schedule = kind(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        torch.manual_seed(99)
        x, y = torch.randn(8, 16), torch.randn(8, 16)
        for step in range(2):
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(x)
            else:
                losses = []
                schedule.step(target=y, losses=losses)
                print(f"{kind.__name__} step {step} loss {torch.stack(losses).mean().item():.5f}")
            optimizer.step()
        print(f"{kind.__name__} rank {rank} weights {module[0].weight.sum().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
