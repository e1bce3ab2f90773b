"""The interface between the process groups that torch calls in a rank and the host, which runs the ranks.

Only the host knows whether ranks are threads of one process or processes. Requests and answers are plain values. Every
call uses `begin_call`, `issue` and `wait`; these are methods instead of requests because that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ddpsim.simulator.accesses import Accesses
from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.kernel.requests import Request


class RunningRank(Protocol):
    """A rank, as the process group sees it: the state that its threads share."""

    calls_issued: int
    """The handle of the latest call."""

    @property
    def has_started_threads(self) -> bool:
        """True once the rank's program has started a thread."""

    with_future: list[Call]
    """During an exploration: the calls that futures of the program may depend on."""

    def open_calls(self) -> list[PendingCall]:
        """The calls that are not complete, in the order of issue."""


class RunningThread(Protocol):
    """A thread of a rank: the one that runs its program, or one that it started."""

    rank: int
    number: int
    """The rank, for the rank's main thread. Other threads are numbered from the world size on, as they start."""
    name: str
    """The name of the Python thread; "" for the rank's main thread."""
    started_at: Site
    """The line of the user's program that started the thread."""
    is_reducing_at_once: bool
    """True while DDP's Reducer issues all its calls and then waits for them, without returning to Python."""

    @property
    def of(self) -> RunningRank:
        """The rank that the thread belongs to."""


def ignore_completion() -> None:
    """Do nothing: the call has no work handle, or has delivered its completion."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """An issued call that is not complete yet."""

    call: Call
    handle: int
    """The number of the call among all calls of its rank, from 1."""
    owner: RunningRank
    """The rank that issued the call. Another rank may get hold of its work handle."""
    payload: Any
    """The tensors, for the transport; opaque here."""
    members: tuple[int, ...]
    """The global ranks of the group."""
    poisoned: Any = None
    """The rank's own tensors, if the payload has copies of them; see simulator/hazards/poison.py."""
    is_complete: bool = False
    error: Exception | None = None
    """The error with which the transport failed to move the data."""
    waited: bool = False
    """True once the rank has waited for the call, or has found it complete."""
    source: int | None = None
    """The rank that sent the message, once a receive is complete."""
    receive_completion: Callable[[], None] = ignore_completion
    """Runs on a thread of the owner when the completion is delivered: sets futures and runs their chains."""
    when_moved: Callable[[], None] | None = None
    """Runs as soon as the data has moved, on any thread, before a program reads the data."""


class CallWatch(Protocol):
    """Watches the calls of ranks for hazards, and reports them to the kernel (`Noticed`).

    A hazard works in this run and may fail in another.
    """

    listeners: list[Callable[[PendingCall], None]]
    """Functions that are called with each call that the user's program issues."""

    def call_issued(self, pending: PendingCall) -> None:
        """Note that a rank issued a call."""

    def call_settled(self, pending: PendingCall) -> None:
        """Note that the owner of a call waits for it, or has found it complete."""

    def unwaited_calls(self, rank: int) -> Sequence[Call]:
        """Return the user's calls that a rank has not waited for yet."""

    def poisoned_calls(self, rank: int) -> Sequence[Call]:
        """Return those of a rank's unwaited calls whose tensors hold poison values."""

    def mark_number(self, call: Call) -> int:
        """Return the number that marks a call's tensors; see Note [Marks] in process_group/poison_marks.py."""

    def check_for_poison(self, rank: int, value: Any, where: str) -> None:
        """Check a value of the program for poison from tensors that it read too early."""

    def program_returned(self, rank: int, value: Any) -> None:
        """Check the value that a program returned."""

    def collective_matched(self, pendings: Sequence[PendingCall]) -> None:
        """Note that the calls of a collective have all arrived and match; their outputs are written next."""

    def rank_ended(self, rank: int) -> None:
        """Note that a rank's program returned."""

    def run_ended(self) -> None:
        """Note that no rank runs any more."""


class Host(Protocol):
    """Runs the ranks of one execution; this is the part that a rank's process group uses."""

    world_size: int
    is_observed: bool
    """True if an exploration records what each step accesses."""
    hazards: CallWatch

    @property
    def running_thread(self) -> RunningThread:
        """The running thread of a rank."""

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank. False in a process forked from it, which has a copy of that thread."""

    def send_request(self, request: Request) -> Any:
        """Pass a request of the running thread to the kernel and return the answer's value."""

    def abort_run(self, error: Exception) -> None:
        """End the execution with an error for the caller of the run."""

    def begin_call(self, intent: Accesses) -> RunningThread:
        """Make the choice point before a call and return the running thread. An injected fault may strike here."""

    def issue_call(self, pending: PendingCall) -> None:
        """Issue a call of the running thread."""

    def watch_completion(self, pending: PendingCall) -> None:
        """Note that something will depend on the completion of a call."""

    def is_complete(self, pending: PendingCall) -> bool:
        """Return whether a call is complete. If it is not, other ranks run first, as after a failed poll."""

    def wait_for_calls(self, pendings: Sequence[PendingCall], timeout_seconds: float | None = None) -> bool:
        """Wait until one of the calls is complete, and deliver complete calls. False after a time-out."""
