"""The values of a sweep of crashes: points, what is tried there, and what is wrong after that."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ddpsim.simulator.faults import How, Strike
from ddpsim.simulator.result import Result


class CrashCode(str, Enum):
    """What goes wrong after a crash."""

    HANG = "crash.hang"
    FAILS = "crash.fails"
    HALF_CHECKPOINT = "crash.half_checkpoint"
    OTHER_CHECKPOINTS = "crash.other_checkpoints"
    LOST_CHECKPOINT = "crash.lost_checkpoint"
    OTHER_SAMPLES = "crash.other_samples"
    OTHER_RESULT = "crash.other_result"


class Entry(NamedTuple):
    """A line of a rank's diary, see `rank_processes/operation_watch.py`."""

    kind: str
    what: list[str]
    steps: int
    """The number of steps of the run so far, which orders the entries of all ranks."""
    optimizer_steps: int
    site: str

    @property
    def is_operation(self) -> bool:
        """True for what a strike may come before."""
        return self.kind not in ("step", "batch", "loss", "read", "strike")


Diaries = Sequence[Sequence[Entry]]
"""The diary of each rank in one attempt."""


class Point(NamedTuple):
    """A place where the program is disturbed, and how."""

    strikes: tuple[Strike, ...]
    text: str

    @property
    def how(self) -> How:
        """What happens there."""
        return self.strikes[0].how


class BadPoint(NamedTuple):
    """A point after which something is wrong."""

    point: Point
    code: CrashCode
    text: str
    result: Result
    """The run of both attempts."""


class CrashSweep(NamedTuple):
    """What came of disturbing a program."""

    possible: int
    """The number of all points."""
    differing: int
    """The number of those that are not known to be equal to another one."""
    tried: int
    bad: tuple[BadPoint, ...] = ()
    """In the order of the program."""
    notes: tuple[str, ...] = ()
    undecided: int = 0
    """The number of points whose run neither passed nor failed, which are not among the tried ones."""
    untried: Mapping[How, int] = {}  # it is never changed
    """How many points the time did not suffice for, by what happens there."""
    unstable: str = ""
    """How two undisturbed runs differ; then no point is tried. "" if they do not."""
    seconds: float = 0.0


class Attempts(NamedTuple):
    """What a disturbed run has left: its result, and the diaries of its two attempts."""

    result: Result
    first: Diaries
    second: Diaries
    is_copied: bool = False
    """True if the second attempt is that of another run, whose first had left the same files."""
