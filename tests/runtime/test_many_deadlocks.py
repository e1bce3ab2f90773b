"""A thousand deadlocks in one process leave nothing behind."""

import gc
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import simulate
from tests.kit.leftovers import new_files, no_thread_is_left, open_files

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def deadlock(rank):
    """DDP training in which rank 1 runs out of input."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    for _ in range(2 - rank):
        model(torch.ones(2, 64)).sum().backward()


def healthy(rank):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return tensor.item()


def memory_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@pytest.mark.tier("nightly")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory and open files from /proc")
def test_a_thousand_deadlocks_leave_nothing_behind():
    files, memory = open_files(), []
    with no_thread_is_left():
        for number in range(1000):
            result = simulate(deadlock, 2)
            assert [finding.code for finding in result.findings] == ["deadlock.missing_rank"]
            if number % 100 == 99:
                memory.append(memory_bytes())
    assert new_files(files) == {}
    # Flat over the last 500: a leak of one 64 x 64 parameter (16 KiB) a run would add 8 MB.
    assert memory[-1] - memory[4] < 4 * 2**20
    assert simulate(healthy, 3).returns == (3.0, 3.0, 3.0)
