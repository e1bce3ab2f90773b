"""Each rank resumes from the newest of its own files, which is not of the same step on all ranks."""

import os
import re
import sys

import torch
import torch.distributed as dist


def main(*, is_repaired):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    shard = torch.nn.Linear(4, 1)  # of a layer that is split among the ranks
    optimizer = torch.optim.SGD(shard.parameters(), lr=0.1)
    newest = max(
        [int(each.partition("at ")[2][:-3]) for each in os.listdir() if re.fullmatch(rf"{rank}at (\d+).pt", each)],
        default=0,
    )
    common = torch.tensor(newest)
    if is_repaired:
        dist.all_reduce(common, dist.ReduceOp.MIN)
    if common:
        shard.load_state_dict(torch.load(f"{rank}at {common}.pt"))
    for step in range(int(common), 3):
        optimizer.zero_grad()
        output = shard(torch.ones(2, 4))
        total = output.detach().clone()
        dist.all_reduce(total)
        (output * total).sum().backward()
        optimizer.step()
        torch.save(shard.state_dict(), f"{rank}.tmp")
        os.replace(f"{rank}.tmp", f"{rank}at {step + 1}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
