"""The generic Join over a model and a ZeroRedundancyOptimizer, and a counter of one's own that is joinable."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


class CounterHook(JoinHook):
    def __init__(self, counter):
        self.counter = counter

    def main_hook(self):
        dist.all_reduce(torch.zeros(1))


class Counter(Joinable):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __call__(self):
        Join.notify_join_context(self)
        t = torch.ones(1)
        dist.all_reduce(t)
        self.count += int(t.item())

    def join_hook(self, **kwargs):
        return CounterHook(self)

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    counter = Counter()
    with Join([counter]):
        for _ in range(4 + 2 * rank):
            counter()
    print(f"rank {rank} counted {counter.count}")

    model = DDP(nn.Linear(3, 3))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for step in range(3 + rank):
            loss = model(torch.full((1, 3), 1.0 + step)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"rank {rank} loss {loss.item():.5f} weights {model.module.weight.sum().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
