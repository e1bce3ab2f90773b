"""Uneven data under model.join(): rank 0 runs out of batches before rank 1 does."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = [torch.arange(4.0).unsqueeze(1) + rank for _ in range(5 + 3 * rank)]
    with model.join():
        for x in inputs:
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"rank {rank} batches {len(inputs)} loss {loss.item():.5f}")
    print(f"rank {rank} weights {model.module[0].weight.flatten().tolist()[0]:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
