"""The kernel's answers to requests of ranks, as frozen values."""

from typing import Any, NamedTuple

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.diagnosis.rank_errors import KnownErrorFacts
from ddpsim.simulator.faults import Crash, EarlyReturn


class Continue(NamedTuple):
    """The request is done; the caller continues with `value`."""

    value: Any = None


class Unwind(NamedTuple):
    """The thread that made the request must end its program early, because the run or its rank has ended."""


class RaiseFault(NamedTuple):
    """An injected fault: the calling rank's program gets an exception, then again at each call made while it ends."""

    fault: Crash | EarlyReturn
    call_number: int


class RejectRequest(NamedTuple):
    """The request was invalid: the program that made the request gets an error."""

    kind: str
    text: str


class SwitchTask(NamedTuple):
    """The caller sleeps, and task `to` (number of a rank's program or thread) runs next; None once all have ended."""

    to: int | None


class DeliverCompletion(NamedTuple):
    """A call of the caller's rank is complete: the host (runs the ranks) sets its futures on the caller's thread."""

    handle: int


class MoveTensors(NamedTuple):
    """Calls of several ranks match: the host, which runs the ranks, copies or reduces their tensors' data."""

    signature: Signature
    calls: tuple[tuple[int, int], ...]
    """Rank and handle of each call, in the order of the group's members. For a message: the sender's first."""
    members: tuple[int, ...]
    """The global ranks of the group."""


class CallFailure(NamedTuple):
    """The error with which a call ends."""

    kind: str
    """The name of the exception's type, in `builtins` or `torch.distributed`."""
    text: str
    reason: KnownErrorFacts | None
    """The facts for the finding on the error; None if another finding tells of it."""


class FailCalls(NamedTuple):
    """Calls end with an error: the host, which runs the ranks, marks them as complete."""

    calls: tuple[tuple[int, int], ...]
    """Rank and handle of each call."""
    failure: CallFailure


class ReportStack(NamedTuple):
    """The kernel asks the host, which runs the ranks, for the current stack of the caller's program."""


class AwaitExternalThreads(NamedTuple):
    """No rank can run. The host has to wait for a thread outside the simulation that may wake one."""


Answer = (
    Continue
    | Unwind
    | RaiseFault
    | RejectRequest
    | SwitchTask
    | DeliverCompletion
    | MoveTensors
    | FailCalls
    | ReportStack
    | AwaitExternalThreads
)

GO_ON = Continue()
IN_TIME = Continue(value=True)
UNWIND = Unwind()
