"""A seed per rank for Python, numpy and torch, and shuffling by a generator of one's own."""

import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    set_seed(1000 + int(os.environ["RANK"]))
    noise = torch.rand(3)
    print(f"rank {rank} {random.random():.6f} {np.random.rand():.6f} {noise.sum().item():.6f}")
    generator = torch.Generator()
    generator.manual_seed(rank)
    data = TensorDataset(torch.arange(10.0))
    loader = DataLoader(data, 5, shuffle=True, num_workers=2, worker_init_fn=seed_worker, generator=generator)
    for (batch,) in loader:
        print(f"rank {rank} batch {batch.tolist()}")
    gathered = [torch.empty(3) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, noise)
    print(f"rank {rank} all alike: {torch.equal(gathered[0], gathered[1])}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
