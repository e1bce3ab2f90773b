"""What a debugger in a rank asks of whoever runs the ranks, be they threads or processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import Enum
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Protocol

from ddpsim.simulator.errors import UsageError


class Topic(Enum):
    """What is told of all ranks."""

    RANKS = "ranks"
    SLOTS = "slots"
    CALLS = "calls"
    WHY = "why"
    WHERE = "where all"


NOT_DIRECTED = "{} needs a run that `ddpsim debug` has started: start it so"


class CannotError(UsageError):
    """What was typed cannot be done; the text says why, in one line, and the session goes on."""


class Visited(NamedTuple):
    """A look into another rank is over."""

    then: str = ""
    """The command that was typed there and is for the rank that stands; "" to go on looking."""
    problem: str = ""
    """Why there was none."""


class SessionHost(Protocol):
    """What is around a debugger in a rank."""

    def who(self) -> str:
        """The rank, or the thread of one, that the debugger is in, as in "rank 2"; "" outside of ranks."""

    def is_over(self) -> bool:
        """True if what runs here is being left, as the run has come to its end. False outside of ranks."""

    def opened(self, frame: FrameType | None) -> AbstractContextManager[object]:
        """While the debugger has the word, in a frame of the program. Raises RankUnwound where the execution ends."""

    def read(self, text: str, streams: tuple[Any, Any]) -> str:
        """Show a text whose last line is the prompt, and wait for a line. Raises EOFError where there is none."""

    def show(self, text: str, streams: tuple[Any, Any]) -> None:
        """Show a text."""

    def tell(self, topic: Topic, argument: str) -> str:
        """What is to be said of all ranks. Raises CannotError."""

    def visit(self, rank: int) -> Visited:
        """Let a debugger look into another rank, until it has enough."""

    def share_breakpoints(self) -> None:
        """Let the breakpoints of this process hold in all ranks."""

    def direct(self, command: str) -> str:
        """Say how the run is to go on; what is to be said to that. Raises CannotError; RankUnwound if it does not."""

    def leave(self, error: BaseException) -> NoReturn:
        """End the execution by an error, which whoever runs it gets."""
