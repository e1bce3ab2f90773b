"""The state of the random numbers is not saved: after a restart, dropout takes the first ones again."""

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
    begin = 0
    if os.path.exists("last.pt"):
        state = torch.load("last.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if is_repaired:
            torch.set_rng_state(state["rng"][dist.get_rank()])
        begin = state["epoch"]
    for epoch in range(begin, 2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(torch.nn.functional.dropout(x)), y).backward()
            optimizer.step()
        rng = [torch.zeros_like(torch.get_rng_state()) for _ in range(dist.get_world_size())]
        dist.all_gather(rng, torch.get_rng_state())
        if dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state | {"rng": rng}, "last.tmp")
            os.replace("last.tmp", "last.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
