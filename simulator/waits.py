"""The reasons why a thread of a rank waits, as frozen values for the diagnosis.

`str` of a reason is a short description.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ddpsim.simulator.accesses import Object
from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.choices import RankOrThread


class CallWait(NamedTuple):
    """A rank waits for one call to complete, as in `wait`, or for any one of several calls."""

    calls: tuple[Call, ...]
    site: Site = NOWHERE

    def __str__(self) -> str:
        more = len(self.calls) - 1
        return f"{self.calls[0]}{f' (or one of {more} other calls)' if more else ''}"


@dataclass(frozen=True, slots=True)
class StoreWait:
    """A rank waits until another rank has set keys of the store."""

    keys: tuple[str, ...]
    site: Site = NOWHERE

    def __str__(self) -> str:
        return f"store key{'s' * (len(self.keys) > 1)} {', '.join(map(repr, self.keys))}"


@dataclass(frozen=True, slots=True)
class ClockWait:
    """A rank sleeps in virtual time."""

    seconds: float
    site: Site = NOWHERE

    def __str__(self) -> str:
        return f"the clock ({self.seconds:g} s)"


@dataclass(frozen=True, slots=True)
class LockWait:
    """A thread waits for a lock, or for an object built on one: an event, a condition, an item of a queue."""

    lock: Object
    what: str = "a lock"
    """The object that the program waits for, in words."""
    holder: int | None = None
    """The number of the thread that has the lock; None if any other thread of the rank may release the lock."""
    site: Site = NOWHERE

    def __str__(self) -> str:
        return self.what


def futures_object(rank: int) -> Object:
    """Return the name of all futures that a rank's threads set themselves; a thread that waits for one waits for it."""
    return ("futures", rank)


@dataclass(frozen=True, slots=True)
class ThreadWait:
    """A thread waits until another thread of its rank has ended."""

    thread: int
    """The number of the thread that is to end."""
    name: str
    site: Site = NOWHERE
    is_at_end: bool = False
    """True if the rank's program has ended, and its process now waits for its threads."""

    def __str__(self) -> str:
        return f'the end of thread "{self.name}"'


@dataclass(frozen=True, slots=True)
class OutsideWait:
    """A rank waits for something outside the simulation, such as a file lock or data of another process."""

    what: str
    is_of_ranks: bool = False
    """True if only a rank of the run can end the wait, so real time does not."""
    may_last: bool = False
    """True if the rank has child processes, which may take any time."""
    site: Site = NOWHERE
    holders: frozenset[int] = frozenset()
    """The process ids of those who hold what the rank waits for, if known."""

    def __str__(self) -> str:
        return self.what


BUILD_LOCK = "the end of a build with the lock file"
"""Begins `OutsideWait.what` of a rank that waits until another process has built an extension (torch's FileBaton)."""

Wait = CallWait | StoreWait | ClockWait | LockWait | ThreadWait | OutsideWait


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank or thread that waited when the run ended, with its edges in the wait-for graph."""

    who: RankOrThread
    wait: Wait
    waits_for: tuple[RankOrThread, ...] = ()
    """The ranks or threads that must act before this one can continue; () if it waits for the clock or a store key."""
    any_suffices: bool = False
    """True if it is enough that one of these ranks or threads acts."""
    missing: tuple[tuple[int, ...], ...] = ()
    """For each call that the rank waits for, the ranks that have not issued their side of the call."""
