"""A training script that hangs: the data set does not divide evenly, so one rank has a batch less than the others.

Under `torchrun --nproc-per-node 4 examples/hang.py` three ranks stop in their fifth backward, without a word, for as
long as the fourth is busy with something else.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(rank):
    """Train on 5 batches, and on 4 on rank 2."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4 if rank == 2 else 5):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(dist.get_rank())
    time.sleep(600)  # stands for an evaluation that needs no other rank
