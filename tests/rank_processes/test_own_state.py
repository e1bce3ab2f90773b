"""What a process owns is a rank's own, which ranks that are threads would share."""

import os
import random
import signal
from functools import lru_cache

import torch
import torch.distributed as dist

from ddpsim import simulate

COUNT = {"calls": 0}


@lru_cache
def cached_rank():
    return dist.get_rank()


def own_state(rank):
    COUNT["calls"] += 1
    os.environ["OWN"] = str(rank)
    os.chdir("/" if rank else "/tmp")
    signal.signal(signal.SIGUSR1, lambda *_: COUNT.update(signal=rank))
    seen = cached_rank()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGUSR1)
    dist.barrier()
    return COUNT["calls"], os.environ["OWN"], os.getcwd(), COUNT["signal"], seen, cached_rank()


def test_ranks_share_nothing():
    before = dict(COUNT), os.getcwd(), os.environ.get("OWN")
    returns = simulate(own_state, 3, isolation="process").returns
    assert returns == ((1, "0", "/tmp", 0, 0, 0), (1, "1", "/", 1, 1, 1), (1, "2", "/", 2, 2, 2))
    assert (dict(COUNT), os.getcwd(), os.environ.get("OWN")) == before


def test_functions_start_alike():
    def program(rank):
        return torch.rand(2).tolist(), random.random()

    first, second = simulate(program, 2, isolation="process").returns
    assert first == second == simulate(program, 2).returns[0]
