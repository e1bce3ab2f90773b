"""What happened before what in a run, which of its steps are in a race, and who can turn a race round.

A step is what a rank does from one choice point to its next, if others can observe it. Happens-before is the smallest
order in which come after each other the steps of one rank; two steps of which the second depends on the first
(simulator/accesses.py); what let a rank go on, and what it did then: who set the key, issued the calls that it waited
for, gave it the lock, started it. When time passes, every rank had come to its end of what it could do.

A step knows what happened before it by a vector clock (C. Fidge, 1988; F. Mattern, 1989).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ddpsim.simulator.accesses import ALL_KEYS, Access, Mode, Object, depends
from ddpsim.simulator.exploration.message_races import MessageRaces
from ddpsim.simulator.exploration.steps import Clock, Race, Step, joined, knows
from ddpsim.simulator.kernel.observer import CallName


class Touch(NamedTuple):
    """An object touched in a step."""

    step: Step
    access: Access
    candidates: Sequence[int]
    """Of a receive from any source: whose messages were there."""


class HappensBefore:
    """The steps of a run, and the races among them."""

    def __init__(self, world_size: int) -> None:
        self.steps: list[Step] = []
        self.races: list[Race] = []
        self._messages = MessageRaces()
        self._clocks: list[Clock] = [[0] * world_size for _ in range(world_size)]
        self._current: list[Step | None] = [None] * world_size
        """The step that a rank is in, once that can be observed."""
        self._nodes: list[int | None] = [None] * world_size
        """Where it was chosen for it."""
        self._of_calls: dict[CallName, Clock] = {}
        """What the owners of calls knew."""
        self._of_keys: dict[Object, tuple[Clock, int]] = {}
        """What the rank knew that created a key, and how often that had been touched by then."""
        self._touches: dict[Object, list[Touch]] = {}
        self._could_have_come_sooner: dict[int, list[Step]] = {}
        """By rank, the steps that took away a key which was made again before the rank came."""

        self._waits: dict[int, Step | None] = {}
        """The steps in which ranks began to wait for keys; None for who looks again afterwards."""
        self._unless_removed: dict[Object, list[Race]] = {}
        """By key, the races of those waits with what ended them, if the key is removed."""

    def begins(self, rank: int, node: int | None) -> None:
        """What a rank does from here on is another step."""
        self._current[rank] = None
        self._nodes[rank] = node

    def has_touched(self, rank: int) -> bool:
        """True if the step that a rank is in can be observed."""
        return self._current[rank] is not None

    def created(self, rank: int, key: Object) -> None:
        """A rank stored a key that was not there."""
        self._of_keys[key] = self._clocks[rank], len(self._touches.get(key, ()))

    def needs(self, rank: int, key: Object) -> None:
        """A rank could not have gone on before somebody had created a key.

        So with that it is in no race. But it may be in one with who took away the key that was there before.
        """
        if key in self._of_keys:
            clock, count = self._of_keys[key]
            if count > 1 and key[0] == "key":
                rivals, _ = self._rivals(rank, Access(key, Mode.MISS), reversed(self._touches[key][: count - 1]))
                self._could_have_come_sooner.setdefault(rank, []).extend(rivals)
            self._learn(rank, clock)

    def waits(self, rank: int, *, is_for_good: bool) -> None:
        """A rank begins to wait for keys, in the step that it is in."""
        self._waits[rank] = self._current[rank] if is_for_good else None

    def let_go(self, by: int, rank: int, keys: Sequence[Object]) -> None:
        """A rank made the last of the keys that another one waits for.

        The other one might have come too late to wait. That comes to the same, unless one of the keys is removed.
        """
        began, made = self._waits.pop(rank), self._current[by]
        if began is not None and made is not None and not knows(made.clock, rank, began.number):
            for key in keys:
                self._unless_removed.setdefault(key, []).append(Race(began, made))

    def removed(self, key: Object) -> None:
        """A key is there no more."""
        self.races += self._unless_removed.pop(key, ())

    def issued(self, rank: int, name: CallName) -> None:
        """A rank issued a call."""
        self._of_calls[name] = self._clocks[rank]

    def issued_message(self, rank: int, name: CallName, channel: Object, *, is_wild: bool) -> None:
        """The call that a rank has just issued is a message, or a receive; a wild one is from any source."""
        step = self._current[rank]
        assert step is not None, "to issue a call can be observed"
        self._messages.issued(name, step, channel, is_wild=is_wild)

    def completed(self, names: Sequence[CallName]) -> None:
        """Calls met: who learns of one of them learns what all of their owners knew."""
        if len(names) == 2:
            self._messages.met(*names)
        together = joined(self._of_calls[name] for name in names)
        for name in names:
            self._of_calls[name] = together

    def started(self, rank: int, thread: int) -> None:
        """A rank started a thread, which knows what the rank knows by then."""
        assert thread == len(self._clocks)
        self.touched(rank, Access(("start", thread), Mode.WRITE))  # so that it is a step that leads to more
        self._clocks.append(self._clocks[rank])
        self._current.append(None)
        self._nodes.append(None)

    def joined(self, rank: int, thread: int) -> None:
        """A rank has seen that a thread has ended."""
        self._learn(rank, self._clocks[thread])

    def learned(self, rank: int, name: CallName) -> None:
        """A rank has seen that a call of its own is complete."""
        self._messages.waited_for(name, rank, self._clocks[rank][rank])
        self._learn(rank, self._of_calls[name])

    def woke(self, by: int | None, rank: int) -> None:
        """A rank goes on after another one did, or (None) after all did what they could."""
        self._learn(rank, joined(self._clocks) if by is None else self._clocks[by])

    def touched(self, rank: int, access: Access, candidates: Sequence[int] = ()) -> None:
        """A rank touched an object; note the races of its step with earlier ones."""
        rivals, known = self._rivals(rank, access, self._earlier(access.object))
        rivals += self._could_have_come_sooner.pop(rank, ())
        before = self._clocks[rank]
        step = self._step(rank, known)
        self.races += [Race(earlier, step) for earlier in rivals]
        if access.mode in (Mode.SEND, Mode.ANSWER):
            self.races += self._messages.comes(access.object, step, before)
        self._touches.setdefault(access.object, []).append(Touch(step, access, tuple(candidates)))

    def found_late(self) -> Iterator[Race]:
        """At the end of a run: the races that hung on what came afterwards."""
        return self._messages.left()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _learn(self, rank: int, more: Clock) -> None:
        clock = self._clocks[rank]
        if more is clock:
            return
        self._clocks[rank] = clock = joined((clock, more))
        current = self._current[rank]
        if current is not None:
            current.clock = clock

    def _step(self, rank: int, known: Clock) -> Step:
        step = self._current[rank]
        if step is None:
            clock = known + [0] * (rank + 1 - len(known))
            clock[rank] += 1
            step = Step(len(self.steps), rank, clock[rank], clock, self._nodes[rank])
            self.steps.append(step)
            self._current[rank] = step
            self._clocks[rank] = clock
        elif known is not step.clock:
            self._clocks[rank] = step.clock = known
        return step

    def _rivals(self, rank: int, access: Access, before: Iterable[Touch]) -> tuple[list[Step], Clock]:
        """The steps that could as well come after this touch, and what the rank knows with those it depends on.

        Of touches that came before it, the last one first.
        """
        clock = self._clocks[rank]
        rivals: list[Step] = []
        for touch in before:
            step = touch.step
            if step.rank == rank or knows(clock, step.rank, step.number):
                if touch.access.mode is Mode.WRITE and access.object[0] == "key" and access.object != ALL_KEYS:
                    break  # what came before that write and matters came before this, too
                continue
            if depends(access, touch.access):
                rivals.append(step)
                clock = joined((clock, step.clock))
            elif _might_have_taken(touch, rank, access):
                rivals.append(step)
        return rivals, clock

    def _earlier(self, object: Object) -> Iterator[Touch]:
        """The touches of an object, and of what it may be part of, the last one first."""
        if object[0] == "key" and (object == ALL_KEYS or ALL_KEYS in self._touches):
            kept = [
                touch
                for each, touches in self._touches.items()
                if each[0] == "key" and (object == ALL_KEYS or each in (object, ALL_KEYS))
                for touch in touches
            ]
            kept.sort(key=lambda touch: touch.step.position)
            return reversed(kept)
        return reversed(self._touches.get(object, ()))


def _might_have_taken(receive: Touch, sender: int, access: Access) -> bool:
    """True if a message that came later would have been one of a receive's candidates, had it come earlier."""
    return (
        receive.access.mode is Mode.RECEIVE
        and access.mode in (Mode.SEND, Mode.ANSWER)
        and sender not in receive.candidates
    )
