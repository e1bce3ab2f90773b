"""Says of a run that is debugged where it stops, and who runs: a policy by hand, over the choices of a recorded one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ddpsim.simulator.calls import Call
from ddpsim.simulator.choices import ChoicePoint, Start
from ddpsim.simulator.debugging.goals import (
    AtRequest,
    AtStart,
    AtStep,
    CallOfRank,
    Goal,
    GoBackError,
    GoesOn,
    NextCall,
    UntilCall,
    call_before,
    step_before,
    until_call,
)
from ddpsim.simulator.debugging.session_host import CannotError
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.runtime.prompt_server import ReadLine, read_line

Save = Callable[[tuple[int, ...], str], str]
"""Keeps the choices that were made, under a name or none: what to say then. Raises CannotError."""


class DebuggerOpener(Protocol):
    """Where a directed run stops."""

    def stop(self, rank: int, header: str) -> None:
        """Let a debugger have the word in a rank until it lets the program go on. The run may be over then."""


class Director:
    """Of one run. As a policy it gives the recorded choices, then what was chosen by hand, else the default."""

    def __init__(
        self,
        goal: Goal | None,
        choices: Sequence[int] = (),
        *,
        start: Start | None = None,
        read: ReadLine = read_line,
        save: Save | None = None,
    ) -> None:
        """`choices` are those of the past. `goal` is where to stop first; None for a finding."""
        self.goal = goal
        self.start = start
        """How the ranks start; None for the way that goes with the program."""
        self.read = read
        self.opener: DebuggerOpener | None = None
        """Whoever runs the ranks puts itself here."""
        self._requests = 0
        """At which ranks may be overtaken: each is a step, or more if the rank has to wait."""
        self._is_made = True
        """The latest of them; not so where the run stops before it."""
        self._call: CallOfRank | None = None
        """Where it stops at a call, which a rank that is a process has issued by then."""
        self._choices = tuple(choices)
        self._made = 0
        self._wish: int | None = None
        self._save = save

    # --- the policy ---------------------------------------------------------------------------------------------------

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Which option is taken."""
        self._made += 1
        if self._made <= len(self._choices):
            return self._choices[self._made - 1] % len(options)
        if self._wish is not None and self._wish in options:
            wish, self._wish = self._wish, None
            return list(options).index(wish)
        return 0

    # --- where to stop ------------------------------------------------------------------------------------------------

    @property
    def starts_in(self) -> int | None:
        """The rank with whose program a debugger begins."""
        return self.goal.rank if isinstance(self.goal, AtStart) else None

    def is_at_request(self, steps: int) -> bool:
        """A rank is about to ask for something, after so many steps: True if the run is to stop before."""
        self._requests += 1
        goal = self.goal
        if isinstance(goal, AtRequest):
            return self._requests >= goal.number
        return isinstance(goal, AtStep) and steps >= goal.step

    def stop_before(self, rank: int, header: str) -> None:
        """Stop before what a rank is about to ask for."""
        self._is_made = False
        try:
            self.stop(rank, header)
        finally:
            self._is_made = True

    def is_at_call(self, call: Call, number: int) -> bool:
        """True if it is to stop at this call, of which its rank has made so many before."""
        goal, here = self.goal, CallOfRank(call.rank, number)
        is_it = (
            (isinstance(goal, NextCall) and goal.rank == call.rank)
            or (isinstance(goal, CallOfRank) and goal == here)
            or (isinstance(goal, UntilCall) and goal.is_it(call))
        )
        if is_it:
            self._call = here
        return is_it

    def goes_on(self, rank: int) -> bool:
        """True if it is to stop where this rank goes on."""
        return isinstance(self.goal, GoesOn) and self.goal.rank == rank

    def stop(self, rank: int, header: str, *, steps: int | None = None) -> None:
        """Stop here. `steps` are those of a run that is at its end. What the debugger says next is the next goal."""
        header = f"{self.missed(steps)}\n{header}" if steps is not None and self.missed(steps) else header
        self.goal = None
        assert self.opener is not None, "somebody runs the ranks"
        try:
            self.opener.stop(rank, header)
        finally:
            self._call = None

    def missed(self, steps: int) -> str:
        """Where a run that ended after so many steps was to stop and has not; "" if there is nothing of the kind."""
        goal = self.goal
        if isinstance(goal, AtStep) and goal.step > steps:
            return f"there is no step {goal.step}: the run ends at step {steps}"
        if isinstance(goal, UntilCall):
            return f"no rank came to {goal.operation} #{goal.sequence} from there on"
        if isinstance(goal, (NextCall, CallOfRank)):
            return f"rank {goal.rank} made no more calls"
        return ""

    # --- what is typed ------------------------------------------------------------------------------------------------

    def obey(self, command: str, rank: int, run: Run, choices: Callable[[], tuple[int, ...]]) -> str:
        """Do what a debugger in a rank says; what to say to that. Raises CannotError, and GoBackError."""
        word, _, argument = command.partition(" ")
        self.goal = None
        if word == "next":
            self.goal = NextCall(rank)
        elif word == "until":
            self.goal = until_call(argument)
        elif word == "switch":
            self._switch(argument.strip(), run)
        elif word == "save":
            return self._saved(choices(), argument.strip())
        elif argument.strip() == "call":
            made = sum(event.rank == rank for event in run.events if event.kind.value == "issue")
            if self._call is not None and self._call.rank == rank:
                made = self._call.number
            raise GoBackError(call_before(rank, made), choices())
        elif argument.strip():
            raise CannotError(f"back takes `call` or nothing, found {argument.strip()!r}: leave it out")
        else:
            raise GoBackError(step_before(self._requests, is_made=self._is_made), choices())
        return ""

    def _switch(self, argument: str, run: Run) -> None:
        ranks = run.ranks
        if not argument.isdecimal() or int(argument) >= len(ranks):
            raise CannotError(f"rank is {argument!r}, expected one of 0 to {len(ranks) - 1}: as in `switch 0`")
        task = ranks[int(argument)].main
        if task.is_finished:
            raise CannotError(f"rank {argument} has ended, expected one that can go on: `ranks` shows which can")
        if not task.is_enabled:
            raise CannotError(
                f"rank {argument} waits in {task.wait}, expected one that can go on: `ranks` shows which can"
            )
        self._wish, self.goal = int(argument), GoesOn(int(argument))

    def _saved(self, choices: tuple[int, ...], argument: str) -> str:
        if self._save is None:
            raise CannotError("save needs a run that `ddpsim debug` has started: start it so")
        return self._save(choices, argument)
