"""The exceptions of the simulator.

    SimulatorError                  the base class
    +-- UsageError                  the caller passed a wrong argument, or called at a wrong time
    |   +-- ReplayError             a replay token that is damaged, of another version, or of another program
    +-- ReplayDivergedError         a recorded choice is not possible in the replayed program
    +-- VerdictError                `Result.raise_for_verdict` on a run that did not pass
    +-- InjectedCrashError          raised by a `Crash` fault inside a rank
    +-- RankLostError               in a result: the process of this rank ended in the middle of its program
    +-- InternalError               a bug of ddpsim

An exception that a rank's program raises is never wrapped: `Result.errors` has it unchanged.
"""

from __future__ import annotations


class SimulatorError(Exception):
    """Base of everything the simulator raises."""


class UsageError(SimulatorError, ValueError):
    """The caller passed a wrong argument, or called at a wrong time; the text is one line."""


class ReplayError(UsageError):
    """A replay token is damaged, of another version, or belongs to another program."""


class ReplayDivergedError(SimulatorError):
    """A recorded choice is not possible in the replayed program; the text shows both runs."""

    def __init__(
        self,
        text: str,
        *,
        choice: int = 0,
        choice_points: int = 0,
        rank: int | None = None,
        answer: int = 0,
        options: tuple[int, ...] = (),
    ) -> None:
        super().__init__(text)
        self.choice = choice
        """Number of choices before it; up to here the run followed the recording."""
        self.choice_points = choice_points
        """Number of choice points before it."""
        self.rank = rank
        """The rank at the choice point; None if the run ended before the recording did."""
        self.answer = answer
        """The recorded choice: an index into the options of the recorded run."""
        self.options = options
        """The ranks that can be chosen in the replay, in order; () if the run had ended."""


class VerdictError(SimulatorError, AssertionError):
    """A simulation did not pass; the text is the whole diagnosis."""


class InjectedCrashError(SimulatorError):
    """Raised inside a rank by a `Crash` fault."""


class RankLostError(SimulatorError):
    """The process of a rank ended without a report: it was killed, crashed in native code, or called os._exit."""


class InternalError(SimulatorError):
    """A bug of ddpsim; please report it."""
