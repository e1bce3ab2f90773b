"""Each rank saves on the disk of its host, and so a host that is lost takes its files with it."""

import os
import sys

import torch
import torch.distributed as dist


def main(*, is_repaired):
    dist.init_process_group("gloo")
    os.makedirs("shared", exist_ok=True)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    shard = torch.nn.Linear(4, 1)  # of a layer that is split among the ranks
    optimizer = torch.optim.SGD(shard.parameters(), lr=0.1)
    folder = "shared" if is_repaired else "local"
    begin = 0
    if os.path.exists("shared/complete"):
        begin = 2
        shard.load_state_dict(torch.load(f"{folder}/rank{rank}.pt"))
    for step in range(begin, 4):
        optimizer.zero_grad()
        output = shard(torch.ones(2, 4))
        total = output.detach().clone()
        dist.all_reduce(total)
        (output * total).sum().backward()
        optimizer.step()
        if step == 1:
            torch.save(shard.state_dict(), f"{folder}/rank{rank}.pt")
            dist.barrier()
            if rank == 0:
                open("shared/complete", "w").close()
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
