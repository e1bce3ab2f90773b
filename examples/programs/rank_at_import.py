"""Constants made of the environment while the file is imported, and helpers that use them."""

import os

import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.getenv("LOCAL_RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
DISTRIBUTED = WORLD_SIZE > 1
DEVICE = torch.device("cuda", LOCAL_RANK) if torch.cuda.is_available() else torch.device("cpu")


def is_main_process():
    return RANK == 0


def print0(*args):
    if is_main_process():
        print(*args)


if DISTRIBUTED:
    dist.init_process_group("gloo")

shard = torch.arange(10, device=DEVICE)[RANK::WORLD_SIZE]
total = shard.sum()
print(f"rank {RANK} shard {shard.tolist()}")
dist.all_reduce(total)
print0("total", total.item())
assert dist.get_rank() == RANK

if DISTRIBUTED:
    dist.destroy_process_group()
