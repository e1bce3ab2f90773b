"""The file by which ranks find each other outlives them: after a restart, it has the addresses of the first attempt."""

import os
import sys

import torch
import torch.distributed as dist


def main(*, is_repaired):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    generation = os.environ["TORCHELASTIC_RESTART_COUNT"] if is_repaired else "0"
    dist.init_process_group("gloo", f"file://{os.path.abspath('rendezvous' + generation)}", rank=rank, world_size=size)
    torch.manual_seed(rank)
    shard = torch.nn.Linear(4, 1)  # of a layer that is split among the ranks
    optimizer = torch.optim.SGD(shard.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        output = shard(torch.ones(2, 4))
        total = output.detach().clone()
        dist.all_reduce(total)
        (output * total).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(is_repaired="--repaired" in sys.argv)
