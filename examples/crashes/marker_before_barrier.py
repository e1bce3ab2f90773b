"""Rank 0 says that the checkpoint is complete before the other ranks have written their shards."""

import os
import sys

import torch
import torch.distributed as dist


def main(*, is_repaired):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    shard = torch.nn.Linear(4, 1)  # of a layer that is split among the ranks
    optimizer = torch.optim.SGD(shard.parameters(), lr=0.1)
    begin = 0
    if os.path.exists("complete"):
        begin = 2
        shard.load_state_dict(torch.load(f"step2.rank{rank}.pt"))
    for step in range(begin, 4):
        optimizer.zero_grad()
        output = shard(torch.ones(2, 4))
        total = output.detach().clone()
        dist.all_reduce(total)
        (output * total).sum().backward()
        optimizer.step()
        if step == 1:
            torch.save(shard.state_dict(), f"step2.rank{rank}.pt")
            if is_repaired:
                dist.barrier()
            if rank == 0:
                open("complete", "w").close()
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
