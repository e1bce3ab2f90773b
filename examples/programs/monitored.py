"""monitored_barrier before training, with a time-out, and barriers between its parts."""

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    print(f"rank {rank} all are there")
    if rank == 0:
        torch.save(torch.arange(5), "prepared.pt")
    dist.barrier()
    data = torch.load("prepared.pt")
    dist.monitored_barrier()
    work = dist.all_reduce(data, async_op=True)
    work.wait()
    print(f"rank {rank} data {data.tolist()} complete {work.is_completed()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
