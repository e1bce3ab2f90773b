"""Dynamic partial order reduction: one execution for each class of interleavings that nobody can tell apart.

After a run, each pair of steps that depend on each other (simulator/accesses.py) and that nothing else orders is a
race: at the point where the first of them was chosen, whoever leads to the second one is to be tried, too (Flanagan and
Godefroid, "Dynamic Partial-Order Reduction for Model Checking Software", POPL 2005). Whom to try is found by source
sets, and what was tried already is not tried again further down, by sleep sets (Abdulla, Aronis, Jonsson and Sagonas,
"Optimal Dynamic Partial Order Reduction", POPL 2014).

Steps that touch nothing are run first, as they commute with all others. So choices are made only where every enabled
rank stands before something that others can observe, and a program of collectives has no choice at all.

A receive from any source has two decisions: when it is made, and whose message it takes. It takes any of those that are
there; of one that came later and could have come earlier, it is tried with that one, and with no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.accesses import Access, Accesses, Mode, Object, conflict
from simulator.calls import ANY_SOURCE, Site
from simulator.choices import ChoiceKind, ChoicePoint
from simulator.matching.point_to_point import channel_of
from simulator.runtime.call_sites import site_here
from simulator.runtime.rank_thread import Pending

Clock = list[int]
"""For each rank, how many of its touches are known to have come before."""


class RedundantRun(Exception):
    """Raised by the policy to end a run whose every continuation was explored elsewhere."""


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


@dataclass(slots=True)
class Sleeper:
    """A step that was explored, and need not be taken as long as nothing it depends on has happened."""

    accesses: Accesses
    sources: frozenset[int] = frozenset()
    """For a receive from any source: whose messages it has taken."""
    has_more: bool = False
    """For a receive: there are messages that it has not taken."""

    def lets_pass(self, access: Access) -> bool:
        """True if it goes on sleeping when another rank does `access`."""
        return not any(conflict(own, access) for own in self.accesses)

    def copy(self) -> Sleeper:
        """Another one like it."""
        return Sleeper(self.accesses, self.sources, self.has_more)


Sleep = dict[int, Sleeper]
"""By rank."""


@dataclass(slots=True)
class Node:
    """A choice on the way to the run under way."""

    kind: ChoiceKind
    options: tuple[int, ...]
    chosen: int
    sleep: Sleep
    todo: list[int] = field(default_factory=list)
    """What is to be tried, in the order in which it was found; what was tried stays in it."""
    tried: set[int] = field(default_factory=set)
    """Only asked about."""
    accesses: list[Access] = field(default_factory=list)
    """What the chosen rank's step touches."""
    sources: set[int] = field(default_factory=set)

    def advance(self) -> bool:
        """Close what was chosen, which has been explored, and choose the next; False if nothing is left."""
        self.tried.add(self.chosen)
        if self.kind is ChoiceKind.RANK:
            self.sleep[self.chosen] = Sleeper(tuple(self.accesses), frozenset(self.sources))
        left = [each for each in self.todo if each not in self.tried]
        self.chosen = left[0] if left else self.chosen
        return bool(left)


class Dpor:
    """The strategy: ask for a policy, run it, and ask again."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._path: list[Node] = []
        self._polled: set[Object] = set()
        """Calls that somebody polls for: contributions to them can be observed. Only asked about."""
        self._run: DporRun | None = None

    def next_policy(self) -> DporRun | None:
        """The policy of the next execution; None once all classes were explored."""
        if self._run is not None and self._run.polled - self._polled:
            self._polled |= self._run.polled  # what was explored so far did not know of them
            self._path = []
        elif self._run is not None and not self._advance():
            return None
        self._run = DporRun(self._world_size, self._path, self._polled)
        return self._run

    def _advance(self) -> bool:
        while self._path and not self._path[-1].advance():
            self._path.pop()
        return bool(self._path)


class DporRun:
    """The policy of one execution, and its observer."""

    def __init__(self, world_size: int, path: list[Node], polled: set[Object]) -> None:
        self.observer = self
        self.polled = set(polled)
        self._path = path
        self._depth = 0
        self._intents: list[Accesses] = [()] * world_size
        self._progress = 0
        self._looked: dict[tuple[int, Site], int] = {}
        """By rank and line, how much progress there was when it last looked there for something that is not there."""
        self._looked_in_vain: dict[int, int] = {}
        """By rank, how much progress there was when it looked twice from one line: a third look tells nothing."""
        self._step_node: list[int | None] = [None] * world_size
        self._sleep: Sleep = {}
        self._taken: frozenset[int] = frozenset()
        """Sources that need not be tried by the receive under way."""
        self._open_receives: dict[Object, int] = {}
        self._clocks: list[Clock] = [[0] * world_size for _ in range(world_size)]
        self._call_clocks: dict[int, Clock] = {}
        """What the owners of calls knew, by id() of the pending call."""
        self._pendings: list[Pending] = []
        """Keeps them alive, so that no id() is used again."""
        self._touches: list[Touch] = []

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of what the path says, and where it ends, of what comes first."""
        if point.kind is ChoiceKind.SOURCE:
            return list(options).index(self._source(tuple(options)))
        ranks = list(options)
        fresh = [rank for rank in ranks if self._looked_in_vain.get(rank) != self._progress]
        quiet = [rank for rank in fresh if not any(map(self._can_be_observed, self._intents[rank]))]
        if fresh and not quiet:
            return ranks.index(self._rank(tuple(fresh)))
        chosen = quiet[0] if quiet else ranks[0]
        self._step_node[chosen] = None
        return ranks.index(chosen)

    def _can_be_observed(self, access: Access) -> bool:
        if access.mode is Mode.SEND:
            return self._open_receives.get(access.object, 0) > 0
        return access.mode is not Mode.CONTRIBUTE or access.object in self.polled

    def _rank(self, options: tuple[int, ...]) -> int:
        if self._depth == len(self._path):
            awake = [rank for rank in options if rank not in self._sleep or self._sleep[rank].has_more]
            if not awake:
                raise RedundantRun
            sleep = {rank: sleeper.copy() for rank, sleeper in self._sleep.items()}
            self._path.append(Node(ChoiceKind.RANK, options, awake[0], sleep, [awake[0]]))
        node = self._path[self._depth]
        self._step_node[node.chosen] = self._depth
        self._depth += 1
        self._sleep = {rank: sleeper.copy() for rank, sleeper in node.sleep.items()}
        sleeper = self._sleep.pop(node.chosen, None)
        self._taken = frozenset() if sleeper is None else sleeper.sources
        node.accesses, node.sources = [], set(self._taken)
        return node.chosen

    def _source(self, options: tuple[int, ...]) -> int:
        if self._depth == len(self._path):
            left = [source for source in options if source not in self._taken]
            if not left:
                raise RedundantRun
            self._path.append(Node(ChoiceKind.SOURCE, options, left[0], {}, left))
        node = self._path[self._depth]
        self._depth += 1
        return node.chosen

    # --- observing ----------------------------------------------------------------------------------------------------

    def intends(self, rank: int, accesses: Accesses, *, looks_again: bool = False) -> None:
        """Note what a rank stands before; what it did until now belongs to where it was chosen last."""
        self._intents[rank] = accesses
        self._step_node[rank] = None
        if looks_again:
            line = (rank, site_here())
            if self._looked.get(line) == self._progress:
                self._looked_in_vain[rank] = self._progress
            self._looked[line] = self._progress

    def issued(self, pending: Pending) -> None:
        """Note what the owner of a call knew when it issued it."""
        call = pending.call
        self._progress += 1
        self._pendings.append(pending)
        self._call_clocks[id(pending)] = self._clocks[call.rank]
        if call.operation == "recv" and call.peer == ANY_SOURCE:
            channel = channel_of(call)
            self._open_receives[channel] = self._open_receives.get(channel, 0) + 1

    def completed(self, pendings: Sequence[Pending]) -> None:
        """Note that who learns of one of these calls learns what all of their owners knew."""
        together = _joined(self._call_clocks[id(pending)] for pending in pendings)
        for pending in pendings:
            self._call_clocks[id(pending)] = together

    def learned(self, pending: Pending) -> None:
        """Note that a rank knows what the others knew whose calls met its own."""
        rank = pending.call.rank
        self._clocks[rank] = _joined((self._clocks[rank], self._call_clocks[id(pending)]))

    def woke(self, by: int | None, rank: int) -> None:
        """Note that a rank goes on after another one did, or after all did what they could."""
        self._progress += 1
        before = self._clocks if by is None else [self._clocks[by]]
        self._clocks[rank] = _joined((self._clocks[rank], *before))

    def touched(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """Find the races that this touch is the second part of."""
        if access.object[0] == "call" and access.mode is Mode.READ:
            self.polled.add(access.object)
        if access.mode is Mode.CONTRIBUTE and access.object not in self.polled:
            return
        if access.mode in (Mode.RECEIVE, Mode.ANSWER):
            self._open_receives[access.object] -= 1
        if access.mode is Mode.WRITE:
            self._progress += 1
        self._wake_sleepers(rank, access)
        self._note_step(rank, access, source)
        known = self._clocks[rank]
        races, clock = self._races(rank, access)
        clock[rank] += 1
        touch = Touch(len(self._touches), rank, clock[rank], access, clock, self._step_node[rank], tuple(candidates))
        for earlier in races:
            self._try_before(earlier, touch, known)
        self._touches.append(touch)
        self._clocks[rank] = clock

    def _races(self, rank: int, access: Access) -> tuple[list[Touch], Clock]:
        """The touches that could as well come after this one, and what the rank knows with those it depends on."""
        clock = list(self._clocks[rank])
        races = []
        for earlier in reversed(self._touches):
            if earlier.rank == rank or earlier.number <= clock[earlier.rank]:
                continue
            if conflict(earlier.access, access):
                races.append(earlier)
                clock = _joined((clock, earlier.clock))
            elif _might_have_taken(earlier, rank, access):
                races.append(earlier)
        return races, clock

    def _wake_sleepers(self, rank: int, access: Access) -> None:
        for sleeping, sleeper in list(self._sleep.items()):
            if sleeping != rank and not sleeper.lets_pass(access):
                del self._sleep[sleeping]
            elif access.mode is Mode.SEND and Access(access.object, Mode.RECEIVE) in sleeper.accesses:
                sleeper.has_more = True

    def _note_step(self, rank: int, access: Access, source: int | None) -> None:
        index = self._step_node[rank]
        if index is not None:
            self._path[index].accesses.append(access)
            if source is not None:
                self._path[index].sources.add(source)

    # --- what to try next ---------------------------------------------------------------------------------------------

    def _try_before(self, earlier: Touch, later: Touch, known: Clock) -> None:
        """Let the later of two touches come first, where the earlier one was chosen."""
        if earlier.node is None:
            return  # nobody else could run there
        node = self._path[earlier.node]
        leading = self._leading(earlier, later, known)
        if any(rank in node.todo for rank in leading):
            return
        able = [rank for rank in leading if rank in node.options]
        awake = [rank for rank in able if rank not in node.sleep]
        if able and not awake:
            return  # explored from further up
        node.todo.extend(rank for rank in awake[:1] or node.options if rank not in node.todo)

    def _leading(self, earlier: Touch, later: Touch, known: Clock) -> list[int]:
        """The ranks whose touches can come first among those that lead to `later` and do not need `earlier`."""
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
        return leading if between else [later.rank]


def _might_have_taken(receive: Touch, sender: int, access: Access) -> bool:
    """True if a message that came later would have been one of a receive's candidates, had it come earlier."""
    return (
        receive.access == Access(access.object, Mode.RECEIVE)
        and access.mode in (Mode.SEND, Mode.ANSWER)
        and sender not in receive.candidates
    )


def _joined(clocks: Iterable[Clock]) -> Clock:
    return [max(counts) for counts in zip(*clocks, strict=True)]
