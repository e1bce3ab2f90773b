"""Correct programs that send messages, and each with one call of one rank changed: who is to blame is known.

A program gets `comm` in the place of torch.distributed's functions. `comm` counts the calls of each rank, and makes the
one that a `Mutation` names in another way. What it does stands in no file of a user's, so lines are the program's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

KINDS = ("skip", "peer", "tag", "extra", "swap")


class Mutation(NamedTuple):
    """What one rank does otherwise."""

    kind: str
    rank: int
    number: int
    """Which of its calls, from 0."""


_SOURCE = '''
class Comm:
    """Makes the calls of one rank, one of them changed."""

    def __init__(self, dist, rank, world_size, mutation, seen):
        self.dist, self.rank, self.world_size = dist, rank, world_size
        self.mutation = mutation if mutation is not None and mutation.rank == rank else None
        self.number, self.held, self.seen = 0, None, seen

    def _other(self, peer):
        others = [(peer + k) % self.world_size for k in range(1, 9)]
        return next(each for each in others if each not in (peer, self.rank))

    def _make(self, name, tensor, peer, tag):
        mutation, number = self.mutation, self.number
        self.number += 1
        if mutation is None:
            return self._call(name, tensor, peer, tag)
        if self.held is not None:
            held, self.held = self.held, None
            own = self._call(name, tensor, peer, tag)
            later = self._call(*held)
            return own if own is not None else later
        if number != mutation.number:
            return self._call(name, tensor, peer, tag)
        self.seen.append(_line())
        if mutation.kind == "skip":
            return None
        if mutation.kind == "peer":
            return self._call(name, tensor, self._other(peer), tag)
        if mutation.kind == "tag":
            return self._call(name, tensor, peer, tag + 7)
        if mutation.kind == "extra":
            self._call(name, tensor, peer, tag)
            return self._call(name, tensor, peer, tag)
        self.held = (name, tensor, peer, tag)

    def _call(self, name, tensor, peer, tag):
        return getattr(self.dist, name)(tensor, peer, tag=tag)

    def send(self, tensor, peer, tag=0):
        self._make("send", tensor, peer, tag)

    def recv(self, tensor, peer, tag=0):
        self._make("recv", tensor, peer, tag)

    def isend(self, tensor, peer, tag=0):
        return self._make("isend", tensor, peer, tag) or _Nothing()

    def irecv(self, tensor, peer, tag=0):
        return self._make("irecv", tensor, peer, tag) or _Nothing()


class _Nothing:
    def wait(self):
        pass


def _line():
    frame = sys._getframe()
    while frame.f_code.co_filename.startswith("<frozen"):
        frame = frame.f_back
    return frame.f_lineno
'''


def comm_of(rank: int, world_size: int, mutation: Mutation | None, seen: list[int]) -> Any:
    """The functions for a rank; `seen` gets the line of the call that is changed."""
    names: dict[str, Any] = {"sys": __import__("sys")}
    exec(compile(_SOURCE, "<frozen mutants>", "exec"), names)
    return names["Comm"](dist, rank, world_size, mutation, seen)


STEPS = 3


def ring(rank: int, size: int, comm: Any) -> None:
    """Everybody sends to the next, by parity."""
    tensor, after, before = torch.ones(2), (rank + 1) % size, (rank - 1) % size
    for _ in range(STEPS):
        if rank % 2 == 0:
            comm.send(tensor, after)
            comm.recv(tensor, before)
        else:
            comm.recv(tensor, before)
            comm.send(tensor, after)


def ring_at_once(rank: int, size: int, comm: Any) -> None:
    """Everybody sends to the next without waiting, with the step as a tag."""
    tensor, after, before = torch.ones(2), (rank + 1) % size, (rank - 1) % size
    for step in range(STEPS):
        work = comm.isend(torch.ones(2), after, tag=step)
        comm.recv(tensor, before, tag=step)
        work.wait()


def pipeline(rank: int, size: int, comm: Any) -> None:
    """Each stage hands on what it gets."""
    tensor = torch.ones(2)
    for _ in range(STEPS):
        if rank > 0:
            comm.recv(tensor, rank - 1)
        if rank < size - 1:
            comm.send(tensor, rank + 1)


def there_and_back(rank: int, size: int, comm: Any) -> None:
    """A pipeline with activations one way and gradients the other way, under tags of their own."""
    tensor = torch.ones(2)
    for _ in range(STEPS):
        if rank > 0:
            comm.recv(tensor, rank - 1, tag=1)
        if rank < size - 1:
            comm.send(tensor, rank + 1, tag=1)
        if rank < size - 1:
            comm.recv(tensor, rank + 1, tag=2)
        if rank > 0:
            comm.send(tensor, rank - 1, tag=2)


def fan_in(rank: int, size: int, comm: Any) -> None:
    """Rank 0 collects from each."""
    tensor = torch.ones(2)
    for _ in range(STEPS):
        if rank == 0:
            for source in range(1, size):
                comm.recv(tensor, source)
        else:
            comm.send(tensor, 0)


def fan_out(rank: int, size: int, comm: Any) -> None:
    """Rank 0 hands out to each."""
    tensor = torch.ones(2)
    for _ in range(STEPS):
        if rank == 0:
            for target in range(1, size):
                comm.send(tensor, target)
        else:
            comm.recv(tensor, 0)


def requests(rank: int, size: int, comm: Any) -> None:
    """Each asks rank 0, which answers."""
    tensor = torch.ones(2)
    for _ in range(STEPS):
        if rank == 0:
            for client in range(1, size):
                comm.recv(tensor, client, tag=1)
                comm.send(tensor, client, tag=2)
        else:
            comm.send(tensor, 0, tag=1)
            comm.recv(tensor, 0, tag=2)


def pairs(rank: int, size: int, comm: Any) -> None:
    """Neighbours exchange."""
    tensor, partner = torch.ones(2), rank ^ 1
    for _ in range(STEPS):
        if rank < partner:
            comm.send(tensor, partner)
            comm.recv(tensor, partner)
        else:
            comm.recv(tensor, partner)
            comm.send(tensor, partner)


def halo(rank: int, size: int, comm: Any) -> None:
    """Neighbours in a row exchange their borders without waiting."""
    for step in range(STEPS):
        works = []
        for neighbour in (rank - 1, rank + 1):
            if 0 <= neighbour < size:
                works.append(comm.isend(torch.ones(2), neighbour, tag=step))
                works.append(comm.irecv(torch.ones(2), neighbour, tag=step))
        for work in works:
            work.wait()


PROGRAMS: tuple[Callable[[int, int, Any], None], ...] = (
    ring,
    ring_at_once,
    pipeline,
    there_and_back,
    fan_in,
    fan_out,
    requests,
    pairs,
    halo,
)


def run_of(
    program: Callable[[int, int, Any], None], size: int, mutation: Mutation | None, seen: list[int]
) -> Callable[[int], None]:
    """A program of one rank."""

    def on_rank(rank: int) -> None:
        program(rank, size, comm_of(rank, size, mutation, seen))

    return on_rank


def mutations(size: int, calls: list[int]) -> Iterator[Mutation]:
    """Each kind, on a few ranks, in a few of their calls; `calls` says how many each rank makes."""
    for rank in sorted({0, size // 2, size - 1}):
        for number in sorted({0, calls[rank] // 2, calls[rank] - 1}):
            yield from (Mutation(kind, rank, number) for kind in KINDS if kind != "peer" or size > 2)
