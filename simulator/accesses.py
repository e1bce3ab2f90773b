"""Accesses: the effects of a step that other ranks can observe. They decide whether two interleavings are equivalent.

Two steps of different ranks depend on each other only if they access one object in ways that do not commute.
Contributions to a collective commute, and so do messages between named ranks. A step without an access here never needs
to be explored in another order (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems", 1996,
chapter 3).

An access describes what a step did, not what it might have done: a write that changed nothing (add 0, a set to the
present value, a compare_set that failed, a delete of a missing key) is a READ.
"""

from enum import Enum
from typing import NamedTuple

Object = tuple[str | int, ...]
"""The key of an object that a step accesses: `("key", name)` for the store, `("channel", group, destination, tag)`,
`("call", group, sequence)`. For the threads of a rank also `("order", rank, group, ...)`, `("lock", thread, number)`,
`("thread", number)` and `("futures", rank)`."""

ALL_KEYS: Object = ("key", "*")
"""The object that stands for all keys of the store; num_keys and list_keys read it."""


class AccessMode(Enum):
    """The kind of access to an object."""

    READ = "read"
    """Read a key of the store; or poll if a call is complete, a lock is free, or a thread is alive."""
    WRITE = "write"
    """Write a key of the store, or ask for a lock: the first to ask gets the lock first."""
    MISS = "miss"
    """Find that a key of the store does not exist, and wait for the key."""
    CONTRIBUTE = "contribute"
    """Do what other ranks observe only by polling: contribute to a call, get or release a lock, end a thread."""
    RECEIVE = "receive"
    """Receive from any source on a channel that has a message."""
    POST = "post"
    """Receive from any source on a channel that has no message yet; the receive gets the first message that is sent."""
    ANSWER = "answer"
    """Send a message on a channel where a receive from any source waits."""
    SEND = "send"
    """Send any other message on a channel."""

    __hash__ = object.__hash__  # looked up at each access; Enum's own is written in Python


class Access(NamedTuple):
    """One access of a step to an object that several ranks may share."""

    object: Object
    mode: AccessMode


Accesses = tuple[Access, ...]

_COMMUTE = (
    (AccessMode.READ, AccessMode.READ),
    (AccessMode.CONTRIBUTE, AccessMode.CONTRIBUTE),
    (AccessMode.CONTRIBUTE, AccessMode.WRITE),  # a rank that asks for a lock gets it once it is free
    (AccessMode.SEND, AccessMode.SEND),
    (AccessMode.RECEIVE, AccessMode.RECEIVE),  # by one rank, so in its program's order
    (AccessMode.RECEIVE, AccessMode.SEND),  # which message a receive takes is a choice of its own
    (AccessMode.RECEIVE, AccessMode.ANSWER),
    (AccessMode.POST, AccessMode.SEND),  # whether a message or its receive comes first is the same
    (AccessMode.POST, AccessMode.ANSWER),
    (AccessMode.POST, AccessMode.RECEIVE),
    (AccessMode.POST, AccessMode.POST),
    (AccessMode.MISS, AccessMode.READ),
    (AccessMode.MISS, AccessMode.MISS),
)
_DEPEND = (
    frozenset((first, second) for first in AccessMode for second in AccessMode)
    - {pair for first, second in _COMMUTE for pair in ((first, second), (second, first))}
    - {(AccessMode.MISS, AccessMode.WRITE), (AccessMode.SEND, AccessMode.ANSWER)}
)
# Two pairs depend in one order only. A rank that missed a key and was woken by its write continues as if it had read it
# later. But a delete before the miss matters: without it the key would have been found. A message that found no receive
# from any source no longer exists for a later receive; which message that one takes is its own choice.


def are_dependent(second: Access, first: Access) -> bool:
    """Return True if a program can observe that `second` came after `first`, an access of another rank."""
    one, other = first.object, second.object
    is_of_one = one == other or (ALL_KEYS in (one, other) and one[0] == other[0])
    return is_of_one and (first.mode, second.mode) in _DEPEND
