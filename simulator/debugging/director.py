"""The director of a debugged run: it decides where the run pauses and which rank runs next.

It is a scheduling policy: it first replays recorded choices, then takes those that the user types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    until_call,
)
from ddpsim.simulator.debugging.session_host import CannotError
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.runtime.prompt_server import ReadLine, read_line

Save = Callable[[tuple[int, ...], str], str]
"""Saves the choices made so far, under a name or "", and returns the reply to the user. Raises CannotError."""


class Director:
    """The director of one run. As a policy it gives the recorded choices, then the user's, else the default."""

    def __init__(
        self,
        goal: Goal | None,
        choices: Sequence[int] = (),
        *,
        start: Start | None = None,
        read: ReadLine = read_line,
        save: Save | None = None,
    ) -> None:
        """`choices` are the recorded ones. `goal` is where to pause first; None means at the first finding."""
        self.goal = goal
        self.start = start
        """How the ranks start; None for the default of the program."""
        self.read = read
        self.open_debugger: Callable[[int, str], None] | None = None
        """(rank, header) -> opens a debugger in a rank until the user continues the program; the run may have ended
        then. Set by the code that runs the ranks."""
        self._requests = 0
        """The number of requests so far at which another rank may run first."""
        self._is_made = True
        """False while the run is paused before the latest of these requests."""
        self._call: CallOfRank | None = None
        """The call at which the run is paused. A rank process has already issued it."""
        self._choices = tuple(choices)
        self._made = 0
        self._wish: int | None = None
        self._save = save

    # --- the policy ---------------------------------------------------------------------------------------------------

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of the option to take."""
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
        """The rank in whose first line the run pauses; None if the goal is another one."""
        return self.goal.rank if isinstance(self.goal, AtStart) else None

    def is_at_request(self, steps: int) -> bool:
        """Count a request that a rank is about to make, at step `steps`. True if the run pauses before it."""
        self._requests += 1
        goal = self.goal
        if isinstance(goal, AtRequest):
            return self._requests >= goal.number
        return isinstance(goal, AtStep) and steps >= goal.step

    def stop_before(self, rank: int, header: str) -> None:
        """Pause before the request that a rank is about to make."""
        self._is_made = False
        try:
            self.stop(rank, header)
        finally:
            self._is_made = True

    def is_at_call(self, call: Call, number: int) -> bool:
        """True if the run pauses at this call, which is call `number` of its rank, counted from 0."""
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
        """True if the run pauses where this rank runs next."""
        return isinstance(self.goal, GoesOn) and self.goal.rank == rank

    def stop(self, rank: int, header: str, *, steps: int | None = None) -> None:
        """Pause here. `steps` is given at the end of a run. The next debugger command sets the next goal."""
        header = f"{self.missed(steps)}\n{header}" if steps is not None and self.missed(steps) else header
        self.goal = None
        assert self.open_debugger is not None, "the code that runs the ranks sets it"
        try:
            self.open_debugger(rank, header)
        finally:
            self._call = None

    def missed(self, steps: int) -> str:
        """Return a line on the goal that a run of `steps` steps did not reach; "" if it missed none."""
        goal = self.goal
        if isinstance(goal, AtStep) and goal.step > steps:
            return f"there is no step {goal.step}: the run ends at step {steps}"
        if isinstance(goal, UntilCall):
            return f"no rank reached {goal.operation} #{goal.sequence} after that"
        if isinstance(goal, (NextCall, CallOfRank)):
            return f"rank {goal.rank} made no more calls"
        return ""

    # --- what is typed ------------------------------------------------------------------------------------------------

    def obey(self, command: str, rank: int, run: Run, choices: Callable[[], tuple[int, ...]]) -> str:
        """Carry out a command typed in a rank's debugger and return the reply. Raises CannotError and GoBackError."""
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
        else:
            raise GoBackError(self._earlier_goal(argument.strip(), rank, run), choices())
        return ""

    def _earlier_goal(self, argument: str, rank: int, run: Run) -> Goal:
        """Return the goal of `back` or `back call`. Raises CannotError at the beginning of the run."""
        if argument == "call":
            made = sum(event.rank == rank for event in run.events if event.kind.value == "issue")
            if self._call is not None and self._call.rank == rank:
                made = self._call.number
            if not made:
                raise CannotError(f"cannot go back: rank {rank} has made no call yet")
            return CallOfRank(rank, made - 1)
        if argument:
            raise CannotError(f"back takes `call` or no argument, found {argument!r}")
        number = self._requests if self._is_made else self._requests - 1
        if number < 1:
            raise CannotError("cannot go back: this is the beginning of the run")
        return AtRequest(number)

    def _switch(self, argument: str, run: Run) -> None:
        ranks = run.ranks
        if not argument.isdecimal() or int(argument) >= len(ranks):
            raise CannotError(f"rank is {argument!r}, expected 0 to {len(ranks) - 1}, as in `switch 0`")
        task = ranks[int(argument)].main
        if task.is_finished:
            raise CannotError(f"rank {argument} has ended and cannot run: `ranks` shows which ranks can")
        if not task.is_enabled:
            raise CannotError(f"rank {argument} waits in {task.wait} and cannot run: `ranks` shows which ranks can")
        self._wish, self.goal = int(argument), GoesOn(int(argument))

    def _saved(self, choices: tuple[int, ...], argument: str) -> str:
        if self._save is None:
            raise CannotError("save works only in a run that `ddpsim debug` has started")
        return self._save(choices, argument)
