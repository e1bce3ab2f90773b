"""Messages from a launcher, a program that starts its ranks itself, to the coordinator."""

import struct
from typing import NamedTuple

from ddpsim.simulator.runtime.outcome import RaisedError

EXIT_CODE = struct.Struct("<i")
"""The exit code of a rank, as the coordinator writes it for the launcher."""


class StartedRank(NamedTuple):
    """A rank has been started and waits. The rank's files come with the message, in the order of `RankPopen`."""

    pid: int


class BeginRanks(NamedTuple):
    """All ranks are started, and the program waits for them."""


class OwnGroupReport(NamedTuple):
    """The program makes a process group itself without starting a rank: it is not a launcher."""


class SecondStartReport(NamedTuple):
    """The program starts ranks a second time, which is an error."""


class LaunchRejected(NamedTuple):
    """The program starts its ranks in a way that cannot be simulated; the run ends with the error."""

    line: str


class ProgramEnded(NamedTuple):
    """The program that started its ranks itself has ended."""

    raised: RaisedError | None
    is_starting: bool = False
    """True if it was starting a rank when it raised."""
