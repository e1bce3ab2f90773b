"""What happened before what in a run, and which touches nothing orders: the races.

A rank knows what it did itself, what the owners of a call knew whose completion it has seen, and what the rank knew
that woke it. Vector clocks keep count (C. Fidge, 1988; F. Mattern, 1989).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddpsim.simulator.accesses import Access, Mode, Object, conflict
from ddpsim.simulator.kernel.observer import CallName

Clock = list[int]
"""For each rank, how many of its touches are known to have come before."""


class Touch(NamedTuple):
    """An object touched by a rank."""

    position: int
    """In the run."""
    rank: int
    number: int
    """Its number among the rank's touches, from 1."""
    access: Access
    clock: Clock
    node: int | None
    """Where the rank was chosen for it; None if it had no rival."""
    candidates: Sequence[int]
    """Of a receive from any source: whose messages were there."""


class Race(NamedTuple):
    """Two touches of which either could have come first."""

    earlier: Touch
    leading: tuple[int, ...]
    """Who can go first, in the place of the earlier one, to let the later one come before it."""


class HappensBefore:
    """The clocks of a run."""

    def __init__(self, world_size: int) -> None:
        self._clocks: list[Clock] = [[0] * world_size for _ in range(world_size)]
        self._of_calls: dict[CallName, Clock] = {}
        """What the owners of calls knew."""
        self._touches: list[Touch] = []
        self._of_keys: dict[Object, Clock] = {}
        """What the rank knew that created a key."""

    def created(self, rank: int, key: Object) -> None:
        """A rank stored a key that was not there."""
        self._of_keys[key] = self._clocks[rank]

    def needs(self, rank: int, key: Object) -> None:
        """A rank could not have gone on before somebody had created a key."""
        self._clocks[rank] = _joined((self._clocks[rank], self._of_keys[key]))

    def issued(self, rank: int, name: CallName) -> None:
        """A rank issued a call."""
        self._of_calls[name] = self._clocks[rank]

    def completed(self, names: Sequence[CallName]) -> None:
        """Calls met: who learns of one of them learns what all of their owners knew."""
        together = _joined(self._of_calls[name] for name in names)
        for name in names:
            self._of_calls[name] = together

    def started(self, rank: int, thread: int) -> None:
        """A rank started a thread, which knows what the rank knows by then."""
        assert thread == len(self._clocks)
        of_touches = [touch.clock for touch in self._touches]
        every = [*self._clocks, *self._of_calls.values(), *of_touches, *self._of_keys.values()]
        for clock in {id(clock): clock for clock in every}.values():
            clock.append(0)
        self._clocks.append([0] * (thread + 1))
        self.touched(rank, Access(("start", thread), Mode.WRITE), None, ())  # so that it can be said to lead to more
        self._clocks[thread] = self._clocks[rank]

    def joined(self, rank: int, thread: int) -> None:
        """A rank has seen that a thread has ended."""
        self._clocks[rank] = _joined((self._clocks[rank], self._clocks[thread]))

    def learned(self, rank: int, name: CallName) -> None:
        """A rank has seen that a call of its own is complete."""
        self._clocks[rank] = _joined((self._clocks[rank], self._of_calls[name]))

    def woke(self, by: int | None, rank: int) -> None:
        """A rank goes on after another one did, or (None) after all did what they could."""
        before = self._clocks if by is None else [self._clocks[by]]
        self._clocks[rank] = _joined((self._clocks[rank], *before))

    def touched(self, rank: int, access: Access, node: int | None, candidates: Sequence[int]) -> list[Race]:
        """A rank touched an object; return the races of it with earlier touches."""
        known = self._clocks[rank]
        rivals, clock = self._rivals(rank, access)
        races = [Race(earlier, self._leading(earlier, rank, known)) for earlier in rivals]
        clock[rank] += 1
        self._touches.append(Touch(len(self._touches), rank, clock[rank], access, clock, node, tuple(candidates)))
        self._clocks[rank] = clock
        return races

    def could_touch(self, rank: int, access: Access) -> list[Race]:
        """The races of a touch that the run was too short for."""
        known = self._clocks[rank]
        return [Race(earlier, self._leading(earlier, rank, known)) for earlier in self._rivals(rank, access)[0]]

    def _rivals(self, rank: int, access: Access) -> tuple[list[Touch], Clock]:
        """The touches that could as well come after this one, and what the rank knows with those it depends on."""
        clock = list(self._clocks[rank])
        rivals = []
        for earlier in reversed(self._touches):
            if earlier.rank == rank or earlier.number <= clock[earlier.rank]:
                continue
            if conflict(earlier.access, access):
                rivals.append(earlier)
                clock = _joined((clock, earlier.clock))
            elif _might_have_taken(earlier, rank, access):
                rivals.append(earlier)
        return rivals, clock

    def _leading(self, earlier: Touch, rank: int, known: Clock) -> tuple[int, ...]:
        """Who can come first among those that lead to what `rank` does now, and that do not need `earlier`."""
        between = [
            touch
            for touch in self._touches[earlier.position + 1 :]
            if touch.clock[earlier.rank] < earlier.number and touch.number <= known[touch.rank]
        ]
        leading = [
            touch.rank
            for position, touch in enumerate(between)
            if not any(before.number <= touch.clock[before.rank] for before in between[:position])
        ]
        return tuple(leading) if between else (rank,)


def _might_have_taken(receive: Touch, sender: int, access: Access) -> bool:
    """True if a message that came later would have been one of a receive's candidates, had it come earlier."""
    return (
        receive.access == Access(access.object, Mode.RECEIVE)
        and access.mode in (Mode.SEND, Mode.ANSWER)
        and sender not in receive.candidates
    )


def _joined(clocks: Iterable[Clock]) -> Clock:
    return [max(counts) for counts in zip(*clocks, strict=True)]
