"""new_group and new_subgroups: reductions inside a part of the world, and DDP over a group."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = dist.new_group(list(range(size)))
    alone = [dist.new_group([r]) for r in range(size)]
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value, group=everybody)
    own = torch.tensor([rank + 1.0])
    dist.all_reduce(own, group=alone[rank])
    print(f"rank {rank} everybody {value.item()} alone {own.item()} size {dist.get_world_size(alone[rank])}")

    subgroup, subgroups = dist.new_subgroups(group_size=1)
    print(f"rank {rank} in a group of {dist.get_process_group_ranks(subgroup)} of {len(subgroups)}")

    torch.manual_seed(rank)
    model = DDP(nn.Linear(2, 2), process_group=alone[rank])
    model(torch.ones(1, 2)).sum().backward()
    print(f"rank {rank} own model {model.module.weight.sum().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
