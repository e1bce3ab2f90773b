"""Messages between a rank's process and the coordinator, as frozen values.

A rank sends `SendRequest` for each request, and `SendReply` for its reply to an answer that asks for more. Each is
answered by one `TurnToRun`, except the messages under "not answered". `RankEnded` is a rank's last message. Each
message carries how much the rank has written by then (`rank_channel.py`).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.debugging.breakpoints import Breakpoints
from ddpsim.simulator.debugging.session_host import DebuggerTopic
from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import Reply, Request
from ddpsim.simulator.kernel.states import TaskState
from ddpsim.simulator.rank_processes.parcels import PackedPayload
from ddpsim.simulator.runtime.outcome import RaisedError
from ddpsim.simulator.runtime.threads import ThreadError

# --- from a rank ------------------------------------------------------------------------------------------------------


class SendRequest(NamedTuple):
    """A request of the running thread."""

    request: Request


class SendReply(NamedTuple):
    """The running thread's reply to the last answer."""

    reply: Reply | None


class AwaitTurn(NamedTuple):
    """Wait for the baton (the right to run), in a rank that may compute without it."""


class CountTasks(NamedTuple):
    """Ask for the number of the next thread that is started. Answered by that number."""


class WatchCall(NamedTuple):
    """A future now depends on the completion of a call. Answered by `WatchedResult`."""

    handle: int


# --- from a rank, not answered ----------------------------------------------------------------------------------------


class SendUnansweredRequest(NamedTuple):
    """A request that has no answer (`UNANSWERED`)."""

    request: Request


class PostCall(NamedTuple):
    """The running thread makes a call, and continues."""

    handle: int
    call: Call
    parcel: PackedPayload


class GiveUpRequest(NamedTuple):
    """The rank gives up its request, because it cannot carry out the last answer."""


class InternalFailure(NamedTuple):
    """The simulator's own code failed in a rank."""

    error: BaseException
    is_bug: bool


class RankEnded(NamedTuple):
    """The result of a rank."""

    value: bytes
    """The return value of its program, pickled; b"" for None."""
    error: bytes
    """The exception of its program, pickled; b"" if it did not raise."""
    raised: RaisedError | None
    thread_errors: tuple[ThreadError, ...]
    """The errors of threads that the rank started, each kind once."""
    has_poisoned: bool
    leaving: RaisedError | None = None
    """The exception that was leaving the program when the run ended."""


class ExitsByOsExit(NamedTuple):
    """A rank is about to end its process by os._exit, with a status other than 0."""

    site: Site


class WrittenBytes(NamedTuple):
    """The numbers of bytes that a rank has written to its standard output and error."""

    output: int
    errors: int


# --- from the coordinator ---------------------------------------------------------------------------------------------


class CallResult(NamedTuple):
    """The result of a call, sent with the answer that reports it to the rank."""

    error: Exception | None
    source: int | None
    """For a receive: the sender's global rank."""
    members: tuple[int, ...]
    left: Any = None
    """Output tensors outside the shared memory, by the index of the output; -1 for a gathered tensor."""


class TurnToRun(NamedTuple):
    """Tells a thread of the rank to continue."""

    number: int | None
    """The number of the thread; None if the rank has ended."""
    answer: Answer
    steps: int
    is_stopping: bool
    states: tuple[tuple[int, TaskState], ...] = ()
    """The states of the rank's threads by number, if it has started any."""
    outcomes: tuple[tuple[int, CallResult], ...] = ()
    """By handle, the results that the rank receives now; the last is that of a call which the answer delivers."""
    error: Exception | None = None
    """The exception of the kernel, instead of an answer."""
    is_speculative: bool = False
    """True if the rank continues without the right to run (baton); its requests are handled once it has that right."""


class WatchedResult(NamedTuple):
    """The result of a call; None if the rank may not have it yet."""

    outcome: CallResult | None


# --- between a debugger in a rank and the coordinator; none is a step of the run --------------------------------------


class SessionOpened(NamedTuple):
    """A debugger session has begun."""


class SessionClosed(NamedTuple):
    """A debugger session has ended."""


class ShowText(NamedTuple):
    """A text to show to the user."""

    text: str


class VisitEnded(NamedTuple):
    """The debugger that `OpenDebugger` has opened in this rank has ended."""

    then: str = ""
    """The command that ended it, such as "rank 2"; "" to return to the rank that asked."""


class ReadLine(NamedTuple):
    """Show a text, the last line of which is a prompt, and read a line. Answered by `DebuggerReply`."""

    text: str


class QueryRanks(NamedTuple):
    """Ask for information on all ranks. Answered by `DebuggerReply`."""

    topic: DebuggerTopic
    argument: str
    stack: str
    """The stack of the rank that asks."""


class VisitRank(NamedTuple):
    """Open a debugger in another rank. Answered by `VisitResult`, of `simulator/debugging`, or by `DebuggerReply` if
    the run ends."""

    rank: int


class DirectRun(NamedTuple):
    """Choose how the run continues. Answered by `DebuggerReply`."""

    command: str


DebuggerMessage = (
    SessionOpened | SessionClosed | ShowText | VisitEnded | ReadLine | QueryRanks | VisitRank | DirectRun | Breakpoints
)
"""All messages of a debugger; `Breakpoints` are set in all ranks, and not answered."""


class OpenDebugger(NamedTuple):
    """Open a debugger in a rank that waits for an answer; the answer follows later."""


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
    """Pickle a return value or an exception of a user's program. Raises pickle's error if it does not pickle.

    A class that pickle cannot find, such as one in a function's body, is identified by its address and its name. A
    class from before the fork has the same address in both processes. `unpickle_value` accepts only known classes.
    """
    buffer = io.BytesIO()
    _ValuePickler(buffer).dump(value)
    return buffer.getvalue()


def unpickle_value(data: bytes) -> Any:
    """Unpickle a value. Raises pickle's error if a class or function is missing here."""
    return _ValueUnpickler(io.BytesIO(data)).load()


class _ValuePickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, type) or _is_importable(value):
            return None
        return id(value), value.__qualname__


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
