"""The director of a debugged run: it decides where the run pauses and which rank runs next.

To the kernel it is a scheduling policy: it first replays recorded choices, then takes those that the user types.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call
from ddpsim.simulator.choices import ChoicePoint, RankSeeds
from ddpsim.simulator.debugging.session_host import DebuggerCommandError
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.runtime.prompt_server import ReadLine, read_edited_line


class PauseAtStep(NamedTuple):
    """Goal: pause before the step with this number, whichever rank makes it."""

    step: int


class PauseAtRequest(NamedTuple):
    """Goal: pause before a request at which another rank may run first; `number` counts only such requests, from 1."""

    number: int


class PauseAtStart(NamedTuple):
    """Goal: pause at the first line of a rank's program."""

    rank: int


class PauseAtNextCall(NamedTuple):
    """Goal: pause where a given rank makes its next communication call."""

    rank: int


class PauseAtCall(NamedTuple):
    """Goal: pause where any rank makes a given call, such as all_reduce #9."""

    operation: str
    sequence: int


class PauseAtCallOfRank(NamedTuple):
    """Goal: pause where a rank makes its call with this number, counted from 0 over all its process groups."""

    rank: int
    number: int


class PauseWhereRankRuns(NamedTuple):
    """Goal: pause as soon as a given rank runs next."""

    rank: int


Goal = (
    PauseAtStep | PauseAtRequest | PauseAtStart | PauseAtNextCall | PauseAtCall | PauseAtCallOfRank | PauseWhereRankRuns
)


class GoBackError(Exception):
    """Raised to end a run, which is then replayed with the choices made so far, up to an earlier point."""

    def __init__(self, goal: Goal, choices: tuple[int, ...]) -> None:
        super().__init__(goal, choices)
        self.goal = goal
        self.choices = choices


_CALL = re.compile(r"call\s+(\w+)\s+#?(\d+)")


def parse_until_call(argument: str) -> PauseAtCall:
    """Return the goal (where to pause) of `until call all_reduce #9`. Raises DebuggerCommandError for other words."""
    found = _CALL.fullmatch(argument.strip())
    if found is None:
        raise DebuggerCommandError(
            f"found {argument.strip()!r}, expected an operation and its number: as in call all_reduce #9"
        )
    return PauseAtCall(found[1], int(found[2]))


Save = Callable[[tuple[int, ...], str], str]
"""Saves the choices so far, under a name or "", and returns the reply to the user. Raises DebuggerCommandError."""


class RunDirector:
    """Decides where one debugged run pauses; as its policy, takes recorded choices, the user's, else the default."""

    def __init__(
        self,
        goal: Goal | None,
        choices: Sequence[int] = (),
        *,
        start: RankSeeds | None = None,
        read: ReadLine = read_edited_line,
        save: Save | None = None,
    ) -> None:
        """`choices` are recorded ones to repeat; `goal` is where to pause first, by default at the first error."""
        self.goal = goal
        self.start = start
        """How rank processes started in the recorded run (such as by fork); None for the program's default."""
        self.read = read
        self.open_debugger: Callable[[int, str], None] | None = None
        """A function (rank, header) that opens a debugger in a rank until the user continues the program; the run may
        be over then. The code that runs the ranks sets it."""
        self._requests = 0
        """How many requests were made so far before which another rank may run."""
        self._is_made = True
        """False while the run is paused before the latest request that `_requests` counts."""
        self._call: PauseAtCallOfRank | None = None
        """The call at which the run is paused. If the rank is a process, it has already issued the call."""
        self._choices = tuple(choices)
        self._made = 0
        self._wish: int | None = None
        self._save = save

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of the option to take: which rank runs next, or which message is received."""
        self._made += 1
        if self._made <= len(self._choices):
            return self._choices[self._made - 1] % len(options)
        if self._wish is not None and self._wish in options:
            wish, self._wish = self._wish, None
            return list(options).index(wish)
        return 0

    @property
    def rank_of_start_goal(self) -> int | None:
        """The rank at whose first line the user wants to pause; None if the user wants to pause elsewhere."""
        return self.goal.rank if isinstance(self.goal, PauseAtStart) else None

    def pauses_at_request(self, steps: int) -> bool:
        """Count a request that a rank makes next, at step `steps`. True if the run has to pause before it."""
        self._requests += 1
        goal = self.goal
        if isinstance(goal, PauseAtRequest):
            return self._requests >= goal.number
        return isinstance(goal, PauseAtStep) and steps >= goal.step

    def pause_before_request(self, rank: int, header: str) -> None:
        """Pause before the request that a rank is about to make."""
        self._is_made = False
        try:
            self.pause_run(rank, header)
        finally:
            self._is_made = True

    def pauses_at_call(self, call: Call, number: int) -> bool:
        """True if the run has to pause at this call of a rank; `number` counts the rank's calls from 0."""
        goal, here = self.goal, PauseAtCallOfRank(call.rank, number)
        goals = PauseAtNextCall(call.rank), here, PauseAtCall(call.operation, call.sequence)
        is_it = any(type(goal) is type(each) and goal == each for each in goals)
        if is_it:
            self._call = here
        return is_it

    def pauses_where_rank_runs(self, rank: int) -> bool:
        """True if the run has to pause as soon as this rank runs next."""
        return isinstance(self.goal, PauseWhereRankRuns) and self.goal.rank == rank

    def pause_run(self, rank: int, header: str, *, steps: int | None = None) -> None:
        """Open a debugger here. `steps` is given at the end of a run. The user's command decides on the next pause."""
        if steps is not None and (missed := self.missed_goal_text(steps)):
            header = f"{missed}\n{header}"
        self.goal = None
        assert self.open_debugger is not None, "the code that runs the ranks sets it"
        try:
            self.open_debugger(rank, header)
        finally:
            self._call = None

    def missed_goal_text(self, steps: int) -> str:
        """Return a line that says which goal a run of `steps` steps missed; "" if the run reached its goal."""
        goal = self.goal
        if isinstance(goal, PauseAtStep) and goal.step > steps:
            return f"there is no step {goal.step}: the run ends at step {steps}"
        if isinstance(goal, PauseAtCall):
            return f"no rank reached {goal.operation} #{goal.sequence} after that"
        if isinstance(goal, (PauseAtNextCall, PauseAtCallOfRank)):
            return f"rank {goal.rank} made no more calls"
        return ""

    def run_command(self, command: str, rank: int, run: RunState, choices: Callable[[], tuple[int, ...]]) -> str:
        """Carry out a command of a rank's debugger and return the reply. Raises DebuggerCommandError, GoBackError."""
        word, _, argument = command.partition(" ")
        self.goal = None
        if word == "next":
            self.goal = PauseAtNextCall(rank)
        elif word == "until":
            self.goal = parse_until_call(argument)
        elif word == "switch":
            self._switch_to_rank(argument.strip(), run)
        elif word == "save":
            return self._save_choices(choices(), argument.strip())
        else:
            raise GoBackError(self._earlier_goal(argument.strip(), rank, run), choices())
        return ""

    def _earlier_goal(self, argument: str, rank: int, run: RunState) -> Goal:
        """Return the goal of the commands `back` and `back call`. Raises DebuggerCommandError at the beginning."""
        if argument == "call":
            made = sum(event.rank == rank for event in run.events if event.kind.value == "issue")
            if self._call is not None and self._call.rank == rank:
                made = self._call.number
            if not made:
                raise DebuggerCommandError(f"cannot go back: rank {rank} has made no call yet")
            return PauseAtCallOfRank(rank, made - 1)
        if argument:
            raise DebuggerCommandError(f"back takes `call` or no argument, found {argument!r}")
        number = self._requests if self._is_made else self._requests - 1
        if number < 1:
            raise DebuggerCommandError("cannot go back: this is the beginning of the run")
        return PauseAtRequest(number)

    def _switch_to_rank(self, argument: str, run: RunState) -> None:
        ranks = run.ranks
        if not argument.isdecimal() or int(argument) >= len(ranks):
            raise DebuggerCommandError(f"rank is {argument!r}, expected 0 to {len(ranks) - 1}, as in `switch 0`")
        task = ranks[int(argument)].main
        if task.is_finished:
            raise DebuggerCommandError(f"rank {argument} has ended and cannot run: `ranks` shows which ranks can")
        if not task.is_enabled:
            raise DebuggerCommandError(
                f"rank {argument} waits in {task.wait} and cannot run: `ranks` shows which ranks can"
            )
        self._wish, self.goal = int(argument), PauseWhereRankRuns(int(argument))

    def _save_choices(self, choices: tuple[int, ...], argument: str) -> str:
        if self._save is None:
            raise DebuggerCommandError("save works only in a run that `ddpsim debug` has started")
        return self._save(choices, argument)
