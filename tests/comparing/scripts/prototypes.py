"""Prototypes of classes, and a centre of outputs, that ranks keep as averages over steps."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(6, 4)
        self.register_buffer("prototypes", torch.eye(3, 4))

    def forward(self, x):
        return self.f(x)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (48,))
    data = TensorDataset(torch.randn(48, 6) + labels[:, None], labels)
    net = Net()
    model = DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    centre = torch.zeros(4)
    for x, y in DataLoader(data, 12 // size, sampler=DistributedSampler(data)):
        z = model(x)
        loss = F.cross_entropy((z - centre) @ net.prototypes.T / 0.2, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        z = z.detach()
        sums = torch.zeros(3, 5).index_add_(0, y, torch.cat([z, torch.ones(len(z), 1)], 1))
        if a.bug != "prototypes":
            dist.all_reduce(sums)
        seen = sums[:, 4] > 0
        net.prototypes[seen] = 0.8 * net.prototypes[seen] + 0.2 * sums[seen, :4] / sums[seen, 4:]
        mean = z.mean(0)
        if a.bug != "centre":
            dist.all_reduce(mean)
            mean /= size
        centre = 0.9 * centre + 0.1 * mean
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
