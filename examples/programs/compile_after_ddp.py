"""DDP around the model, then torch.compile around DDP, whose optimizer splits graphs at buckets."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    ddp = torch.compile(DDP(model), backend="eager")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(3):
        loss = ddp(torch.randn(4, 8, generator=generator)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.6f}")
    print(f"rank {rank} weights {sum(p.sum().item() for p in ddp.parameters()):.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
