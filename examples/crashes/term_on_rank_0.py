"""Only rank 0 leaves after SIGTERM: the others, which ignore it, wait for its next gradients."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

stopping = []


def main(*, is_repaired):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    is_first = dist.get_rank() == 0
    signal.signal(signal.SIGTERM, (lambda *_: stopping.append(1)) if is_first or is_repaired else signal.SIG_IGN)
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0
    if os.path.exists("last.pt"):
        state = torch.load("last.pt")
        model.module.load_state_dict(state["model"])
        done = state["done"]
    for number, (x, y) in enumerate(loader):
        if number < done:
            continue
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        leaves = torch.tensor(len(stopping))
        if is_repaired:
            dist.all_reduce(leaves)
        if leaves:
            if is_first:
                torch.save({"model": model.module.state_dict(), "done": number + 1}, "last.tmp")
                os.replace("last.tmp", "last.pt")
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
