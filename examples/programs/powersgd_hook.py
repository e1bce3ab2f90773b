"""PowerSGD as communication hook, with error feedback from the third step on."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10)))
    state = power_sgd.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=3, min_compression_rate=0.5
    )
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(16, 20, generator=generator)
        loss = (model(x) - x[:, :10]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}")
    print(f"rank {rank} iterations {state.iter}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
