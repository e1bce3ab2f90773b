"""The happens-before order of a run's steps, and the races: pairs of steps that could have come in either order.

A step is what a rank does from one choice point to its next, if other ranks can observe it. Happens-before (L. Lamport,
1978) is the smallest order that contains: the order of one rank's steps; two steps of which the second depends on the
first (simulator/accesses.py); and a step that let a rank continue (it set the key, issued the awaited call, released
the lock or started the thread) before that rank's next step. When virtual time advances, all steps so far come before
what follows.

Each step carries a vector clock (C. Fidge, 1988; F. Mattern, 1989), which answers quickly whether one step came before
another. The epochs of FastTrack (2009) do not suffice: DPOR needs every step that is in a race.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple

from ddpsim.simulator.accesses import ALL_KEYS, Access, AccessMode, Object, are_dependent
from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.matching.slots import channel_object
from ddpsim.simulator.policies.observer import CallName, Observer

Clock = list[int]
"""A vector clock: by rank, how many of the rank's steps came before. Threads that started later are left out. A clock
is never changed once it is stored for a rank, a call or a key."""


@dataclass(slots=True, eq=False)
class ObservedStep:
    """One step of a rank that other ranks can observe."""

    position: int
    """The step's index among all steps of the run."""
    rank: int
    number: int
    """The step's number among the rank's steps, from 1."""
    clock: Clock
    """The vector clock of the step, which includes the step itself."""
    node: int | None
    """The index of the choice node (choice point) that chose the rank; None if no other rank could run."""


class Race(NamedTuple):
    """Two steps of different ranks that could have come in either order."""

    earlier: ObservedStep
    later: ObservedStep


def initial_ranks(race: Race, steps: Sequence[ObservedStep]) -> list[int]:
    """Return the ranks that can run in place of the earlier step, so that the later step comes before it.

    Let `v` be the steps after the earlier one that do not depend on it, up to the later one. The result is the ranks
    whose first step in `v` has no other step of `v` before it. `steps` are all steps of the run, by position.
    """
    earlier, later = race
    firsts: dict[int, int] = {}
    found = []
    for step in (*steps[earlier.position + 1 : later.position], later):
        if step.rank in firsts or (step is not later and clock_includes(step.clock, earlier.rank, earlier.number)):
            continue
        if not any(clock_includes(step.clock, rank, number) for rank, number in firsts.items()):
            found.append(step.rank)
        firsts[step.rank] = step.number
    return found


def clock_includes(clock: Clock, rank: int, number: int) -> bool:
    """Return whether a rank's step with this number comes before the vector clock."""
    return rank < len(clock) and clock[rank] >= number


def join_clocks(clocks: Iterable[Clock]) -> Clock:
    """Return the join (element-wise maximum) of several clocks."""
    return list(map(max, zip_longest(*clocks, fillvalue=0)))


class MessageMatch(NamedTuple):
    """The step that sent a message, and the step that issued the receive from any source which took the message."""

    send: ObservedStep
    receive: ObservedStep

    @property
    def was_receive_first(self) -> bool:
        """Return whether the receive was issued before the message was sent."""
        return self.receive.position < self.send.position


class MessageRaces:
    """The races between messages for receives from any source.

    A message and its receive match once both were issued, in any order, so they are in no race. But the message that a
    receive took is in a race with another one that it could have taken, in one of two ways:

    - The receive could have come later, after the other message. So the receive is in a race with the other message if
      that came after the matched one, or was not a candidate.
    - The matched message could have come later, after the receive took the other one. So the two messages are in a race
      if the receive was posted first. They also are if it was posted later, but its rank did not wait for it at once:
      what the rank did next may have caused the other message. (A receive that is waited for at once is covered by the
      first case.)

    Messages of one sender never overtake each other.
    """

    def __init__(self) -> None:
        self._steps: dict[CallName, ObservedStep] = {}
        """By call (a message, or a receive from any source), the step that issued the call."""
        self._channels: dict[CallName, Object] = {}
        """By receive from any source, its channel (group, destination and tag)."""
        self._matches: dict[Object, dict[CallName, MessageMatch]] = {}
        """By channel and receive, the matched messages; without receives that the rank waited for at once."""
        self._races_if_not_awaited: dict[CallName, list[Race]] = {}
        """By receive, the races of its message, which count only if the rank does not wait for the receive at once."""

    def note_call(self, name: CallName, step: ObservedStep, channel: Object, *, is_wild: bool) -> None:
        """Record that a step issued a message or a receive; `is_wild` is true for a receive from any source."""
        self._steps[name] = step
        if is_wild:
            self._channels[name] = channel

    def note_match(self, send: CallName, receive: CallName) -> None:
        """Record that a receive from any source took a message."""
        if (channel := self._channels.get(receive)) is not None:
            self._matches.setdefault(channel, {})[receive] = MessageMatch(self._steps[send], self._steps[receive])

    def note_completion_seen(self, name: CallName, rank: int, number: int) -> None:
        """Record that a rank, in its step `number`, has seen that a call of its own is complete."""
        matches = self._matches.get(self._channels.get(name, ()), {})
        match = matches.get(name)  # None if it was waited for before
        if match and not match.was_receive_first and (match.receive.rank, match.receive.number) == (rank, number):
            del matches[name]
            self._races_if_not_awaited.pop(name, None)

    def races_of_message(self, channel: Object, step: ObservedStep, clock: Clock) -> list[Race]:
        """Return the races between earlier receives and a new message, sent in `step` by a rank with this clock."""
        found = []
        for name, match in self._matches.get(channel, {}).items():
            send, receive = match
            if send.rank == step.rank:
                continue
            if not clock_includes(clock, send.rank, send.number):
                if not match.was_receive_first:  # else they depend on each other (simulator/accesses.py)
                    self._races_if_not_awaited.setdefault(name, []).append(Race(send, step))
            elif match.was_receive_first and not clock_includes(clock, receive.rank, receive.number):
                found.append(Race(receive, step))
        return found

    def remaining_races(self) -> Iterator[Race]:
        """Return, at the end of a run, the races of messages that receives took without being waited for at once."""
        return chain.from_iterable(self._races_if_not_awaited.values())


class RecordedAccess(NamedTuple):
    """One access to a shared object, and the step that made the access."""

    step: ObservedStep
    access: Access
    candidates: Sequence[int]
    """For a receive from any source: the ranks whose messages were available."""


class HappensBefore(Observer):
    """The steps of a run, and the races among them."""

    def __init__(self, world_size: int) -> None:
        self.steps: list[ObservedStep] = []
        self.races: list[Race] = []
        self._messages = MessageRaces()
        self._clocks: list[Clock] = [[0] * world_size for _ in range(world_size)]
        self._current: list[ObservedStep | None] = [None] * world_size
        """By rank, its current step, once this step has done something that other ranks can observe."""
        self._nodes: list[int | None] = [None] * world_size
        """By rank, the index of the choice node (choice point) that chose the rank for its current step."""
        self._of_calls: dict[CallName, Clock] = {}
        """By call, the vector clock of the rank that issued it."""
        self._of_keys: dict[Object, tuple[Clock, int]] = {}
        """By store key, the vector clock of the rank that created the key, and the number of its accesses before."""
        self._touches: dict[Object, list[RecordedAccess]] = {}
        self._could_have_come_sooner: dict[int, list[ObservedStep]] = {}
        """By rank, the steps that removed a store key which was created again before the rank needed the key."""

        self._waits: dict[int, ObservedStep | None] = {}
        """By rank, the step in which the rank began to wait for store keys; None if the rank polls again afterwards."""
        self._races_if_removed: dict[Object, list[Race]] = {}
        """By store key, the races between a wait and the step that ended it; they count only if the key is removed."""

    def begin_step(self, rank: int, node: int | None) -> None:
        """Begin the next step of a rank."""
        self._current[rank] = None
        self._nodes[rank] = node

    def created_key(self, rank: int, key: Object) -> None:
        """Record that a rank created a store key."""
        self._of_keys[key] = self._clocks[rank], len(self._touches.get(key, ()))

    def needed_key(self, rank: int, key: Object) -> None:
        """Record that a rank could not have continued before the store key was created. So the rank's step is in no
        race with that creation, but may be in a race with an earlier removal of the key."""
        if key in self._of_keys:
            clock, count = self._of_keys[key]
            if count > 1 and key[0] == "key":
                earlier = reversed(self._touches[key][: count - 1])
                rivals, _ = self._racing_steps(rank, Access(key, AccessMode.MISS), earlier)
                self._could_have_come_sooner.setdefault(rank, []).extend(rivals)
            self._join_clock(rank, clock)

    def began_to_wait(self, rank: int, *, is_for_good: bool) -> None:
        """Record that a rank begins to wait for store keys, in its current step."""
        self._waits[rank] = self._current[rank] if is_for_good else None

    def released_rank(self, by: int, rank: int, keys: Sequence[Object]) -> None:
        """Record that rank `by` created the last of the store keys for which `rank` waits. The waiting rank might have
        come after the keys. That makes no difference, unless one of the keys is removed."""
        began, made = self._waits.pop(rank), self._current[by]
        if began is not None and made is not None and not clock_includes(made.clock, rank, began.number):
            for key in keys:
                self._races_if_removed.setdefault(key, []).append(Race(began, made))

    def removed_key(self, key: Object) -> None:
        """Record that a store key was removed."""
        self.races += self._races_if_removed.pop(key, ())

    def issued_call(self, rank: int, name: CallName, call: Call) -> None:
        """Record that a rank issued a call."""
        self._of_calls[name] = self._clocks[rank]
        if call.peer is not None:
            step = self._current[rank]
            assert step is not None, "other ranks can observe that a call is issued"
            self._messages.note_call(name, step, channel_object(call), is_wild=call.peer == ANY_SOURCE)

    def completed_calls(self, names: Sequence[CallName]) -> None:
        """Record calls that completed together: a rank that sees its call complete knows what all their ranks knew."""
        if len(names) == 2:
            self._messages.note_match(*names)
        together = join_clocks(self._of_calls[name] for name in names)
        for name in names:
            self._of_calls[name] = together

    def started_thread(self, rank: int, thread: int) -> None:
        """Record that a rank started a thread, which begins with the vector clock of that rank."""
        assert thread == len(self._clocks)
        # So that it is a step that leads to more.
        self._record_access(rank, Access(("start", thread), AccessMode.WRITE))
        self._clocks.append(self._clocks[rank])
        self._current.append(None)
        self._nodes.append(None)

    def joined_thread(self, rank: int, thread: int) -> None:
        """Record that a rank has seen a thread end."""
        self._join_clock(rank, self._clocks[thread])

    def saw_completion(self, rank: int, name: CallName) -> None:
        """Record that a rank has seen its own call complete."""
        self._messages.note_completion_seen(name, rank, self._clocks[rank][rank])
        self._join_clock(rank, self._of_calls[name])

    def woke_task(self, by: int | None, rank: int) -> None:
        """Record that rank `by` let `rank` continue; if `by` is None, virtual time passed while all were blocked."""
        self._join_clock(rank, join_clocks(self._clocks) if by is None else self._clocks[by])

    def accessed(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """Record an access of a rank, and the races between the rank's step and earlier steps."""
        self._record_access(rank, access, candidates)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _record_access(self, rank: int, access: Access, candidates: Sequence[int] = ()) -> None:
        rivals, known = self._racing_steps(rank, access, self._earlier_accesses(access.object))
        rivals += self._could_have_come_sooner.pop(rank, ())
        before = self._clocks[rank]
        step = self._current_step(rank, known)
        self.races += [Race(earlier, step) for earlier in rivals]
        if access.mode in (AccessMode.SEND, AccessMode.ANSWER):
            self.races += self._messages.races_of_message(access.object, step, before)
        self._touches.setdefault(access.object, []).append(RecordedAccess(step, access, tuple(candidates)))

    def _join_clock(self, rank: int, more: Clock) -> None:
        clock = self._clocks[rank]
        if more is clock:
            return
        self._clocks[rank] = clock = join_clocks((clock, more))
        current = self._current[rank]
        if current is not None:
            current.clock = clock

    def _current_step(self, rank: int, known: Clock) -> ObservedStep:
        step = self._current[rank]
        if step is None:
            clock = known + [0] * (rank + 1 - len(known))
            clock[rank] += 1
            step = ObservedStep(len(self.steps), rank, clock[rank], clock, self._nodes[rank])
            self.steps.append(step)
            self._current[rank] = step
            self._clocks[rank] = clock
        elif known is not step.clock:
            self._clocks[rank] = step.clock = known
        return step

    def _racing_steps(
        self, rank: int, access: Access, before: Iterable[RecordedAccess]
    ) -> tuple[list[ObservedStep], Clock]:
        """Return the earlier steps that could also have come after this access, and the rank's vector clock joined with
        theirs. `before` are the earlier accesses, the last one first."""
        clock = self._clocks[rank]
        rivals: list[ObservedStep] = []
        for touch in before:
            step = touch.step
            if step.rank == rank or clock_includes(clock, step.rank, step.number):
                if touch.access.mode is AccessMode.WRITE and access.object[0] == "key" and access.object != ALL_KEYS:
                    break  # all that matters before that write came before this access, too
                continue
            if are_dependent(access, touch.access):
                rivals.append(step)
                clock = join_clocks((clock, step.clock))
            elif _might_receive_have_taken(touch, rank, access):
                rivals.append(step)
        return rivals, clock

    def _earlier_accesses(self, object: Object) -> Iterator[RecordedAccess]:
        """Return the earlier accesses of an object, the last first; for a store key, also those of all keys at once."""
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


def _might_receive_have_taken(receive: RecordedAccess, sender: int, access: Access) -> bool:
    """Return whether a receive could have taken a later message, had the message come earlier."""
    return (
        receive.access.mode is AccessMode.RECEIVE
        and access.mode in (AccessMode.SEND, AccessMode.ANSWER)
        and sender not in receive.candidates
    )
