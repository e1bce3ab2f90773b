"""Sequence-parallel norm by DTensor: to_local of a weight whose gradient is a partial sum."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils.data import DataLoader, TensorDataset


class Norm(nn.Module):
    def __init__(self, d, mesh, bug):
        super().__init__()
        self.bug = bug
        self.scale = nn.Parameter(distribute_tensor(torch.ones(d), mesh, [Replicate()]))

    def forward(self, x):  # x is Shard(1)
        w = self.scale.to_local() if self.bug else self.scale.to_local(grad_placements=[Partial()])
        local = x.to_local()
        local = F.rms_norm(local, (local.shape[-1],)) * w
        return DTensor.from_local(local, x.device_mesh, [Shard(1)], run_check=False)


class Net(nn.Module):
    def __init__(self, mesh, bug):
        super().__init__()
        torch.manual_seed(0)
        self.mesh = mesh
        self.up = nn.Linear(8, 16)
        self.norm = Norm(16, mesh, bug)
        self.down = nn.Linear(16, 4)

    def forward(self, x):
        h = self.up(x)
        h = (
            distribute_tensor(h, self.mesh, [Replicate()])
            if False
            else DTensor.from_local(h, self.mesh, [Replicate()], run_check=False)
        )
        h = self.norm(h.redistribute(placements=[Shard(1)]))
        h = h.redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()])
        return self.down(h)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = Net(mesh, a.bug)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    g = torch.Generator().manual_seed(2)
    data = TensorDataset(torch.randn(16, 8, 8, generator=g), torch.randn(16, 8, 4, generator=g))
    for x, y in DataLoader(data, batch_size=4):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
