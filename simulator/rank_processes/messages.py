"""Messages between a rank's process and the coordinator, as frozen values.

A rank sends `SendRequest` for each request, and `SendReply` if the answer asks for more. Each is answered by one
`TurnToRun`, except the messages under "not answered". `RankEnded` is a rank's last message. Each message carries how
many bytes of output the rank has written by then (`rank_channel.py`).
"""

import io
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.debugging.breakpoints import AllBreakpoints
from ddpsim.simulator.debugging.session_host import DebuggerTopic
from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import Reply, Request
from ddpsim.simulator.kernel.states import TaskState
from ddpsim.simulator.rank_processes.parcels import PackedPayload
from ddpsim.simulator.runtime.outcome import RaisedError
from ddpsim.simulator.runtime.threads import ThreadError
from ddpsim.simulator.virtual_gpus import cuda_module

# --- from a rank ------------------------------------------------------------------------------------------------------


class SendRequest(NamedTuple):
    """A request of a rank's running thread to the kernel (the scheduler)."""

    request: Request


class SendReply(NamedTuple):
    """The reply of a rank's running thread to an answer that asks for more."""

    reply: Reply | None


class AwaitTurn(NamedTuple):
    """A rank that may compute without the baton (the right to run) waits for it."""


class AskTaskNumber(NamedTuple):
    """Ask for the number that the next started thread gets. Answered by that number."""


class WatchCall(NamedTuple):
    """Report that a future depends on the completion of a call now. Answered by `WatchedResult`."""

    handle: int


# --- from a rank, not answered ----------------------------------------------------------------------------------------


class RequestWithoutReply(NamedTuple):
    """A request to which the kernel (the scheduler) gives no answer."""

    request: Request


class IssueCallWithoutReply(NamedTuple):
    """The running thread makes a communication call, and continues without an answer."""

    handle: int
    call: Call
    parcel: PackedPayload


class WithdrawRequest(NamedTuple):
    """The rank gives up its request, because it cannot carry out the kernel's last answer."""


class InternalFailure(NamedTuple):
    """The simulator's own code failed in a rank."""

    error: BaseException
    is_bug: bool


class RankEnded(NamedTuple):
    """The last message of a rank: the result of its program."""

    value: bytes
    """The return value of its program, pickled; b"" for None."""
    error: bytes
    """The exception of its program, pickled; b"" if it did not raise."""
    raised: RaisedError | None
    thread_errors: tuple[ThreadError, ...]
    """The errors of the threads that the rank started, without repetitions of equal ones."""
    has_poisoned: bool
    leaving: RaisedError | None = None
    """The exception that was leaving the rank's program when the run ended."""


class OsExitReport(NamedTuple):
    """A rank is about to end its process by os._exit, with a status other than 0."""

    site: Site


class WrittenBytes(NamedTuple):
    """The numbers of bytes that a rank has written to its standard output and error."""

    output: int
    errors: int


# --- from the coordinator ---------------------------------------------------------------------------------------------


class CallResult(NamedTuple):
    """The result of a call, sent to the rank with an answer."""

    error: Exception | None
    source: int | None
    """For a receive: the sender's global rank."""
    members: tuple[int, ...]
    left: Any = None
    """Output tensors outside the shared memory, by the index of the output; -1 stands for a gathered tensor."""


class TurnToRun(NamedTuple):
    """Answer to a rank: one of its threads continues."""

    number: int | None
    """The number of the thread; None if the rank has ended."""
    answer: Answer
    steps: int
    is_stopping: bool
    states: tuple[tuple[int, TaskState], ...] = ()
    """The states of the rank's threads by thread number, if the rank has started any."""
    outcomes: tuple[tuple[int, CallResult], ...] = ()
    """The results that the rank receives now, by the call's handle (id); the delivered call is the last."""
    error: Exception | None = None
    """The exception that the thread gets instead of an answer."""
    is_speculative: bool = False
    """True if the rank continues without the right to run (baton); its requests are handled once it has that right."""
    now: float = 0.0  # the virtual time
    is_terminated: bool = False
    """True if the rank gets SIGTERM now."""


class WatchedResult(NamedTuple):
    """Answer to `WatchCall`: the result of the call; None if the rank may not have the result yet."""

    outcome: CallResult | None


# --- between a debugger in a rank and the coordinator; none is a step of the run --------------------------------------


class SessionOpened(NamedTuple):
    """A debugger session has begun."""


class SessionClosed(NamedTuple):
    """A debugger session has ended."""


class ShowText(NamedTuple):
    """A text to show to the user."""

    text: str


class RankDebuggerEnded(NamedTuple):
    """The debugger that `OpenDebugger` opened in this rank has ended."""

    then: str = ""
    """The command that ended the debugger, such as "rank 2"; "" to return to the rank that opened it."""


class ReadLine(NamedTuple):
    """Show a text, the last line of which is a prompt, and read a line. Answered by `DebuggerReply`."""

    text: str


class QueryRanks(NamedTuple):
    """Ask for information on all ranks. Answered by `DebuggerReply`."""

    topic: DebuggerTopic
    argument: str
    stack: str
    """The stack of the rank whose debugger asks."""


class DebugOtherRank(NamedTuple):
    """Open a debugger in another rank. Answered by `VisitResult`, or by `DebuggerReply` if the run ends."""

    rank: int


class DirectRun(NamedTuple):
    """A debugger command that chooses how the run continues. Answered by `DebuggerReply`."""

    command: str


DebuggerMessage = (
    SessionOpened
    | SessionClosed
    | ShowText
    | RankDebuggerEnded
    | ReadLine
    | QueryRanks
    | DebugOtherRank
    | DirectRun
    | AllBreakpoints
)
"""All messages of a debugger. One of them, `AllBreakpoints`, sets breakpoints in all ranks and is not answered."""


class OpenDebugger(NamedTuple):
    """Asks a rank that waits for an answer to open a debugger; the awaited answer follows later."""


class DebuggerReply(NamedTuple):
    """The answer to a debugger: a line that the user typed, or information."""

    text: str | None = ""
    """The text; None at the end of the input."""
    problem: str = ""
    """The error message, if there is no text."""
    is_over: bool = False
    """The run ends: leave the program."""


# --- values of programs -----------------------------------------------------------------------------------------------


def pickle_value(value: Any) -> bytes:
    """Pickle a return value or an exception of a user's program. Raises pickle's error if that fails.

    A class that pickle cannot find, such as one in a function's body, is identified by its address and its name: it has
    the same address in the forked processes. `unpickle_value` accepts only known classes.
    """
    buffer = io.BytesIO()
    _ValuePickler(buffer).dump(value)
    return buffer.getvalue()


def unpickle_value(data: bytes) -> Any:
    """Unpickle a value. Raises pickle's error if a class or function of the value does not exist in this process."""
    return _ValueUnpickler(io.BytesIO(data)).load()


class _ValuePickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, type) or _is_importable(value):
            return None
        return id(value), value.__qualname__

    def reducer_override(self, value: Any) -> Any:
        """Pickle a tensor of a virtual GPU as one of the CPU: the process that unpickles it has no GPU. Pickle an error
        by its own means: what libraries register for errors (tblib of Dask) loses the code of a SystemExit."""
        if isinstance(value, BaseException):
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if not (isinstance(value, torch.Tensor) and value.is_cuda) or torch.cuda.get_device_name() != cuda_module.NAME:
            return NotImplemented
        return value.cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


class _ValueUnpickler(pickle.Unpickler):
    def persistent_load(self, named: Any) -> Any:
        place, name = named
        for each in _subclasses_of(object):
            if id(each) == place and each.__qualname__ == name:
                return each
        raise pickle.UnpicklingError(f"class {name} was made after the ranks were forked")


def _is_importable(value: type) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _subclasses_of(root: type) -> Iterator[type]:
    seen: set[type] = {root}
    todo = [root]
    while todo:
        subclasses: list[type] = type.__subclasses__(todo.pop())
        for each in subclasses:
            if each not in seen:
                seen.add(each)
                todo.append(each)
                yield each
