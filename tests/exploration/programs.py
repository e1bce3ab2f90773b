"""Programs whose interleavings can be counted."""

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def store():
    """The store that the ranks share."""
    return distributed_c10d._get_default_store()


def add_up(rank):
    """Collectives only: all interleavings come to the same."""
    total = torch.tensor(rank)
    dist.all_reduce(total)
    return total.item()


def write_and_read(rank):
    """Ranks 0 and 1 write a key, rank 2 reads it; one step each."""
    if rank < 2:
        store().set("key", f"by {rank}")
        return None
    return store().compare_set("key", "nobody", "nobody").decode()


def senders_to_one(rank):
    """Every rank sends to rank 0, which takes what comes."""
    if rank:
        dist.send(torch.zeros(1), 0)
        return None
    return [dist.recv(torch.zeros(1)) for _ in range(dist.get_world_size() - 1)]


def waited_for_twice(rank):
    """As `senders_to_one`, with a second wait for what is there."""
    if rank:
        dist.send(torch.zeros(1), 0)
    for _ in range(0 if rank else dist.get_world_size() - 1):
        work = dist.irecv(torch.zeros(1))
        work.wait()
        work.wait()


def two_receivers(rank):
    """Ranks 2 and 4 send to rank 0, ranks 3 and 5 to rank 1, which take what comes."""
    if rank > 1:
        dist.send(torch.zeros(1), rank % 2)
        return None
    return [dist.recv(torch.zeros(1)) for _ in range(2)]


def overtaken(rank):
    """Rank 0 looks at a key twice, and fails if rank 1 has changed it in between."""
    if rank:
        store().set("key", "other")
        return
    before = store().compare_set("key", "", "own")
    assert store().get("key") == before
