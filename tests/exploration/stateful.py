"""Plain depth-first search at the kernel that runs no state twice: the oracle of dpor.

What can still come of an execution depends on its state alone. So a search that comes back to a state, by another
order of the same steps, need not go on: whatever that leads to is found where the state was first seen. It knows
nothing of which steps depend on each other, which is what dpor has to be right about; all it relies on is that
`state_of` leaves nothing out. Plain search without any memory holds it to that (test_differential.py).

A state holds what each rank is going to do, and nothing of the program that led to it. So what comes of it is known for
all programs whose ends are alike, and a search of many programs of one size (`Futures`) runs few states of each.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RedundantRun
from ddpsim.simulator.kernel.key_values import KeyValueStore
from ddpsim.simulator.kernel.requests import StoreOperation
from ddpsim.simulator.kernel.tasks import RankRecord
from tests.exploration.kernel_programs import Explored, KernelRun, Program, Ran

Seen = tuple[tuple[Any, ...], ...]
"""What each rank has seen."""

Futures = dict[Hashable, frozenset[Ran]]
"""By state, what can come of it, without what was seen before."""

MOST_FUTURES = 300_000
"""A gigabyte. Then they are forgotten, and found again."""


@dataclass(slots=True)
class _Choice:
    """A choice on the path, how many of its options have not been taken, and what has come of the others."""

    state: Hashable
    seen: Seen
    left: int
    chosen: int = 0
    outcomes: set[Ran] = field(default_factory=set)


class StatefulSearch:
    """The policy of all executions of one search."""

    def __init__(self, futures: Futures) -> None:
        self.outcomes: set[Ran] = set()
        self._futures = futures
        self._path: list[_Choice] = []
        self._open: set[Hashable] = set()
        """The states of the path."""
        self._depth = 0
        self._run: KernelRun | None = None
        self._known: set[Ran] = set()
        """What comes of the execution under way, as it is not the first to be where it is."""

    def begin(self, run: KernelRun) -> None:
        """An execution begins."""
        self._run, self._depth = run, 0

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """What the path says; after its end the first option, if the state is a new one.

        Whoever has not begun goes first: until it stands before its first operation nobody can notice.
        """
        assert self._run is not None
        if point.kind is ChoiceKind.RANK:
            for index, rank in enumerate(options):
                if not self._run.has_begun(rank):
                    return index
        if self._depth == len(self._path):
            state, seen = state_of(self._run, point), tuple(map(tuple, self._run.seen))
            if state in self._futures:
                self._known = {ran.behind(seen) for ran in self._futures[state]}
                raise RedundantRun
            assert state not in self._open, "what comes of a state that leads back to itself is never known"
            self._open.add(state)
            self._path.append(_Choice(state, seen, len(options) - 1))
        choice = self._path[self._depth]
        self._depth += 1
        return choice.chosen

    def execute(self, program: Program) -> bool:
        """Run a program once; False if it came to a state that is known."""
        try:
            outcomes, is_new = {KernelRun(program, self).ran}, True
        except RedundantRun:
            outcomes, is_new = self._known, False
        (self._path[-1].outcomes if self._path else self.outcomes).update(outcomes)
        return is_new

    def advance(self) -> bool:
        """Go on to the next option that was not taken; False if there is none."""
        while self._path and not self._path[-1].left:
            done = self._path.pop()
            self._open.remove(done.state)
            self._futures[done.state] = frozenset([ran.without(done.seen) for ran in done.outcomes])
            (self._path[-1].outcomes if self._path else self.outcomes).update(done.outcomes)
        if not self._path:
            return False
        self._path[-1].chosen += 1
        self._path[-1].left -= 1
        return True


def searched(program: Program, futures: Futures | None = None) -> Explored:
    """All outcomes of a program. Executions that came to a state that was known are redundant.

    Programs that share their futures are of one size.
    """
    futures = {} if futures is None else futures
    if len(futures) > MOST_FUTURES:
        futures.clear()
    search = StatefulSearch(futures)
    executions = redundant = 0
    is_left = True
    while is_left:
        if search.execute(program):
            executions += 1
        else:
            redundant += 1
        is_left = search.advance()
    return Explored(search.outcomes, executions, redundant, is_complete=True)


def state_of(run: KernelRun, point: ChoicePoint) -> Hashable:
    """All that what comes after a choice depends on; called by the policy while it chooses.

    An operation is a function of what it was answered, a request of what it was asked and where it stands; and of
    virtual time only what is left until the next alarms counts. Who asks for the choice does not count: it stands like
    others. What calls were made counts, as the findings of a run that gets no further do.
    """
    kernel = run.run
    clock, turns, slots, messages = kernel.clock, run.kernel._turns, kernel.slots, kernel.messages
    alarms = sorted((at - clock.now, order, rank) for at, order, rank in clock._alarms if clock.live.get(rank) == order)
    running = kernel.running
    return (
        point.rank if point.kind is ChoiceKind.SOURCE else None,
        tuple([_rest(run, rank) for rank in kernel.ranks]),
        tuple([_rank_state(rank, is_running=rank.main is running) for rank in kernel.ranks]),
        tuple([(left, rank) for left, _, rank in alarms]),
        frozenset(turns._polled_in_vain),
        turns.failed_poll_rounds,
        frozenset([(key, frozenset(slot.calls)) for key, slot in slots._open.items()]),
        tuple([(call.rank, call.sequence) for call in messages.open_calls()]),
        tuple([finding.code for finding in kernel.findings]),
        _store_state(run),
    )


def _rest(run: KernelRun, rank: RankRecord) -> Hashable:
    """What a rank is going to do."""
    me = rank.rank
    left = run.left[me]
    if rank.main.is_finished:
        return left.issued
    senders = tuple([run.senders.get((me, handle)) for handle in left.works])
    return left, tuple(run.answers[me]), senders


def _rank_state(rank: RankRecord, *, is_running: bool) -> Hashable:
    task = rank.main
    stands = _running_place() if is_running else _place(task.scripts[-1]) if task.scripts else None
    delivering = tuple([handle for handle, _ in rank.delivering])
    return task.state, task.wait is None, stands, tuple(rank.open), tuple(rank.completed), delivering, rank.error


_PAUSES = {
    "yield_point": "stands",
    "wait_for_turn": "stands",
    "poll_task": "polls",
    "block_task": "waits",
    "on_finish_task": "over",
}
"""The functions of the kernel that ask for a choice, or wait for the baton after one."""


def _place(script: Any) -> tuple[str, int]:
    """In which pause of a request a script stands; of polls, which may be several, from which line."""
    caller = 0
    while script.gi_yieldfrom is not None and script.gi_code.co_name not in _PAUSES:
        caller = script.gi_frame.f_lineno
        script = script.gi_yieldfrom
    pause = _PAUSES[script.gi_code.co_name]
    return pause, caller if pause == "polls" else 0


def _running_place() -> tuple[str, int] | None:
    """As `_place`, of the task that has the baton: by the stack, as its script is running."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in _PAUSES:
        if frame.f_code.co_name == "_advance_script":
            return None
        frame = frame.f_back
    pause = _PAUSES[frame.f_code.co_name]
    return pause, frame.f_back.f_lineno if pause == "polls" else 0


def _key_values(run: KernelRun) -> KeyValueStore:
    serve: Any = run.kernel._serve[StoreOperation]
    key_values = serve.__self__
    assert isinstance(key_values, KeyValueStore)
    return key_values


def _store_state(run: KernelRun) -> Hashable:
    store = _key_values(run)
    done = [rank.calls_made + store._written.get(rank.rank, 0) for rank in run.run.ranks]
    return (
        frozenset(store._values.items()),
        frozenset([(key, tuple(values)) for key, values in store._queues.items()]),
        frozenset([(number, keys) for number, (_, keys, _) in store._waiting.items()]),
        frozenset(
            [
                (rank, request, found, times)
                for (rank, request), (found, by_then, times) in store._looked.items()
                if by_then == done[rank]  # another look is not like it any more
            ]
        ),
    )
