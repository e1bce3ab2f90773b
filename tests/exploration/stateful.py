"""Plain depth-first search at the kernel that runs no state twice: the oracle of dpor.

What can still come of an execution depends on its state alone. So a search that comes back to a state, by another
order of the same steps, need not go on: whatever that leads to is found where the state was first seen. It knows
nothing of which steps depend on each other, which is what dpor has to be right about; all it relies on is that
`state_of` leaves nothing out. Plain search without any memory holds it to that (test_stateful.py).
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RedundantRun
from ddpsim.simulator.kernel.key_values import KeyValues
from ddpsim.simulator.kernel.requests import StoreOperation
from ddpsim.simulator.kernel.tasks import RankRecord
from tests.exploration.kernel_programs import Explored, KernelRun, Program, Ran


@dataclass(slots=True)
class _Choice:
    """A choice on the path, and how many of its options have not been taken."""

    chosen: int
    left: int


class StatefulSearch:
    """The policy of all executions of one search."""

    def __init__(self) -> None:
        self.states: set[Hashable] = set()
        self._path: list[_Choice] = []
        self._depth = 0
        self._run: KernelRun | None = None

    def begin(self, run: KernelRun) -> None:
        """An execution begins."""
        self._run, self._depth = run, 0

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """What the path says; after its end the first option, if the state is a new one."""
        assert self._run is not None
        if self._depth == len(self._path):
            state = state_of(self._run, point)
            if state in self.states:
                raise RedundantRun
            self.states.add(state)
            self._path.append(_Choice(0, len(options) - 1))
        choice = self._path[self._depth]
        self._depth += 1
        return choice.chosen

    def advance(self) -> bool:
        """Go on to the next option that was not taken; False if there is none."""
        while self._path and not self._path[-1].left:
            self._path.pop()
        if not self._path:
            return False
        self._path[-1].chosen += 1
        self._path[-1].left -= 1
        return True


def searched(program: Program) -> Explored:
    """All outcomes of a program. Executions that came back to a state are redundant."""
    search = StatefulSearch()
    outcomes: set[Ran] = set()
    executions = redundant = 0
    is_left = True
    while is_left:
        try:
            outcomes.add(KernelRun(program, search).ran)
            executions += 1
        except RedundantRun:
            redundant += 1
        is_left = search.advance()
    return Explored(outcomes, executions, redundant, is_complete=True)


def state_of(run: KernelRun, point: ChoicePoint) -> Hashable:
    """All that what comes after a choice depends on; called by the policy while it chooses.

    A program is a function of what it was answered, a request of what it was asked and where it stands; and of virtual
    time only what is left until the next alarms counts. Who asks for the choice does not count: it stands like others.
    """
    kernel = run.run
    clock, turns, slots, messages = kernel.clock, run.kernel._turns, kernel.slots, kernel.messages
    alarms = sorted(
        (at - clock.now, order, rank) for at, order, rank in clock._alarms if clock._live.get(rank) == order
    )
    running = kernel.running
    return (
        point.rank if point.kind is ChoiceKind.SOURCE else None,
        tuple([tuple(answers) for answers in run.answers]),
        frozenset(run.senders.items()),
        tuple([_rank_state(rank, is_running=rank.main is running) for rank in kernel.ranks]),
        tuple([(left, rank) for left, _, rank in alarms]),
        frozenset(turns._polled_in_vain),
        turns._vain_rounds,
        frozenset([(key, frozenset(slot.calls)) for key, slot in slots._open.items()]),
        tuple([(call.rank, call.sequence) for call in messages.open_calls()]),
        _store_state(_key_values(run)),
    )


def _rank_state(rank: RankRecord, *, is_running: bool) -> Hashable:
    task = rank.main
    stands = _running_place() if is_running else _place(task.scripts[-1]) if task.scripts else None
    delivering = tuple([handle for handle, _ in rank.delivering])
    return task.state, task.wait is None, stands, tuple(rank.open), tuple(rank.completed), delivering, rank.error


_PAUSES = {"stand": "stands", "hold_up": "stands", "poll": "polls", "block": "waits", "on_finish": "over"}
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
        if frame.f_code.co_name == "_play":
            return None
        frame = frame.f_back
    pause = _PAUSES[frame.f_code.co_name]
    return pause, frame.f_back.f_lineno if pause == "polls" else 0


def _key_values(run: KernelRun) -> KeyValues:
    serve: Any = run.kernel._serve[StoreOperation]
    key_values = serve.__self__
    assert isinstance(key_values, KeyValues)
    return key_values


def _store_state(store: KeyValues) -> Hashable:
    return (
        frozenset(store._values.items()),
        frozenset([(key, tuple(values)) for key, values in store._queues.items()]),
        frozenset(store._waiting.items()),
        frozenset(store._looked.items()),
        frozenset(store._written.items()),
    )
