"""Python objects between ranks: broadcast, gather, all_gather and scatter of what pickle takes."""

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Settings:
    lr: float
    layers: list


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shared = [Settings(0.1, [8, 4]), "run-1"] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0)
    print(f"rank {rank} settings {shared}")

    metrics = {"rank": rank, "losses": [0.5 * rank, 0.25], "tensor": torch.ones(2) * rank}
    everywhere = [None] * world_size
    dist.all_gather_object(everywhere, metrics)
    print(f"rank {rank} mean {sum(m['losses'][0] for m in everywhere) / world_size} {everywhere[1]['tensor'].tolist()}")

    on_zero = [None] * world_size if rank == 0 else None
    dist.gather_object(f"report of {rank}", on_zero, dst=0)
    if rank == 0:
        print(on_zero)

    part = [None]
    dist.scatter_object_list(part, [f"shard {r}" for r in range(world_size)] if rank == 0 else None, src=0)
    print(f"rank {rank} has {part[0]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
