"""Functions for the ranks of a pool. They live in a module of their own, as each process has to find them by name."""

import os
import signal
import time

import torch
import torch.distributed as dist


def add(rank, number):
    """Sums on the default group, then on one of ranks 0 and 1."""
    tensor = torch.full((3,), float(rank + number))
    dist.all_reduce(tensor)
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
    return tensor.tolist()


def added(world_size, number):
    """What `add` returns on each rank."""
    total = float(sum(rank + number for rank in range(world_size)))
    return [[2 * total] * 3 if rank < 2 else [total] * 3 for rank in range(world_size)]


def returns_early(rank):
    if rank == 1:
        return "early"
    dist.barrier()
    return "late"


def returns_early_of_a_group(rank):
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.barrier(group=group)


def raises(rank):
    if rank == 1:
        raise KeyError("no such rank")
    return rank


def raises_with_a_message_on_its_way(rank):
    if rank == 1:
        _work = dist.irecv(torch.zeros(3), 0)
        raise KeyError("no such rank")
    dist.send(torch.ones(3), 1)
    dist.barrier()


def leaves_by_exit(rank):
    raise SystemExit(4)


def receives_too_much(rank):
    """gloo ends the process whose tensor is too small for what comes."""
    tensor = torch.ones(4 if rank == 0 else 1)
    dist.broadcast(tensor, src=0)


def dies(rank, how):
    if rank == 1:
        os._exit(3) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)


def computes(rank, seconds):
    """One rank is busy, the others wait for it."""
    if rank == 0:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    dist.barrier()


def is_stopped(rank, seconds):
    """One rank gets no processor for a while."""
    processes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(processes, torch.tensor([os.getpid()]))
    if rank == 0:
        os.kill(int(processes[1]), signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(int(processes[1]), signal.SIGCONT)
    dist.barrier()


def sleeps(rank):
    time.sleep(600)


def ends_the_server(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    sleeps(rank)


def returns_what_cannot_be_pickled(rank):
    return lambda: rank


def thread_count(rank):
    """Of the process and torch, and what debug level torch has."""
    return torch.get_num_threads(), os.environ.get("TORCH_DISTRIBUTED_DEBUG")


def prints(rank):
    print("from Python", flush=True)
    os.system("echo from a child; echo and its errors >&2")
