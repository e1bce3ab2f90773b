"""The interface between a debugger in a rank and the code that runs the ranks, as threads or as processes."""

from contextlib import AbstractContextManager
from enum import Enum
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Protocol

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.runtime.rank_thread import RankThread, RankUnwound
from ddpsim.simulator.runtime.thread_host import ThreadHost


class DebuggerTopic(Enum):
    """A debugger command that shows the state of all ranks."""

    RANKS = "ranks"
    SLOTS = "slots"
    CALLS = "calls"
    WHY = "why"
    WHERE = "where all"


NOT_DIRECTED = "{} works only in a run that `ddpsim debug` has started"


class DebuggerCommandError(UsageError):
    """A typed command cannot be carried out. The text says why, in one line, and the debugger session continues."""


class VisitResult(NamedTuple):
    """The result of debugging another rank with the `rank R` command."""

    then: str = ""
    """The command, typed in the other rank, that the paused rank has to carry out; "" if there is none."""
    problem: str = ""
    """Why the other rank cannot be debugged; "" if it was debugged."""


class SessionHost(Protocol):
    """Interface between a debugger in a rank and the run to which the rank belongs."""

    _host: ThreadHost

    def _debugged_thread(self) -> RankThread | None:
        """Return the thread of a rank that runs here; None outside of ranks."""

    def debugged_thread_name(self) -> str:
        """Return the name of the rank or thread that the debugger is in, such as "rank 2"; "" outside of ranks."""

    def is_unwinding_rank(self) -> bool:
        """True if the rank's program is being ended early, because the run has ended. False outside of ranks."""
        return self._host.is_stopping and self._debugged_thread() is not None

    def opened_debugger(self, frame: FrameType | None) -> AbstractContextManager[object]:
        """In this block, a debugger counts as open in a program's frame. Raises RankUnwound if the run has ended."""

    def read_line(self, text: str, streams: tuple[Any, Any]) -> str:
        """Show a text whose last line is the prompt, and wait for a typed line. Raises EOFError at the input's end."""

    def show_text(self, text: str, streams: tuple[Any, Any]) -> None:
        """Show a text to the user."""

    def answer_command(self, topic: DebuggerTopic, argument: str) -> str:
        """Return the text that answers a command about all ranks. Raises DebuggerCommandError."""

    def visit_rank(self, rank: int) -> VisitResult:
        """Open a debugger in another rank, until the user leaves that rank."""

    def share_breakpoints(self) -> None:
        """Set the pdb breakpoints of this process in all ranks."""

    def run_director_command(self, command: str) -> str:
        """Carry out a command that steers the run, and return the reply. Raises DebuggerCommandError, RankUnwound."""

    def abort_run(self, error: BaseException) -> NoReturn:
        """End the run with an error, which the run's caller gets."""
        running = self._host.baton.running
        self._host.kernel.run.life.abort(error, None if running is None else running.rank)
        raise RankUnwound
