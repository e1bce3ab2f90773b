"""functools.cached_property on a trainer: rank, model and data are made when they are asked for first."""

from functools import cached_property

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    @cached_property
    def rank(self):
        dist.init_process_group("gloo")
        return dist.get_rank()

    @cached_property
    def total_samples(self):
        count = torch.tensor(16 + self.rank)
        dist.all_reduce(count)
        return count.item()

    @cached_property
    def model(self):
        torch.manual_seed(self.rank)
        return DDP(nn.Linear(3, 1))

    @cached_property
    def optimizer(self):
        return torch.optim.Adam(self.model.parameters(), lr=0.05)

    def fit(self):
        for step in range(3):
            loss = self.model(torch.full((2, 3), float(self.rank + step))).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        print(f"rank {self.rank} samples {self.total_samples} loss {loss.item():.5f}")


shared = Trainer()

if __name__ == "__main__":
    shared.fit()
    dist.destroy_process_group()
