"""Messages between a rank's process and the coordinator, as frozen values.

A rank sends `Ask` for each request, and `Say` for its reply to an answer that asks for more. Each is answered by one
`Turn`, except the messages under "not answered". `Ended` is a rank's last message. Each message carries how much the
rank has written by then (`rank_channel.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import Reply, Request
from ddpsim.simulator.kernel.states import State
from ddpsim.simulator.rank_processes.parcels import Parcel
from ddpsim.simulator.runtime.outcome import Raised
from ddpsim.simulator.runtime.threads import ThreadError

# --- from a rank ------------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """A request of the running thread."""

    request: Request


class Say(NamedTuple):
    """The running thread's reply to the last answer."""

    reply: Reply | None


class AwaitTurn(NamedTuple):
    """The rank, which may speculate, waits until it has the baton."""


class CountTasks(NamedTuple):
    """Asks for the number of the next thread that is started."""


class Watch(NamedTuple):
    """A future now depends on the completion of a call. Answered by `Seen`."""

    handle: int


# --- from a rank, not answered ----------------------------------------------------------------------------------------


class Tell(NamedTuple):
    """A request whose answer carries nothing (`UNANSWERED`)."""

    request: Request


class Post(NamedTuple):
    """The running thread makes a call, and continues."""

    handle: int
    call: Call
    parcel: Parcel


class GiveUpRequest(NamedTuple):
    """The rank could not do what the last answer asked for."""


class Broke(NamedTuple):
    """The simulator's own code failed in a rank."""

    error: BaseException
    is_bug: bool


class Ended(NamedTuple):
    """The result of a rank."""

    value: bytes
    """What its program returned, pickled; b"" for None."""
    error: bytes
    """What it raised, pickled; b"" if it did not."""
    raised: Raised | None
    thread_errors: tuple[ThreadError, ...]
    """Of threads that it started, each kind once."""
    has_poisoned: bool
    leaving: Raised | None = None
    """What was on its way out of it when the run ended."""


class Exits(NamedTuple):
    """A rank is about to end its process by os._exit, with a status other than 0."""

    site: Site


Message = Ask | Say | AwaitTurn | CountTasks | Watch | Tell | Post | GiveUpRequest | Broke | Ended | Exits


class Written(NamedTuple):
    """How much a rank has written to its standard output and error."""

    output: int
    errors: int


# --- from the coordinator ---------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The result of a call, sent with the answer that reports it to the rank."""

    error: Exception | None
    source: int | None
    """Who sent the message, of a receive."""
    members: tuple[int, ...]
    """The global ranks of its group."""
    left: Any = None
    """Tensors that have no place in the shared memory, pickled: by the index of the output; what was gathered as -1."""


class Turn(NamedTuple):
    """Tells a thread of the rank to continue."""

    number: int | None
    """Its number; None for a rank that is over: it makes no request any more."""
    answer: Answer
    steps: int
    is_stopping: bool
    states: tuple[tuple[int, State], ...] = ()
    """Where the rank's threads stand, if it has started any."""
    outcomes: tuple[tuple[int, Outcome], ...] = ()
    """What came of calls that the rank learns of now, by handle; of the one that the answer delivers last."""
    error: Exception | None = None
    """In the place of an answer: what the kernel raised."""
    is_speculative: bool = False
    """The rank goes on before it has the baton: what it asks for is served in its turn."""


class Count(NamedTuple):
    """The number of the next thread."""

    number: int


class Seen(NamedTuple):
    """The result of a call, if its rank should have it by now."""

    outcome: Outcome | None
