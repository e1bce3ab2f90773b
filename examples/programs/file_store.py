"""A FileStore in a shared folder as rendezvous: made by hand, and by init_method="file://..."."""

import os

import torch
import torch.distributed as dist


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore("rendezvous.store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    value = torch.tensor([2.0 + rank])
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    print(f"rank {rank} maximum {value.item()}")
    dist.destroy_process_group()

    path = os.path.abspath("rendezvous.method")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)
    dist.all_reduce(value, op=dist.ReduceOp.SUM)
    print(f"rank {rank} sum {value.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
