"""Samples divided among ranks by a permutation that each rank draws."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(8, 3))
    g = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(32, 8, generator=g), torch.randint(0, 3, (32,), generator=g))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for epoch in range(2):
        draw = torch.Generator().manual_seed(epoch + (10 * rank if a.bug == "seeds" else 0))
        if a.bug.startswith("drawn"):
            order = torch.multinomial(torch.arange(1.0, 33), len(data), True, generator=draw)
        else:
            order = torch.randperm(len(data), generator=draw)
        is_overlap = a.bug.endswith("overlap")
        own = (order[rank : rank + len(data) // size] if is_overlap else order[rank::size]).tolist()
        for x, y in DataLoader(data, batch_size=4, sampler=own):
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            (loss / size if a.bug == "loss" else loss).backward()
            opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
