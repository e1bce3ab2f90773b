"""torch.compile with its own backend, which compiles C++ for the CPU; a reduction compiled with the model."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.compile
def gelu_mean(x):
    return (0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.compile(DDP(nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(2):
        loss = gelu_mean(model(torch.randn(4, 8, generator=generator)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
