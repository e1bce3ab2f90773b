"""An IterableDataset that is split by rank and by worker."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, length, rank, world_size):
        self.length, self.rank, self.world_size = length, rank, world_size

    def __iter__(self):
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        return iter(range(self.rank * workers + worker, self.length, self.world_size * workers))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    loader = DataLoader(Stream(24, rank, world_size), batch_size=3, num_workers=2, persistent_workers=True)
    for epoch in range(2):
        seen = torch.cat(list(loader))
        print(f"rank {rank} epoch {epoch} seen {sorted(seen.tolist())}")
        total = seen.sum()
        dist.all_reduce(total)
        print(f"rank {rank} epoch {epoch} total {total.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
