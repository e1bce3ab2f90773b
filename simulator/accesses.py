"""Accesses: what of a step other ranks can observe, so that two interleavings can be told to be the same.

Two steps of different ranks depend on each other only if they touch one object in ways that do not commute. Everything
else commutes: in particular contributions to a collective, and messages that were sent and asked for by name. So what
has no access here never needs to be explored in another order (Godefroid, "Partial-Order Methods for the Verification
of Concurrent Systems", 1996, chapter 3).

An access says what a step did to an object where it was made, not what it might have done: a write that changed nothing
(add 0, set of the value that is there, compare_set that failed, delete of what is not there) is a READ, since it
commutes with other reads, and with a write it does not.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

Object = tuple[str | int, ...]
"""What is touched: `("key", name)`, `("channel", group, destination, tag)`, `("call", group, sequence)`.

Among the threads of a rank also `("order", rank, group, ...)`, `("lock", thread, number)`, `("thread", number)` and
`("futures", rank)`.
"""

ALL_KEYS: Object = ("key", "*")
"""Every key of the store: what num_keys and list_keys look at."""


class Mode(Enum):
    """How an object is touched."""

    READ = "read"
    """Of a key; of whether a call is complete, a lock is free, a thread alive (a poll)."""
    WRITE = "write"
    """Of a key. Of a lock: to ask for it, as who asks first gets it first."""
    MISS = "miss"
    """Of a key that is not there: the rank waits for it, and has done nothing."""
    CONTRIBUTE = "contribute"
    """What is only seen by somebody who polls: to a call; to give a lock back or get it at last; to end as a thread."""
    RECEIVE = "receive"
    """From any source, on a channel: one of the messages that are there."""
    POST = "post"
    """Likewise, where no message is there: the first one that comes is its."""
    ANSWER = "answer"
    """A message that a receive from any source waits for."""
    SEND = "send"
    """Any other message on a channel."""

    __hash__ = object.__hash__  # looked up at each touch; Enum's own is written in Python


class Access(NamedTuple):
    """One object touched by a step."""

    object: Object
    mode: Mode


Accesses = tuple[Access, ...]

_COMMUTE = (
    (Mode.READ, Mode.READ),
    (Mode.CONTRIBUTE, Mode.CONTRIBUTE),
    (Mode.CONTRIBUTE, Mode.WRITE),  # whoever asks for a lock gets it when it is free
    (Mode.SEND, Mode.SEND),
    (Mode.RECEIVE, Mode.RECEIVE),  # by one rank, so in its program's order
    (Mode.RECEIVE, Mode.SEND),  # whom a receive takes is a choice of its own
    (Mode.RECEIVE, Mode.ANSWER),
    (Mode.POST, Mode.SEND),  # whether a message or its receive comes first is the same
    (Mode.POST, Mode.ANSWER),
    (Mode.POST, Mode.RECEIVE),
    (Mode.POST, Mode.POST),
    (Mode.MISS, Mode.READ),
    (Mode.MISS, Mode.MISS),
)
_DEPEND = (
    frozenset((first, second) for first in Mode for second in Mode)
    - {pair for first, second in _COMMUTE for pair in ((first, second), (second, first))}
    - {(Mode.MISS, Mode.WRITE), (Mode.SEND, Mode.ANSWER)}
)
# Two pairs depend in one order only. Who misses a key and is woken by the write that makes it goes on as if it had come
# later; but a write after which a key is missed, a delete, came before: sooner, it would have been found. And a
# message that found no receive from any source is gone when a later one finds one; what else could be taken in its
# place is a choice of the receive that took it.


def depends(second: Access, first: Access) -> bool:
    """True if it can be observed that `second` came after `first`, an access of another rank."""
    return (first.mode, second.mode) in _DEPEND and (first.object == second.object or _is_all_keys(first, second))


def _is_all_keys(first: Access, second: Access) -> bool:
    return ALL_KEYS in (first.object, second.object) and first.object[0] == second.object[0]
