"""torch's tensor parallelism on a mesh dp x tp, norm replicated."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.emb = nn.Embedding(20, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.head = nn.Linear(d, 20)

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--tp", type=int, default=2)
    p.add_argument("--bug", default="")
    p.add_argument("--fsdp", action="store_true")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    tp = min(a.tp, size)
    dp = size // tp
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    net = Net()
    plan = {}
    for i in range(2):
        plan |= {f"blocks.{i}.up": ColwiseParallel(), f"blocks.{i}.down": RowwiseParallel()}
    parallelize_module(net, mesh["tp"], plan)
    if a.fsdp:
        for b in net.blocks:
            fully_shard(b, mesh=mesh["dp"])
        fully_shard(net, mesh=mesh["dp"])
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    g = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randint(0, 20, (32, 6), generator=g), torch.randint(0, 20, (32, 6), generator=g))
    sampler = DistributedSampler(data, dp, mesh.get_local_rank("dp"), shuffle=False)
    for ids, labels in DataLoader(data, batch_size=4, sampler=sampler):
        opt.zero_grad()
        F.cross_entropy(net(ids).flatten(0, 1), labels.flatten()).backward()
        if not a.fsdp and dp > 1:
            group = dist.group.WORLD if a.bug == "world" else mesh.get_group("dp")
            n = dist.get_world_size(group)
            for q in net.parameters():
                gr = q.grad.to_local() if hasattr(q.grad, "to_local") else q.grad
                if a.bug == "skipplain" and not hasattr(q.grad, "to_local"):
                    continue
                dist.all_reduce(gr, group=group)
                gr /= n
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
