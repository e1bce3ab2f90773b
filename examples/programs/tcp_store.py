"""A TCPStore made by hand: rank 0 serves it, all meet there, and the group is made of it."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"]) + 7
    store = dist.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0, timeout=timedelta(seconds=30))
    store.set(f"hello/{rank}", f"from {rank}")
    store.wait([f"hello/{r}" for r in range(world_size)])
    other = (rank + 1) % world_size
    print(f"rank {rank} reads {store.get(f'hello/{other}').decode()!r}")
    store.add("arrived", 1)
    while int(store.add("arrived", 0)) < world_size:
        pass
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    value = torch.tensor([float(rank + 1)])
    dist.all_reduce(value)
    print(f"rank {rank} sum {value.item()} arrived {int(store.add('arrived', 0))}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
