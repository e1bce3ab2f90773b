"""Faults: what goes wrong, and where. A fault plan is part of a run's input, like the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import UsageError


@dataclass(frozen=True, slots=True)
class Crash:
    """`rank` raises InjectedCrashError before its `before_call`-th call (from 0, all groups counted together)."""

    rank: int
    before_call: int
    message: str = "injected crash"


@dataclass(frozen=True, slots=True)
class Delay:
    """`rank` sleeps `seconds` of virtual time before its `before_call`-th call."""

    rank: int
    before_call: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EarlyReturn:
    """`rank` returns (None) instead of making its `before_call`-th call, as if its program ended there."""

    rank: int
    before_call: int


Fault = Crash | Delay | EarlyReturn


class FaultPlan:
    """The faults of one execution, found by rank and call number."""

    __slots__ = ("_faults",)

    def __init__(self, faults: Sequence[Fault], world_size: int) -> None:
        self._faults: dict[tuple[int, int], list[Fault]] = {}
        if not isinstance(faults, Sequence):
            raise UsageError(f"faults is {faults!r}, expected a list of Crash, Delay or EarlyReturn values")
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
