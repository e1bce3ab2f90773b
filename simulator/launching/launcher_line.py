"""Messages from a launcher, a program that starts its ranks itself, to the coordinator."""

from __future__ import annotations

import struct
from typing import NamedTuple

from ddpsim.simulator.runtime.outcome import Raised

EXIT_CODE = struct.Struct("<i")
"""The exit code of a rank, as the coordinator writes it for the launcher."""


class Started(NamedTuple):
    """A rank is started and waits. Its files come with the message, in the order of `RankPopen`."""

    pid: int


class Begin(NamedTuple):
    """All ranks are started, and the program waits for them."""


class MakesGroup(NamedTuple):
    """The program makes a process group itself without starting a rank: it is not a launcher."""


class StartsAgain(NamedTuple):
    """The program starts ranks a second time."""


class Refused(NamedTuple):
    """The program starts its ranks in a way that cannot be simulated."""

    line: str


class Done(NamedTuple):
    """The program has ended."""

    raised: Raised | None
