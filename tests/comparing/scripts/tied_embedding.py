"""A pipeline of two stages with GPipe micro-batches; the embedding of the first is the head of the last."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

V, D = 24, 12


class Stage(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        torch.manual_seed(5)
        emb = nn.Embedding(V, D)
        a, b = nn.Linear(D, D), nn.Linear(D, D)
        self.emb = emb
        self.layers = nn.ModuleDict({n: m for n, m, keep in (("a", a, first), ("b", b, last)) if keep})
        self.first, self.last = first, last

    def forward(self, x):
        x = self.emb(x) if self.first else x
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        return F.linear(x, self.emb.weight) if self.last else x


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    p.add_argument("--micro", type=int, default=2)
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == size - 1
    stage = Stage(first, last)
    opt = torch.optim.SGD(stage.parameters(), lr=0.1, momentum=0.9)
    g = torch.Generator().manual_seed(2)
    data = TensorDataset(torch.randint(0, V, (16, 6), generator=g), torch.randint(0, V, (16, 6), generator=g))
    for ids, labels in DataLoader(data, batch_size=8):
        opt.zero_grad()
        for x, y in zip(ids.chunk(a.micro), labels.chunk(a.micro), strict=True):
            if not first:
                x = torch.empty(len(x), 6, D)
                dist.recv(x, 0)
                x.requires_grad_()
            out = stage(x)
            if last:
                (F.cross_entropy(out.flatten(0, 1), y.flatten()) / a.micro).backward()
                if not first:
                    dist.send(x.grad, 0)
            else:
                dist.send(out.detach(), 1)
                grad = torch.empty_like(out)
                dist.recv(grad, 1)
                out.backward(grad)
        if size > 1 and a.bug != "untied":
            dist.all_reduce(stage.emb.weight.grad)
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
