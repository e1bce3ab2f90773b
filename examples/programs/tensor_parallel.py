"""Tensor parallelism: parallelize_module with a column-wise and a row-wise layer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj = nn.Linear(8, 32)
        self.relu = nn.ReLU()
        self.out_proj = nn.Linear(32, 4)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = parallelize_module(FeedForward(), mesh, {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    for step in range(4):
        torch.manual_seed(step)
        loss = model(torch.rand(6, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.6f}")
    print(f"rank {rank} local {tuple(model.in_proj.weight.to_local().shape)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
