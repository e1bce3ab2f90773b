"""Local SGD: ranks train alone and average their parameters every second step; an EMA beside it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        loss = model(torch.ones(2, 4) * (rank + 1 + step)).pow(2).mean() / 100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        ema.update_parameters(model)
        print(f"rank {rank} step {step} weights {model.weight.sum().item():.5f}")
    print(f"rank {rank} ema {ema.module.weight.sum().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
