"""Rank 0 saves the state of its loader, and all ranks load that one: they train on the same samples."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Samples(torch.utils.data.IterableDataset):
    # Each rank draws its samples itself.
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            yield torch.randn(4, generator=self.generator)


def main(*, is_repaired):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples = Samples(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin = 0
    if os.path.exists("last.pt"):
        state = torch.load("last.pt")
        model.module.load_state_dict(state["model"])
        samples.generator.set_state(state["loaders"][dist.get_rank() if is_repaired else 0])
        begin = state["step"]
    for step, x in zip(range(begin, 4), DataLoader(samples, batch_size=2)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if step == 1:
            own = samples.generator.get_state()
            loaders = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
            dist.all_gather(loaders, own)
            if dist.get_rank() == 0:
                torch.save({"model": model.module.state_dict(), "loaders": loaders, "step": step + 1}, "last.tmp")
                os.replace("last.tmp", "last.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
