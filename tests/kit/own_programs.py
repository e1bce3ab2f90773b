"""Files of a user's own, as text: what the tests of the console put into a folder, and name on the command line."""

RACY = """\
import torch
import torch.distributed as dist


def racy(rank):
    received = torch.zeros(1)
    if rank:
        dist.send(torch.full((1,), float(rank)), 0)
    for number in range(1, dist.get_world_size() if rank == 0 else 0):
        dist.recv(received)
        assert int(received) == number
"""
"""Rank 0 takes messages for those of ranks in order."""

FINE = """

def fine(rank):
    dist.barrier()
"""

ENDLESS = """

def endless(rank):
    import time

    while True:
        time.sleep(1)
"""
"""It sleeps in virtual time, again and again, so only a budget ends it."""
