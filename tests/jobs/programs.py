"""Programs of a rank for the tests of real processes, which load them from this file."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy
import torch
import torch.distributed as dist

IS_REAL = "TORCHELASTIC_RUN_ID" in os.environ
"""True in the process of a rank, where this file is loaded again."""

if IS_REAL and os.environ.get("DIES_WHILE_STARTING") == os.environ["RANK"]:
    os.kill(os.getpid(), signal.SIGKILL)


def greets(rank):
    dist.barrier()
    print(f"rank {rank} is here", flush=True)
    return {"rank": rank, "sum": _sum(rank)}


def _sum(rank):
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    return total


def returns_what_cannot_be_pickled(rank):
    return threading.Lock() if rank == 1 else "fine"


def draws(rank):
    import random

    import numpy

    return torch.randn(3), random.random(), numpy.random.rand()


def reduces_alone(rank):
    dist.all_reduce(torch.ones(3, 2))
    if rank == 0:
        dist.all_reduce(torch.ones(5))  # hangs here


def polls_alone(rank):
    work = dist.all_reduce(torch.ones(5), async_op=True) if rank == 0 else None
    while work is not None and not work.is_completed():
        pass


def computes_for_long(rank):
    return hashlib.pbkdf2_hmac("sha256", b"", b"", 4_000_000).hex()  # one call, without Python's lock


def comes_late_to_each_call(rank):
    total = torch.ones(2)
    for _ in range(8):
        if rank == 1:
            time.sleep(0.1)
        dist.all_reduce(total)
    return total


def comes_late_to_each_message(rank):
    message = torch.ones(2)
    for _ in range(10):
        if rank == 1:
            time.sleep(0.1)
            dist.send(message, 0)
        else:
            dist.recv(message, 1)


def computes_while_others_wait(rank):
    if rank == 1:
        _compute(1.0)
    return _sum(rank)


def computes_in_several_lines_for_ever(rank):
    if rank == 1:
        _compute(1000.0)
    dist.barrier()


def _compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.ones(100).sum()


def spins(rank):
    while rank == 1:
        pass


def writes_without_end(rank):
    while rank == 1:
        os.write(2, b"[W1121 17:50:00.0 own.cpp:1] and again\n")
    dist.barrier()


def returns_much(rank):
    return torch.ones(6_000_000) * rank


def starts_others(rank):
    subprocess.Popen(["sleep", "77777"])
    if os.fork() == 0:
        return "no rank"
    return "rank"


def closes_its_streams(rank):
    sys.stdout.close()
    sys.stderr = None


def raises_what_cannot_be_printed(rank):
    class OwnError(Exception):
        def __str__(self):
            raise ValueError("no text")

    raise OwnError


def waits_for_nothing(rank):
    threading.Event().wait()


def is_killed(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def kills_its_supervisor(rank):
    if rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    dist.barrier()


def leaves(rank):
    if rank == 1:
        os._exit(3)


def is_stopped(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def raises(rank):
    if rank == 1:
        raise LookupError("no such batch")


def raises_what_cannot_be_pickled(rank):
    class OwnError(Exception):
        pass

    raise OwnError("made here")


def exits(rank):
    raise SystemExit(4)


def says_so_and_hangs(rank):
    dist.barrier()
    if rank == 0:
        print("hanging", flush=True)
    threading.Event().wait()


def misses_a_peer(rank):
    if rank == 0:
        dist.recv(torch.zeros(2), src=1)


def drops_layers(rank):
    """Reduces once more with a chance of one in two, which no rank has seeded."""
    if random.random() > 0.5:
        dist.all_reduce(torch.ones(1))


def drops_layers_alike(rank):
    """The same, seeded."""
    random.seed(0)
    drops_layers(rank)


def starts(rank):
    """What the generators begin with, and the order of a set of strings."""
    drawn = [random.random(), torch.rand(1).item(), numpy.random.random()]
    return drawn, list({"image", "text", "audio", "video"})
