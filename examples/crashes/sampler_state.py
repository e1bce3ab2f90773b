"""The place in the epoch is not saved: after a restart, its batches are trained on again."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(*, is_repaired):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    sampler = DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done = 0
    if os.path.exists("last.pt"):
        state = torch.load("last.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"] if is_repaired else 0
    for number, (x, y) in enumerate(DataLoader(data, batch_size=2, sampler=sampler)):
        if number < done:
            continue
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if number == 1:
            if dist.get_rank() == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "done": number + 1}
                torch.save(state, "last.tmp")
                os.replace("last.tmp", "last.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
