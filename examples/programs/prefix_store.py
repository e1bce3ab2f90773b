"""PrefixStore over a TCPStore, once for coordination and once for the group, beside a HashStore of the rank's own."""

import os

import torch
import torch.distributed as dist


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    base = dist.TCPStore("localhost", int(os.environ["MASTER_PORT"]) + 9, world_size, rank == 0)
    control = dist.PrefixStore("control", base)
    if rank == 0:
        control.set("seed", "123")
    seed = int(control.get("seed"))
    torch.manual_seed(seed)

    own = dist.HashStore()
    own.set("rank", str(rank))
    own.add("count", 3)
    print(f"rank {rank} seed {seed} own {own.get('rank').decode()} {own.add('count', 1)}")

    dist.init_process_group("gloo", store=dist.PrefixStore("group", base), rank=rank, world_size=world_size)
    x = torch.rand(2)
    dist.all_reduce(x)
    print(f"rank {rank} {x.tolist()[0]:.5f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
