"""The happens-before order of a run's steps, and the races: pairs of steps that could have come in either order.

A step is what a rank does from one choice point to its next, if other ranks can observe it. Happens-before (L. Lamport,
1978) is the smallest order that contains: the order of one rank's steps; two steps of which the second depends on the
first (simulator/accesses.py); and a step that let a rank continue (it set the key, issued the awaited call, released
the lock or started the thread) before that rank's next step. When virtual time advances, all steps so far come before
what follows.

Each step carries a vector clock (C. Fidge, 1988; F. Mattern, 1989). Refused: a graph of the steps with a search per
question, because each access asks whether one step came before another; and the epochs of FastTrack (2009), which find
that there is a race, while DPOR needs every step that is in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ddpsim.simulator.accesses import ALL_KEYS, Access, Mode, Object, depends
from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.exploration.message_races import MessageRaces
from ddpsim.simulator.exploration.steps import Clock, Race, Step, joined, knows
from ddpsim.simulator.matching.point_to_point import channel_of
from ddpsim.simulator.policies.observer import CallName, Observer


class Touch(NamedTuple):
    """One access to an object, and the step that made it."""

    step: Step
    access: Access
    candidates: Sequence[int]
    """For a receive from any source: the ranks whose messages were available."""


class HappensBefore(Observer):
    """The steps of a run, and the races among them."""

    def __init__(self, world_size: int) -> None:
        self.steps: list[Step] = []
        self.races: list[Race] = []
        self._messages = MessageRaces()
        self._clocks: list[Clock] = [[0] * world_size for _ in range(world_size)]
        self._current: list[Step | None] = [None] * world_size
        """By rank, its current step, once the step has done something that others can observe."""
        self._nodes: list[int | None] = [None] * world_size
        """By rank, the index of the node that chose it for its current step."""
        self._of_calls: dict[CallName, Clock] = {}
        """By call, the clock of the rank that issued it."""
        self._of_keys: dict[Object, tuple[Clock, int]] = {}
        """By store key, the clock of the rank that created it, and how many accesses there were by then."""
        self._touches: dict[Object, list[Touch]] = {}
        self._could_have_come_sooner: dict[int, list[Step]] = {}
        """By rank, the steps that removed a key which was created again before the rank needed it."""

        self._waits: dict[int, Step | None] = {}
        """By rank, the step in which it began to wait for keys; None if it polls again afterwards."""
        self._unless_removed: dict[Object, list[Race]] = {}
        """By key, the races between such a wait and the step that ended it; they count if the key is removed."""

    def begins(self, rank: int, node: int | None) -> None:
        """Begin another step of a rank."""
        self._current[rank] = None
        self._nodes[rank] = node

    def created(self, rank: int, key: Object) -> None:
        """Note that a rank created a store key."""
        self._of_keys[key] = self._clocks[rank], len(self._touches.get(key, ()))

    def needs(self, rank: int, key: Object) -> None:
        """Note that a rank could not have continued before the key was created.

        So the rank's step is in no race with that creation. It may be in a race with an earlier removal of the key.
        """
        if key in self._of_keys:
            clock, count = self._of_keys[key]
            if count > 1 and key[0] == "key":
                rivals, _ = self._rivals(rank, Access(key, Mode.MISS), reversed(self._touches[key][: count - 1]))
                self._could_have_come_sooner.setdefault(rank, []).extend(rivals)
            self._learn(rank, clock)

    def waits(self, rank: int, *, is_for_good: bool) -> None:
        """Note that a rank begins to wait for store keys in its current step."""
        self._waits[rank] = self._current[rank] if is_for_good else None

    def let_go(self, by: int, rank: int, keys: Sequence[Object]) -> None:
        """Note that rank `by` created the last of the keys that `rank` waits for.

        The waiting rank might have come after the keys. That makes no difference, unless one of the keys is removed.
        """
        began, made = self._waits.pop(rank), self._current[by]
        if began is not None and made is not None and not knows(made.clock, rank, began.number):
            for key in keys:
                self._unless_removed.setdefault(key, []).append(Race(began, made))

    def removed(self, key: Object) -> None:
        """Note that a store key was removed."""
        self.races += self._unless_removed.pop(key, ())

    def issued(self, rank: int, name: CallName, call: Call) -> None:
        """Note that a rank issued a call."""
        self._of_calls[name] = self._clocks[rank]
        if call.peer is not None:
            step = self._current[rank]
            assert step is not None, "other ranks can observe that a call is issued"
            self._messages.issued(name, step, channel_of(call), is_wild=call.peer == ANY_SOURCE)

    def completed(self, names: Sequence[CallName]) -> None:
        """Note calls that completed together: a rank that sees one complete knows what all their ranks knew."""
        if len(names) == 2:
            self._messages.met(*names)
        together = joined(self._of_calls[name] for name in names)
        for name in names:
            self._of_calls[name] = together

    def started(self, rank: int, thread: int) -> None:
        """Note that a rank started a thread, which begins with the rank's clock."""
        assert thread == len(self._clocks)
        self._touch(rank, Access(("start", thread), Mode.WRITE))  # so that it is a step that leads to more
        self._clocks.append(self._clocks[rank])
        self._current.append(None)
        self._nodes.append(None)

    def joined(self, rank: int, thread: int) -> None:
        """Note that a rank has seen a thread end."""
        self._learn(rank, self._clocks[thread])

    def learned(self, rank: int, name: CallName) -> None:
        """Note that a rank has seen its own call complete."""
        self._messages.waited_for(name, rank, self._clocks[rank][rank])
        self._learn(rank, self._of_calls[name])

    def woke(self, by: int | None, rank: int) -> None:
        """Note that rank `by` let `rank` continue; None: virtual time did, after all ranks were blocked."""
        self._learn(rank, joined(self._clocks) if by is None else self._clocks[by])

    def touched(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """Note an access of a rank, and the races of its step with earlier steps."""
        self._touch(rank, access, candidates)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _touch(self, rank: int, access: Access, candidates: Sequence[int] = ()) -> None:
        rivals, known = self._rivals(rank, access, self._earlier(access.object))
        rivals += self._could_have_come_sooner.pop(rank, ())
        before = self._clocks[rank]
        step = self._step(rank, known)
        self.races += [Race(earlier, step) for earlier in rivals]
        if access.mode in (Mode.SEND, Mode.ANSWER):
            self.races += self._messages.comes(access.object, step, before)
        self._touches.setdefault(access.object, []).append(Touch(step, access, tuple(candidates)))

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
        """Return the earlier steps that could also come after this access, and the rank's clock joined with theirs.

        `before` are the earlier accesses, the last one first.
        """
        clock = self._clocks[rank]
        rivals: list[Step] = []
        for touch in before:
            step = touch.step
            if step.rank == rank or knows(clock, step.rank, step.number):
                if touch.access.mode is Mode.WRITE and access.object[0] == "key" and access.object != ALL_KEYS:
                    break  # all that matters before that write came before this access, too
                continue
            if depends(access, touch.access):
                rivals.append(step)
                clock = joined((clock, step.clock))
            elif _might_have_taken(touch, rank, access):
                rivals.append(step)
        return rivals, clock

    def _earlier(self, object: Object) -> Iterator[Touch]:
        """Return the accesses of an object, and for store keys those of all keys at once, the last one first."""
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
    """True if a later message could have been taken by this receive, had the message come earlier."""
    return (
        receive.access.mode is Mode.RECEIVE
        and access.mode in (Mode.SEND, Mode.ANSWER)
        and sender not in receive.candidates
    )
