"""Tensor parallelism by hand, with sequences that are split between the blocks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx, g):
        parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, g.contiguous())
        return torch.cat(parts, 1)


class Block(nn.Module):
    def __init__(self, d, bug):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        up, down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.bug, self.norm = bug, nn.LayerNorm(d)
        self.up = nn.Parameter(up.weight.detach().chunk(size, 0)[rank].clone())
        self.down = nn.Parameter(down.weight.detach().chunk(size, 1)[rank].clone())
        self.bias = nn.Parameter(down.bias.detach())

    def forward(self, x):
        h = F.gelu(F.linear(Gather.apply(self.norm(x)), self.up))
        if self.bug == "bias on each rank":
            return x + Scatter.apply(F.linear(h, self.down, self.bias))
        return x + Scatter.apply(F.linear(h, self.down)) + self.bias


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Block(8, a.bug), Block(8, a.bug), nn.Linear(8, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(9)
    for _ in range(3):
        x, y = torch.randn(4, 8, 6, generator=g), torch.randint(0, 3, (4, 8), generator=g)
        own, labels = (each.chunk(size, 1)[rank] for each in (x, y))
        loss = F.cross_entropy(model(own).flatten(0, 1), labels.flatten(), reduction="sum") / y.numel()
        opt.zero_grad()
        loss.backward()
        for name, each in model.named_parameters():
            is_shard = name.endswith(("up", "down"))
            if not is_shard and not (a.bug == "norm not reduced" and "norm" in name):
                dist.all_reduce(each.grad)
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
