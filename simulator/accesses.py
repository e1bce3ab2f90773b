"""Accesses: what of a step other ranks can observe, so that two interleavings can be told to be the same.

Two steps of different ranks depend on each other only if they touch one object in ways that do not commute. Everything
else commutes: in particular contributions to a collective, and messages that were sent and asked for by name. So what
has no access here never needs to be explored in another order (Godefroid, "Partial-Order Methods for the Verification
of Concurrent Systems", 1996, chapter 3).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

Object = tuple[str | int, ...]
"""What is touched: `("key", name)`, `("channel", group, destination, tag)`, `("call", group, sequence)`.

Among the threads of a rank also `("order", rank, group, ...)`, `("lock", thread, number)` and `("thread", number)`.
"""

CAN_BE_POLLED = frozenset({"call", "lock", "thread"})
"""What CONTRIBUTE is of."""

ALL_KEYS: Object = ("key", "*")
"""Every key of the store: what num_keys and list_keys look at."""


class Mode(Enum):
    """How an object is touched."""

    READ = "read"
    """Of a key; of whether a call is complete, a lock is free, a thread alive (a poll)."""
    WRITE = "write"
    """Of a key. Of a lock: to ask for it, as who asks first gets it first."""
    CONTRIBUTE = "contribute"
    """What is only seen by somebody who polls: to a call; to give a lock back or get it at last; to end as a thread."""
    RECEIVE = "receive"
    """From any source, on a channel."""
    ANSWER = "answer"
    """A message that a receive from any source waits for."""
    SEND = "send"
    """Any other message on a channel."""


class Access(NamedTuple):
    """One object touched by a step."""

    object: Object
    mode: Mode


Accesses = tuple[Access, ...]

_COMMUTE = (
    {Mode.READ},
    {Mode.CONTRIBUTE},
    {Mode.CONTRIBUTE, Mode.WRITE},  # whoever asks for a lock gets it when it is free
    {Mode.SEND},
    {Mode.RECEIVE},  # by one rank, so in its program's order
    {Mode.RECEIVE, Mode.SEND},  # whom a receive takes is a choice of its own
    {Mode.RECEIVE, Mode.ANSWER},
)


def conflict(first: Access, second: Access) -> bool:
    """True if the order of two accesses by different ranks can be observed."""
    if first.object != second.object and not _is_all_keys(first, second):
        return False
    return {first.mode, second.mode} not in _COMMUTE


def _is_all_keys(first: Access, second: Access) -> bool:
    return ALL_KEYS in (first.object, second.object) and first.object[0] == second.object[0]
