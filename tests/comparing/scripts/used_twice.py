"""A module that is used twice, whose gradient is reduced while backward runs."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Averaged(torch.autograd.Function):
    """A weight whose gradient is averaged over the ranks each time that it is used."""

    @staticmethod
    def forward(ctx, weight, seen):
        ctx.seen = seen
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, grad):
        if ctx.seen is None or not ctx.seen:
            grad = grad / dist.get_world_size()
            dist.all_reduce(grad)
        if ctx.seen is not None:
            ctx.seen.append(True)
        return grad, None


class Net(nn.Module):
    def __init__(self, once):
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.mid, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.once = once

    def forward(self, x):
        seen = [] if self.once else None
        x = torch.relu(self.inp(x))
        for _ in range(2):
            x = torch.relu(F.linear(x, Averaged.apply(self.mid.weight, seen), self.mid.bias))
        return self.out(x)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    net = Net(a.bug == "once")
    g = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(32, 8, generator=g), torch.randint(0, 3, (32,), generator=g))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False)):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        for name, q in net.named_parameters():
            if name != "mid.weight":
                dist.all_reduce(q.grad)
                q.grad /= dist.get_world_size()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
