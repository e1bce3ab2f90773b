"""The seam between what torch talks to in a rank and whoever runs the ranks: all that the first asks of the second.

Whether ranks are threads of one process or processes of their own is for the host alone. Requests and answers are plain
values; what is no request here (`begin_call`, `issue`, `wait`) is what each call of each rank goes through, and takes
the shortest way that a host has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ddpsim.simulator.accesses import Accesses
from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.kernel.requests import Request


class RunningRank(Protocol):
    """A rank: what its threads share."""

    calls_issued: int
    """The handle of the latest call."""

    @property
    def has_started_threads(self) -> bool:
        """True once its program has."""

    with_future: list[Call]
    """If somebody explores: the calls that futures of the program may hang on."""

    def open(self) -> list[Pending]:
        """The calls that are not complete, in the order of issue."""


class RunningThread(Protocol):
    """A thread of a rank: the one that runs its program, or one that it started."""

    rank: int
    number: int
    """The rank for the thread that runs the rank's program; others count on from the world size as they start."""
    name: str
    """As Python calls it; "" for the one that runs the rank's program."""
    started_at: Site
    """The line of the user's program that did."""
    is_reducing_at_once: bool
    """The Reducer issues all its calls and then waits for them without coming back to Python in between."""

    @property
    def of(self) -> RunningRank:
        """The rank that it belongs to."""


class Pending:
    """One issued call until it is complete."""

    __slots__ = (
        "call",
        "error",
        "handle",
        "is_complete",
        "issuer",
        "members",
        "owner",
        "payload",
        "poisoned",
        "receive_completion",
        "source",
        "waited",
        "when_moved",
    )

    def __init__(self, call: Call, issuer: RunningThread, payload: Any) -> None:
        self.call = call
        issuer.of.calls_issued = self.handle = issuer.of.calls_issued + 1
        self.owner = issuer.of
        """Only to ask whether a rank is it: another one may get hold of its work."""
        self.issuer = issuer.number
        self.payload = payload
        """The tensors, for the transport; opaque here."""
        self.poisoned: Any = None
        """The rank's own tensors, if the payload has copies of them; see simulator/hazards/poison.py."""
        self.is_complete = False
        self.error: Exception | None = None
        """What the transport said instead of moving the data."""
        self.waited = False
        self.source: int | None = None
        """Who sent the message, once a receive is complete."""
        self.members: tuple[int, ...] = ()
        """The global ranks of the group."""
        self.receive_completion: Callable[[], None] = _ignore
        """Runs on a thread of the owner when the completion is delivered: sets futures and runs their chains."""
        self.when_moved: Callable[[], None] | None = None
        """Runs as soon as the data has moved, on whichever thread, before any program sees it."""

    def release(self) -> None:
        """Let go of the tensors and of the handle, which holds this in turn."""
        self.payload = None
        self.receive_completion = _ignore


def _ignore() -> None:
    """Nobody asked for the completion."""


class CallWatch(Protocol):
    """Watches the calls of ranks for hazards, and notices them (`Noticed`)."""

    listeners: list[Callable[[Pending], None]]
    """Who else is told of the user's calls, when they are issued."""

    def issued(self, pending: Pending) -> None:
        """A rank issued a call."""

    def settled(self, pending: Pending) -> None:
        """The owner of a call waits for it, or has found it complete."""

    def unwaited(self, rank: int) -> Sequence[Call]:
        """The user's calls that a rank has not waited for yet."""

    def poisoned(self, rank: int) -> Sequence[Call]:
        """Those of them whose tensors hold what shows."""

    def number(self, call: Call) -> int:
        """A number for a call whose tensors are to hold it; see Note [Marks] in process_group/poison_marks.py."""

    def came_to_light(self, rank: int, value: Any, where: str) -> None:
        """What a program has done with its tensors shows in a value."""

    def returned(self, rank: int, value: Any) -> None:
        """What a program returned."""

    def slot_filled(self, pendings: Sequence[Pending]) -> None:
        """The calls of a collective met and agree, and write their outputs next."""

    def rank_ended(self, rank: int) -> None:
        """A rank's program returned."""

    def run_ended(self) -> None:
        """No rank runs any more."""


class Host(Protocol):
    """What runs the ranks of one execution, as a rank sees it."""

    world_size: int
    is_observed: bool
    """Somebody explores, and wants to know what each step touches."""
    hazards: CallWatch

    @property
    def me(self) -> RunningThread:
        """The running thread of a rank."""

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank. False in a process forked from it, where the thread is the same."""

    def ask(self, request: Request) -> Any:
        """Carry a request of the running thread to the kernel, and return what it is answered by."""

    def break_off(self, error: Exception) -> None:
        """End the execution with an error that whoever runs it shall raise."""

    def begin_call(self, intent: Accesses) -> RunningThread:
        """The choice point before a call of the running thread, which it returns. A fault may strike here."""

    def issue(self, pending: Pending) -> None:
        """Make a call of the running thread."""

    def watch(self, pending: Pending) -> None:
        """Something is about to hang on the completion of a call."""

    def is_complete(self, pending: Pending) -> bool:
        """Look whether a call is complete. To look in vain lets the others run."""

    def wait(self, pendings: Sequence[Pending], timeout_seconds: float | None = None) -> bool:
        """Wait until one of the calls is complete, and deliver what is complete. False if the time-out came first."""
