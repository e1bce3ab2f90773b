"""What a thread of a rank waits for, as a frozen value: what diagnosis reads. `str(wait)` is it in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ddpsim.simulator.accesses import Object
from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.choices import Who


class CallWait(NamedTuple):
    """A rank waits for its calls: for one of them, which is what a plain `wait` is, or for any of several."""

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
    """A thread waits for a lock, or for what is made of one: an event, a condition, an item of a queue."""

    lock: Object
    what: str = "a lock"
    """What its program waits for."""
    holder: int | None = None
    """The number of the thread that has the lock; None where any other thread of the rank may be the one to act."""
    site: Site = NOWHERE

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True)
class ThreadWait:
    """A thread waits for the end of another one of its rank."""

    thread: int
    """Its number."""
    name: str
    site: Site = NOWHERE
    is_at_end: bool = False
    """The program of the rank is over, as a process is that waits for its threads."""

    def __str__(self) -> str:
        return f'the end of thread "{self.name}"'


Wait = CallWait | StoreWait | ClockWait | LockWait | ThreadWait


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank, or a thread of one, that waited when its run ended, and for whom: its edges in the wait-for graph."""

    who: Who
    wait: Wait
    waits_for: tuple[Who, ...] = ()
    """Who has to act before it can go on; () if that is nobody in particular (the clock, a store key)."""
    any_suffices: bool = False
    """True if one of them is enough."""
    missing: tuple[tuple[int, ...], ...] = ()
    """For each of the calls that it waits for, the ranks that have not come."""
