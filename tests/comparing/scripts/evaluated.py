"""Gradients by hand; EMA; evaluation with a metric over ranks; a running buffer."""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 16)
        self.g = nn.Linear(16, 3)
        self.register_buffer("running", torch.zeros(16))

    bug = ""

    def forward(self, x):
        h = torch.tanh(self.f(x))
        if self.training:
            with torch.no_grad():
                m = h.mean(0)
                if self.bug != "buffer":
                    dist.all_reduce(m)
                    m /= dist.get_world_size()
                self.running.mul_(0.9).add_(m, alpha=0.1)
        return self.g(h)


def evaluate(model, loader, bug):
    model.eval()
    correct = total = 0
    for x, y in loader:
        with torch.no_grad():  # as in many loops, the loader runs outside
            hit = model(x).argmax(-1) == y
        correct += hit.sum().item()
        total += len(y)
    if bug == "means":
        t = torch.tensor(correct / total, dtype=torch.float64)
        dist.all_reduce(t)
        acc = t.item() / dist.get_world_size()
    else:
        t = torch.tensor([correct, total], dtype=torch.float64)
        dist.all_reduce(t)
        acc = (t[0] / t[1]).item()
    model.train()
    return acc


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    p.add_argument("--epochs", type=int, default=2)
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Net()
    net.bug = a.bug
    ema = copy.deepcopy(net)
    g = torch.Generator().manual_seed(1)
    train = TensorDataset(torch.randn(32, 8, generator=g), torch.randint(0, 3, (32,), generator=g))
    n = 22
    x, y = torch.randn(n, 8, generator=g), torch.randint(0, 3, (n,), generator=g)
    if a.bug == "padded":
        val = TensorDataset(x, y)
        vloader = DataLoader(val, batch_size=4, sampler=DistributedSampler(val, shuffle=False))
    else:
        val = TensorDataset(x[rank::size], y[rank::size])
        vloader = DataLoader(val, batch_size=4)
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    sampler = DistributedSampler(train, seed=3)
    loader = DataLoader(train, batch_size=4, sampler=sampler)

    def update():
        with torch.no_grad():
            for e, q in zip(ema.parameters(), net.parameters(), strict=True):
                e.lerp_(q, 0.3)

    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            opt.zero_grad()
            F.cross_entropy(net(xb), yb).backward()
            if a.bug == "ema":
                # local step on a copy: EMA of what this rank alone would have
                with torch.no_grad():
                    for e, q in zip(ema.parameters(), net.parameters(), strict=True):
                        e.lerp_(q - 0.2 * q.grad, 0.3)
            for q in net.parameters():
                dist.all_reduce(q.grad)
                q.grad /= size
            opt.step()
            if a.bug != "ema":
                update()
        acc = evaluate(ema, vloader, a.bug)
        if rank == 0:
            print(f"epoch {epoch} acc {acc:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
