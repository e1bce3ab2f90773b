"""The exceptions of the simulator.

    SimulatorError                  everything below
    +-- UsageError                  the caller gave something we cannot work with
    |   +-- ReplayError             a replay token that is damaged, of another version, or of another program
    +-- ReplayDivergedError         the replayed program offers other choices than the recorded one did
    +-- VerdictError                `Result.raise_for_verdict` on a run that did not pass
    +-- InjectedCrashError          what a `Crash` fault raises inside a rank
    +-- RankLostError               stands in a result for a rank whose process ended in the middle of its program
    +-- InternalError               a bug of ours

What a rank's own program raises is never wrapped: it stands unchanged in `Result.errors`.
"""

from __future__ import annotations


class SimulatorError(Exception):
    """Base of everything the simulator raises."""


class UsageError(SimulatorError, ValueError):
    """The caller gave something the simulator cannot work with."""


class ReplayError(UsageError):
    """A replay token is damaged, of another version, or belongs to another program."""


class ReplayDivergedError(SimulatorError):
    """The replayed program offered other choices than the recorded one did; the text shows both sides."""

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
        """How many choices came before; up to here the run followed the recording."""
        self.choice_points = choice_points
        """How many choice points came before."""
        self.rank = rank
        """Who stood there; None if the run had ended, and the recording goes on."""
        self.answer = answer
        """What the recording takes: an index into what was open then."""
        self.options = options
        """The ranks that are open now, in the order of the answers; () if the run had ended."""


class VerdictError(SimulatorError, AssertionError):
    """A simulation did not pass; the text is the whole diagnosis."""


class InjectedCrashError(SimulatorError):
    """Raised inside a rank by a `Crash` fault."""


class RankLostError(SimulatorError):
    """The process of a rank ended without a word: it was killed, crashed in native code, or called os._exit."""


class InternalError(SimulatorError):
    """The simulator broke one of its own rules: a bug of ours, please report it."""
