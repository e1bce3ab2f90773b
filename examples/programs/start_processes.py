"""mp.start_processes with fork, and a results queue read by the process that started them."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world_size, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group("gloo")
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    print(f"rank {rank} sum {value.item()}")
    queue.put((rank, value.item()))
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = 2
    queue = mp.get_context("fork").SimpleQueue()
    context = mp.start_processes(worker, args=(world_size, queue), nprocs=world_size, join=False, start_method="fork")
    results = sorted(queue.get() for _ in range(world_size))
    while not context.join():
        pass
    print("results", results)
