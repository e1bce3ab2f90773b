"""A thousand deadlocks in one process leave nothing behind."""

import ctypes
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


class Mallinfo(ctypes.Structure):
    """What glibc says of its memory."""

    _fields_ = [(name, ctypes.c_size_t) for name in ["arena", "a", "b", "c", "d", "e", "f", "in_use", "g", "h"]]


@pytest.mark.tier("ci")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="asks glibc for the memory in use")
def test_ranks_leave_no_process_group_in_native_memory():
    """torch keeps 150 bytes of each thread that names a group; a group that is left in its registry has 560 more."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Mallinfo
    used = []
    for number in range(301):
        simulate(healthy, 4)
        if number % 100 == 0:
            gc.collect()
            used.append(library.mallinfo2().in_use)
    assert (used[-1] - used[1]) / (200 * 4) < 500
