"""Fault injection: crashes, delays and early returns before given calls. Faults are input of a run, like the program.

A fault affects the thread that makes the call, as an error from torch would, and no other thread of the rank. After a
crash or early return, this thread makes no further call, not even in `finally` blocks. The rank's other threads
continue, unless they wait for something that this thread no longer does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.wording import values_by_key


@dataclass(frozen=True, slots=True)
class Crash:
    """The fault that `rank` raises InjectedCrashError instead of making its call number `before_call`.

    Calls are numbered from 0, over all groups and threads of the rank.
    """

    rank: int
    before_call: int
    message: str = "injected crash"


@dataclass(frozen=True, slots=True)
class Delay:
    """The fault that `rank` sleeps `seconds` of virtual time before its call number `before_call`."""

    rank: int
    before_call: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EarlyReturn:
    """The fault that `rank` returns early: the thread that would make call number `before_call` ends instead."""

    rank: int
    before_call: int


class How(str, Enum):
    """What a `Strike` does to a rank. A sweep of crashes tries them in this order: what finds most comes first."""

    TEAR = "tear"
    """Its process is killed as it writes: the file that it opened last to write it has only its first half."""
    FULL = "full"
    """The disk is full: opening the file works, and writing it raises the error of ENOSPC."""
    KILL = "kill"
    """Its process is killed (SIGKILL)."""
    HOST = "host"
    """Its host is lost, with its private disks: its process is killed, without a SIGTERM before."""
    TERM = "term"
    """It gets SIGTERM."""
    SLOW = "slow"
    """It sleeps for longer than any time-out of a group, in virtual time."""
    RAISE = "raise"
    """An exception is raised."""


@dataclass(frozen=True, slots=True)
class Strike:
    """The fault that hits a rank of a program before its operation `before_operation`: a call, or one that changes
    files (`rank_processes/operation_watch.py`). It hits the first attempt only."""

    rank: int
    before_operation: int
    how: How = How.KILL


Fault = Crash | Delay | EarlyReturn | Strike


class FaultPlan:
    """The faults of one run, by rank and call number."""

    def __init__(self, faults: Sequence[Fault], world_size: int) -> None:
        for fault in faults:
            _check_fault(fault, world_size)
        at_calls = (fault for fault in faults if not isinstance(fault, Strike))
        self._faults = values_by_key(((fault.rank, fault.before_call), fault) for fault in at_calls)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def faults_before(self, rank: int, call_number: int) -> "Sequence[Crash | Delay | EarlyReturn]":
        """Return the faults of `rank` that happen just before its call `call_number`, in the given order."""
        return self._faults.get((rank, call_number), ())


def _check_fault(fault: Fault, world_size: int) -> None:
    if not isinstance(fault, (Crash, Delay, EarlyReturn, Strike)):
        raise UsageError(f"faults has {fault!r}, expected Crash, Delay or EarlyReturn values: give only these")
    name = "before_operation" if isinstance(fault, Strike) else "before_call"
    number = fault.before_operation if isinstance(fault, Strike) else fault.before_call
    if not isinstance(fault.rank, int) or not isinstance(number, int):
        raise UsageError(
            f"{fault!r} has a rank or call that is not a whole number, expected numbers from 0: correct it"
        )
    if not 0 <= fault.rank < world_size:
        raise UsageError(f"{fault!r} names rank {fault.rank}, expected 0 to {world_size - 1}: correct the rank")
    if number < 0:
        raise UsageError(f"{fault!r} has {name} {number}, expected 0 or more: {name[7:]}s count from 0")
    if isinstance(fault, Delay) and not 0 <= fault.seconds < float("inf"):
        raise UsageError(f"{fault!r} has {fault.seconds} seconds, expected a finite number, 0 or more: correct it")
