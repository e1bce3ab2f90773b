"""Adapters on a frozen model, drawn on each rank and sent from rank 0."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 9), torch.randn(32, 2))
    model = nn.Sequential(nn.Linear(9, 14), nn.ReLU(), nn.Linear(14, 2)).requires_grad_(False)
    torch.manual_seed(100 + rank)
    model[0], model[2] = Adapter(model[0]), Adapter(model[2])
    trained = [each for each in model.parameters() if each.requires_grad]
    for each in trained if a.bug != "not sent" else ():
        dist.broadcast(each.data, 0)
    opt = torch.optim.AdamW(trained, lr=0.05)
    for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        for each in trained:
            dist.all_reduce(each.grad)
            each.grad /= size
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
