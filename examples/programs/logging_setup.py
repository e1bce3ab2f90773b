"""logging.basicConfig with the rank in its format, other levels by rank, and a file for each."""

import logging
import os
import sys
import warnings

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)


def setup_logging(rank):
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING,
        format=f"[rank {rank}] %(levelname)s %(name)s: %(message)s",
        handlers=[logging.StreamHandler(sys.stdout), logging.FileHandler(f"log.{rank}.txt", mode="w")],
    )
    logging.captureWarnings(True)


def main():
    rank = int(os.environ["RANK"])
    setup_logging(rank)
    dist.init_process_group("gloo")
    log.info("started with %d ranks", dist.get_world_size())
    value = torch.tensor(rank + 0.5)
    dist.all_reduce(value)
    log.warning("value %.2f", value)
    logging.getLogger("torch.custom").setLevel(logging.ERROR)
    warnings.warn("captured", stacklevel=1)
    dist.barrier()
    logging.shutdown()
    with open(f"log.{rank}.txt") as file:
        print(f"rank {rank} has logged {len(file.readlines())} lines")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
