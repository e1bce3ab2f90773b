"""Rank 0 saves its own shard of a split layer, and all ranks load that one."""

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
    name = f"shard{rank if is_repaired else 0}.pt"
    begin = 0
    if os.path.exists("last"):
        state = torch.load(os.path.join("last", name))
        shard.load_state_dict(state["shard"])
        begin = state["step"]
    for step in range(begin, 4):
        optimizer.zero_grad()
        output = shard(torch.ones(2, 4))
        total = output.detach().clone()
        dist.all_reduce(total)
        (output * total).sum().backward()
        optimizer.step()
        if step == 1:
            os.makedirs("new", exist_ok=True)
            if rank == 0 or is_repaired:
                torch.save({"shard": shard.state_dict(), "step": step + 1}, os.path.join("new", name))
            dist.barrier()
            if rank == 0:
                os.rename("new", "last")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
