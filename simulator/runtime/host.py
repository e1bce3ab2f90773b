"""The interface between a rank's process groups, which torch calls, and the host, which runs the ranks.

Only the host knows whether ranks are threads of one process or processes. Requests and answers are plain values. Three
requests that every call makes are methods instead, as that is faster: `begin_call`, `issue_call` and `wait_for_calls`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ddpsim.simulator.accesses import Access, Accesses
from ddpsim.simulator.calls import Call
from ddpsim.simulator.kernel.requests import Request
from ddpsim.simulator.runtime.rank_thread import PendingCall, RankThread


class CallWatch(Protocol):
    """Watches the calls of ranks for hazards (mistakes that may fail in another run), and tells the kernel."""

    listeners: list[Callable[[PendingCall], None]]
    """Functions that are called with each call that the user's program issues."""

    def call_issued(self, pending: PendingCall) -> None:
        """Note that a rank issued a call."""

    def call_settled(self, pending: PendingCall) -> None:
        """Note that the rank that issued a call waits for the call, or has found it complete."""

    def unwaited_calls(self, rank: int) -> Sequence[Call]:
        """Return the user's calls that a rank has not waited for yet."""

    def poisoned_calls(self, rank: int) -> Sequence[Call]:
        """Return a rank's calls not waited for, whose outputs hold poison (values that show early reads)."""

    def mark_number(self, call: Call) -> int:
        """Return the number written into a call's tensors to recognise them; see Note [Marks] in
        simulator/hazards/poison_marks.py."""

    def check_for_poison(self, rank: int, value: Any, where: str) -> None:
        """Check a value of the program for poison: the mark of a tensor that was read before its call was complete."""

    def program_returned(self, rank: int, value: Any) -> None:
        """Check the value that a rank's program returned for tensors that it read too early."""

    def collective_matched(self, pendings: Sequence[PendingCall]) -> None:
        """Note that all ranks have made a collective's calls, and the calls match. The outputs are written next."""

    def rank_ended(self, rank: int) -> None:
        """Note that a rank's program returned."""

    def run_ended(self) -> None:
        """Note that the run is over and no rank runs any more."""


class Host(Protocol):
    """Runs the ranks of a simulation; these are the methods that a rank's process groups call."""

    world_size: int
    is_observed: bool
    """True if an exploration of schedules records what each step reads and writes."""
    hazards: CallWatch

    @property
    def steps(self) -> int:
        """The number of steps of the run so far."""

    @property
    def running_thread(self) -> RankThread:
        """The running thread of a rank."""

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank. False in a process forked from it, which has a copy of that thread."""

    def send_request(self, request: Request) -> Any:
        """Pass a request of the running thread to the kernel and return the answer's value."""

    def report_shared_access(self, access: Access) -> None:
        """Report to the exploration of schedules that the caller reads or changes what threads of its rank share."""

    def abort_run(self, error: Exception) -> None:
        """End the run with an error that is raised to the run's caller."""

    def begin_call(self, intent: Accesses) -> RankThread:
        """Let other ranks run before a call, then return the running thread. An injected fault strikes here."""

    def issue_call(self, pending: PendingCall) -> None:
        """Issue a communication call of the running thread."""

    def watch_completion(self, pending: PendingCall) -> None:
        """Note that the program will depend on a call's completion, for example by a future's callback."""

    def is_complete(self, pending: PendingCall, *, is_blind: bool = False) -> bool:
        """Return whether a call is complete. If not, return False after other ranks have run.

        `is_blind`: the program is told that it is not, until it waits."""

    def wait_for_calls(self, pendings: Sequence[PendingCall], timeout_seconds: float | None = None) -> bool:
        """Wait until a call is complete, and run callbacks of complete calls. False if the time-out passed first."""
