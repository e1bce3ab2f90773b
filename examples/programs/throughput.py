"""Samples per second: n / (time.time() - t0), by every clock that scripts use."""

import time
from datetime import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 8))
    t0 = time.time()
    started = datetime.now()
    seen = 0
    for _ in range(3):
        tick = time.perf_counter()
        x = torch.randn(16, 8)
        model(x).sum().backward()
        seen += len(x)
        rate = len(x) / (time.perf_counter() - tick)
        assert rate > 0
    total = seen / (time.time() - t0)
    assert total > 0
    assert (datetime.now() - started).total_seconds() >= 0
    begin = time.monotonic()
    time.sleep(0.2)
    slept = time.monotonic() - begin
    print(f"rank {rank} seen {seen} slept long enough {slept >= 0.2} and no more {slept < 5}")
    slowest = torch.tensor(time.time() - t0)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    print(f"rank {rank} throughput is positive {seen / slowest.item() > 0}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
