"""Fault injection: crashes, delays and early returns before given calls. Faults are input of a run, like the program.

A fault affects the thread that makes the call, as an error from torch would, and no other thread of the rank. After a
crash or early return, this thread makes no further call, not even in `finally` blocks. The rank's other threads
continue, unless they wait for something that this thread no longer does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


Fault = Crash | Delay | EarlyReturn


class FaultPlan:
    """The faults of one run, by rank and call number."""

    def __init__(self, faults: Sequence[Fault], world_size: int) -> None:
        for fault in faults:
            _check_fault(fault, world_size)
        self._faults = values_by_key(((fault.rank, fault.before_call), fault) for fault in faults)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def faults_before(self, rank: int, call_number: int) -> Sequence[Fault]:
        """Return the faults of `rank` that happen just before its call `call_number`, in the given order."""
        return self._faults.get((rank, call_number), ())


def _check_fault(fault: Fault, world_size: int) -> None:
    if not isinstance(fault, (Crash, Delay, EarlyReturn)):
        raise UsageError(f"faults has {fault!r}, expected Crash, Delay or EarlyReturn values: give only these")
    if not isinstance(fault.rank, int) or not isinstance(fault.before_call, int):
        raise UsageError(
            f"{fault!r} has a rank or call that is not a whole number, expected numbers from 0: correct it"
        )
    if not 0 <= fault.rank < world_size:
        raise UsageError(f"{fault!r} names rank {fault.rank}, expected 0 to {world_size - 1}: correct the rank")
    if fault.before_call < 0:
        raise UsageError(f"{fault!r} has before_call {fault.before_call}, expected 0 or more: calls count from 0")
    if isinstance(fault, Delay) and not 0 <= fault.seconds < float("inf"):
        raise UsageError(f"{fault!r} has {fault.seconds} seconds, expected a finite number, 0 or more: correct it")
