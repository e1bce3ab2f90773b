"""FSDP2: the norm of gradients by hand, weight decay by hand."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    p.add_argument("--replicas", type=int, default=1)
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    r = a.replicas if size > 1 else 1
    mesh = (
        init_device_mesh("cpu", (r, size // r), mesh_dim_names=("dp", "shard"))
        if r > 1
        else init_device_mesh("cpu", (size,))
    )
    for layer in (net[0], net[2], net[4], net):
        fully_shard(layer, mesh=mesh)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(48, 8, generator=g), torch.randint(0, 3, (48,), generator=g))
    for x, y in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False)):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if a.bug == "torch":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        else:
            sq = torch.stack([q.grad.to_local().square().sum() for q in net.parameters()]).sum()
            dist.all_reduce(sq)
            if a.bug != "replicas":
                sq = sq / r
            if a.bug == "twice":
                dist.all_reduce(sq)
            coef = (0.1 / (sq.sqrt() + 1e-6)).clamp(max=1.0)
            for q in net.parameters():
                q.grad.mul_(coef.item())
        if a.bug == "decay":
            with torch.no_grad():
                for q in net.parameters():
                    local = q.to_local()
                    local.sub_(0.01 * local / max(local.norm(), 1e-6))
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
