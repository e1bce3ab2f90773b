"""Faults: what goes wrong, and where. A fault plan is part of a run's input, like the program.

A fault strikes the thread that makes the call, as an error of torch's own would, and no other thread of the rank. One
that crashed, or returned early, makes no call any more, on its way out either. In a rank with several threads that ends
the thread alone; the others go on, unless they wait for what it leaves undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.simulator.errors import UsageError


@dataclass(frozen=True, slots=True)
class Crash:
    """The thread of `rank` that would make its `before_call`-th call raises InjectedCrashError instead.

    Calls count from 0, those of all groups and threads of the rank together.
    """

    rank: int
    before_call: int
    message: str = "injected crash"


@dataclass(frozen=True, slots=True)
class Delay:
    """The thread of `rank` that makes its `before_call`-th call sleeps `seconds` of virtual time before it."""

    rank: int
    before_call: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EarlyReturn:
    """The thread of `rank` that would make its `before_call`-th call ends there, as if what it runs had returned."""

    rank: int
    before_call: int


Fault = Crash | Delay | EarlyReturn


class FaultPlan:
    """The faults of one execution, found by rank and call number."""

    __slots__ = ("_faults",)

    def __init__(self, faults: Sequence[Fault], world_size: int) -> None:
        self._faults: dict[tuple[int, int], list[Fault]] = {}
        for fault in faults:
            _check(fault, world_size)
            self._faults.setdefault((fault.rank, fault.before_call), []).append(fault)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def before(self, rank: int, call_number: int) -> Sequence[Fault]:
        """The faults that strike `rank` before its call `call_number`, in the order they were given."""
        return self._faults.get((rank, call_number), ())


def _check(fault: Fault, world_size: int) -> None:
    if not isinstance(fault, (Crash, Delay, EarlyReturn)):
        raise UsageError(f"faults has {fault!r}, expected Crash, Delay or EarlyReturn values")
    if not isinstance(fault.rank, int) or not isinstance(fault.before_call, int):
        raise UsageError(f"{fault!r} has a rank or call that is no whole number, expected numbers from 0 on")
    if not 0 <= fault.rank < world_size:
        raise UsageError(f"{fault!r} names rank {fault.rank}, expected 0 to {world_size - 1}: correct the rank")
    if fault.before_call < 0:
        raise UsageError(f"{fault!r} has before_call {fault.before_call}, expected 0 or more: calls count from 0")
    if isinstance(fault, Delay) and not 0 <= fault.seconds < float("inf"):
        raise UsageError(f"{fault!r} has {fault.seconds} seconds, expected 0 or more, and an end")
