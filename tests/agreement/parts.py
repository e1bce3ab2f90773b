"""What each rank sends and receives in a collective on gloo, and which ranks get to the end of their part.

A rank goes from stage to stage, and each stage takes the other side of all its messages, and room for what it receives.
It posts them as it believes the collective to be: nobody compares. From gloo/broadcast.cc, reduce.cc, gather.cc,
scatter.cc and alltoallv.cc of https://github.com/facebookincubator/gloo (as in torch 2.13). Of the other collectives
without a root it is enough to know that each rank needs all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from math import ceil, prod
from typing import NamedTuple

import torch

from ddpsim.simulator.operations import IN_PROGRAMS, POINT_TO_POINT
from ddpsim.simulator.programs.program import Issue


class Algorithm(Enum):
    """The algorithm that gloo runs; gloo cannot distinguish two operations with the same algorithm."""

    ALL_REDUCE = "all_reduce"
    REDUCE = "reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    GATHER = "gather"
    SCATTER = "scatter"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    ALL_TO_ALL_SINGLE = "all_to_all_single"
    BARRIER = "barrier"
    MESSAGE = "message"


_ALGORITHMS = {
    "all_reduce_coalesced": Algorithm.ALL_REDUCE,
    "all_gather_coalesced": Algorithm.ALL_GATHER,
    "all_gather_into_tensor": Algorithm.ALL_GATHER,
    "reduce_scatter_tensor": Algorithm.ALL_REDUCE,
    **dict.fromkeys(POINT_TO_POINT, Algorithm.MESSAGE),
}
"""The algorithms of operations that are not named as their algorithm is."""
ENDS_WHEN_EMPTY = (Algorithm.ALL_REDUCE, Algorithm.REDUCE, Algorithm.ALL_GATHER, Algorithm.REDUCE_SCATTER)
"""Algorithms in which a call without elements waits for no rank."""
HAVE_ROOM_TO_SPARE = frozenset(Algorithm) - {*ENDS_WHEN_EMPTY, Algorithm.BARRIER}
"""Algorithms in which a tensor may be received into a larger one."""


class Message(NamedTuple):
    """What one rank of the group (by its number there) sends another."""

    sender: int
    receiver: int
    what: str
    """Messages of one algorithm do not meet those of another, nor chunks other chunks."""


Stages = Sequence[Iterable[Message]]


def who_ends(calls: Mapping[int, Issue], members: Sequence[int]) -> set[int]:
    """The ranks of `calls` that can get to the end of their part, if no others of the members call.

    Who is sent more than there is room for does not; it may die of it, or be gone before.
    """
    left = {
        rank: list(_stages(issue, members.index(rank), members))
        for rank, issue in calls.items()
        if _keeps_its_own(issue, members.index(rank))
    }
    posted: set[tuple[int, Message]] = set()

    def goes_through(rank: int, message: Message) -> bool:
        sender, receiver = members[message.sender], members[message.receiver]
        if (receiver if rank == sender else sender, message) not in posted:
            return False
        return rank == sender or _length(calls[sender], message.receiver, 0) <= _length(calls[rank], message.sender, 1)

    goes_on = True
    while goes_on:
        posted |= {(rank, each) for rank, own in left.items() for each in (own[0] if own else ())}
        goes_on = False
        for rank, own in left.items():
            if own and all(goes_through(rank, each) for each in own[0]):
                own.pop(0)
                goes_on = True
    return {rank for rank, own in left.items() if not own}


def is_of_nothing(issue: Issue) -> bool:
    """True if there is no element, and gloo leaves at once for that."""
    return algorithm_of(issue.operation) in ENDS_WHEN_EMPTY and not _elements(issue)


def size(issue: Issue) -> int:
    """Bytes; of a row in all_to_all_single, to which each rank brings rows of its own number."""
    if issue.dtype is None:
        return 0
    dtype: torch.dtype = getattr(torch, issue.dtype)
    shapes = [shape[1:] for shape in issue.shapes] if issue.splits is not None else issue.shapes
    return sum(prod(shape) for shape in shapes) * dtype.itemsize


def algorithm_of(operation: str) -> Algorithm:
    """What gloo does for an operation of programs."""
    assert operation in IN_PROGRAMS
    return _ALGORITHMS.get(operation) or Algorithm(operation)


def _stages(issue: Issue, number: int, members: Sequence[int]) -> Stages:
    """What a rank posts and waits for; `number` is the rank's in the group (of a message: sender and receiver)."""
    if is_of_nothing(issue):
        return []
    if algorithm_of(issue.operation) is Algorithm.MESSAGE:
        return [[Message(0, 1, "message")]]
    count, part = len(members), ROOTED.get(algorithm_of(issue.operation))
    if part is not None:
        assert issue.root is not None
        return part(number, members.index(issue.root), count, issue)
    return [_with_all(number, count, algorithm_of(issue.operation).value)]


def _keeps_its_own(issue: Issue, number: int) -> bool:
    """False if it is to send itself more or fewer rows than it receives from itself: gloo raises before it begins."""
    return issue.splits is None or issue.splits[0][number] == issue.splits[1][number]


def _length(issue: Issue, other: int, side: int) -> int:
    """Bytes that are sent to that number, or received from it: side 0 or 1."""
    return size(issue) * (1 if issue.splits is None else issue.splits[side][other])


def _elements(issue: Issue) -> int:
    return sum(prod(shape) for shape in issue.shapes)


# --- one function an algorithm ----------------------------------------------------------------------------------------


def _with_all(number: int, size: int, what: str) -> list[Message]:
    others = [other for other in range(size) if other != number]
    return [Message(*pair, what) for other in others for pair in ((number, other), (other, number))]


def _gather(number: int, root: int, size: int, issue: Issue) -> Stages:
    senders = [other for other in range(size) if other != root] if number == root else [number]
    return [[Message(sender, root, "gather") for sender in senders]]


def _scatter(number: int, root: int, size: int, issue: Issue) -> Stages:
    receivers = [other for other in range(size) if other != root] if number == root else [number]
    return [[Message(root, receiver, "scatter") for receiver in receivers]]


def _broadcast(number: int, root: int, size: int, issue: Issue) -> Stages:
    """A tree: counted from the root, a rank's number less its highest bit is that of the rank above it."""
    own = (number - root) % size
    above = {other: other - (1 << other.bit_length() >> 1) for other in range(1, size)}
    edges = {other: Message((up + root) % size, (other + root) % size, "broadcast") for other, up in above.items()}
    return [
        [edge for other, edge in edges.items() if other == own],
        [edge for other, edge in edges.items() if above[other] == own],
    ]


def _reduce(number: int, root: int, size: int, issue: Issue) -> Stages:
    """A ring, in which each chunk goes down to the rank of its number, and from there to the root."""
    chunk = 2 * ceil(_elements(issue) / (2 * size))
    chunks = range(ceil(_elements(issue) / chunk))
    below, above = (number - 1) % size, (number + 1) % size
    hops = [
        [
            *[Message(number, below, f"chunk {each}") for each in chunks if each == (number + 1 + hop) % size],
            *[Message(above, number, f"chunk {each}") for each in chunks if each == (number + 2 + hop) % size],
        ]
        for hop in range(size - 1)
    ]
    to_root = [Message(each, root, "reduced") for each in chunks if each != root and number in (each, root)]
    return [*hops, to_root]


ROOTED: Mapping[Algorithm, Callable[[int, int, int, Issue], Stages]] = {
    Algorithm.BROADCAST: _broadcast,
    Algorithm.GATHER: _gather,
    Algorithm.REDUCE: _reduce,
    Algorithm.SCATTER: _scatter,
}
