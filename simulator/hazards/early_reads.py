"""Calls whose tensors were read before the wait, as numbers in poisoned tensors show (poison_marks.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from torch import Tensor

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.hazards.poison_marks import MOST, SHORT, UNKNOWN, numbers_in
from ddpsim.simulator.runtime.host import Pending


class _Numbered:
    """A call whose tensors hold its number."""

    __slots__ = ("call", "is_done")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_done = False
        """It is noticed, or another hazard is."""


class EarlyReads:
    """Those of the ranks of this process in one execution."""

    def __init__(self, world_size: int, ask: Callable[[Noticed], object]) -> None:
        """`ask` hands a request to the kernel."""
        self._ask = ask
        self.has_poisoned = False
        """Tensors of some call were poisoned."""
        self._undefined: list[list[tuple[Call, ref[Tensor]]]] = [[] for _ in range(world_size)]
        """The tensors that calls leave undefined, by rank."""
        self.numbered: dict[int, _Numbered] = {}
        """The latest call with each number."""
        self._count = [0] * world_size
        """How many calls got a number, by rank."""
        self._short: dict[int, _Numbered] = {}
        """The latest whose tensors had no room for the number, by rank."""

    def number(self, call: Call) -> int:
        """A number for a call whose tensors are to hold it; of many thousands of calls, several have the same."""
        number = (self._count[call.rank] * len(self._count) + call.rank) % MOST + 1
        self._count[call.rank] += 1
        numbered = self.numbered[number] = _Numbered(call)
        if call.signature.dtype in SHORT:
            self._short[call.rank] = numbered
        return number

    def issued(self, pending: Pending) -> None:
        """Note that a rank issued a call whose tensors are poisoned."""
        self.has_poisoned = True
        self._undefined[pending.call.rank] += [(pending.call, ref(each)) for each in pending.poisoned.undefined]

    def left_undefined(self, rank: int) -> Sequence[tuple[Call, Tensor]]:
        """The tensors that a rank's calls have left undefined, and that are still there."""
        return [(call, tensor) for call, left in self._undefined[rank] if (tensor := left()) is not None]

    def leave_out(self, calls: Sequence[Call]) -> None:
        """Do not notice that the tensors of these calls are read."""
        for numbered in (*self.numbered.values(), *self._short.values()) if calls else ():
            numbered.is_done = numbered.is_done or any(numbered.call is each for each in calls)

    def came_to_light(self, rank: int, value: Any, where: str) -> None:
        """A value that a program has made: notice whose tensors it has read."""
        for number in sorted(numbers_in(value)) if self.numbered else ():
            numbered = self._short.get(rank) if number == UNKNOWN else self.numbered.get(number)
            if numbered is not None and not numbered.is_done:
                numbered.is_done = True
                self._ask(Noticed(NoticedKind.READ, (numbered.call,), where))
