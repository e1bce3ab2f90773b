"""Requests of ranks to the kernel, and replies of the host to answers that ask it for work, as frozen values.

`Kernel` lists what each request does; this file lists what each carries. They are `NamedTuple`s, as calls are, because
one is made at each step of each rank.
"""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.simulator.accesses import Access, Accesses, Object
from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.diagnosis.hazards import Noticed
from ddpsim.simulator.diagnosis.samplers import SamplerSettings
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.states import TaskChange
from ddpsim.simulator.waits import Wait

# --- at a choice point ------------------------------------------------------------------------------------------------


class Checkpoint(NamedTuple):
    """A choice point and nothing else."""

    intent: Accesses = ()
    """The accesses that the caller makes when it continues."""


class Poll(NamedTuple):
    """The caller's check failed: all other tasks run first."""

    intent: Accesses = ()


class Sleep(NamedTuple):
    """The caller waits for so many seconds of virtual time."""

    seconds: float


class BeginCall(NamedTuple):
    """The caller is about to make a call. The answer may be an injected fault."""

    intent: Accesses = ()


class IssueCall(NamedTuple):
    """The caller makes a call. If the call completes a collective, or matches a message, the data moves now."""

    handle: int
    call: Call


class WaitFor(NamedTuple):
    """The caller waits until one of its rank's calls is complete. The answer is False after a time-out."""

    handles: tuple[int, ...]
    timeout_seconds: float | None = None


class IsComplete(NamedTuple):
    """The caller asks whether a call is complete. If it is not, other tasks run first."""

    handle: int
    look: Access


class Block(NamedTuple):
    """The caller waits until it is woken. The answer is False after a time-out."""

    wait: Wait
    timeout_seconds: float | None = None


class StoreOperation(NamedTuple):
    """An operation of the key-value store. Keys include the prefixes of their stores."""

    operation: str
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    amount: int = 0
    """The number to add."""
    prefix: str = ""
    """The prefix of the keys to list."""
    timeout_seconds: float | None = None
    """The time-out of `wait`; None for other operations."""
    site: Site = NOWHERE
    may_wait: bool = True
    """True if the caller waits for an item of an empty queue."""


class ReadClock(NamedTuple):
    """The caller asks for the virtual time in seconds. A caller that only reads the clock again and again polls."""


class FinishTask(NamedTuple):
    """The caller's program or thread has ended; it makes no more requests."""

    how: TaskChange


# --- served at once ---------------------------------------------------------------------------------------------------


class WakeTask(NamedTuple):
    """A task that waits is enabled. A task that no longer waits is left alone."""

    number: int
    from_outside: bool = False
    """True if the caller is a thread that belongs to no rank."""


class CancelThread(NamedTuple):
    """A thread of the caller's rank is unwound when it runs next."""

    number: int


class NameGroup(NamedTuple):
    """The caller asks for a group's label in calls and reports. The first rank to ask proposes it."""

    name: str
    """torch's name of the group."""
    made: int
    """The number of groups with this name that the caller's rank has made. A name that is used again means another
    group."""
    proposed: str


class DeclareGroup(NamedTuple):
    """A group and its members become known. A later declaration of the same group changes nothing."""

    group: str
    members: tuple[int, ...]
    is_beside_streams: bool = False
    """True if the group's calls start when they are issued, even on a backend that runs a rank's calls in order."""


class AnnounceGroup(NamedTuple):
    """A rank outside a new group states its view of the group, which is compared with the members' views."""

    call: Call


class OpenBatch(NamedTuple):
    """The next calls of the caller's rank form one batch, on a backend that has batches."""


class CloseBatch(NamedTuple):
    """The batch of the caller's rank is complete."""


class DestroyGroup(NamedTuple):
    """The caller's rank destroyed a group, and makes no more calls on it."""

    group: str
    site: Site


class AskMissingRanks(NamedTuple):
    """The caller asks for the ranks that have not made their call of a collective."""

    handle: int


class GiveUpBarrier(NamedTuple):
    """A barrier is abandoned, because ranks of its group are missing."""

    group: str
    sequence: int
    missing: tuple[int, ...]


class AskGivenUpBarrier(NamedTuple):
    """The caller asks for the ranks for which a barrier was abandoned; the answer is () if it was not."""

    group: str
    sequence: int


class AskWhereabouts(NamedTuple):
    """The caller asks for lines that say where ranks are: what they wait for, or how they ended."""

    ranks: tuple[int, ...]


class AskOthersDeliver(NamedTuple):
    """The caller asks whether another thread of its rank is delivering a completion."""


class StartThread(NamedTuple):
    """The caller has started a thread, which waits for the baton. The answer is the thread's number."""

    name: str


class SawThreadEnd(NamedTuple):
    """The caller has seen that a thread has ended."""

    number: int


class ReportAccesses(NamedTuple):
    """The caller has accessed objects that other ranks or threads may observe."""

    accesses: Accesses


class ReleaseObject(NamedTuple):
    """The caller releases an object. The next task that acquires it runs after everything before this release."""

    object: Object


class AcquireObject(NamedTuple):
    """The caller acquires an object that another task released."""

    object: Object


class ReportUse(NamedTuple):
    """The caller uses a kind of object by which threads wait for each other, such as a Lock."""

    kind: str


class WriteNote(NamedTuple):
    """An event is written to the trace."""

    kind: EventKind
    text: str = ""


class ReportAgreedValue(NamedTuple):
    """The caller's rank reports a value that must be equal on all ranks."""

    name: str
    value: str
    site: Site


class AskLatestStep(NamedTuple):
    """The caller asks for the latest step of a DDP wrapper to which any rank's call belongs; 0 if there is none."""

    group: str
    wrapper: int


class LoaderStarted(NamedTuple):
    """The caller's rank begins to iterate over a data loader."""

    batches: int
    site: Site


class SamplerStarted(NamedTuple):
    """The caller's rank begins to iterate over its part of a data set."""

    sampling: SamplerSettings
    made: Site
    """The line that constructed the sampler."""
    site: Site


class StepDone(NamedTuple):
    """An optimizer of the caller's rank finished a step."""


class ProgramReturned(NamedTuple):
    """The program of the caller's rank returned."""


class RankError(NamedTuple):
    """The exception of a rank, as text."""

    kind: str
    """The name of the exception's type."""
    text: str
    """Type and message in one line."""
    site: Site | None


class ProgramRaised(NamedTuple):
    """The program of the caller's rank raised an exception."""

    error: RankError


# --- what a host says to an answer ------------------------------------------------------------------------------------


class DeliveredCompletion(NamedTuple):
    """The host's reply to `DeliverCompletion`: the futures are set, and their callbacks have run."""


class MovedTensors(NamedTuple):
    """The host's reply to `MoveTensors`: the data has moved, or the transport refused."""

    error: str | None = None


class StackReport(NamedTuple):
    """The host's reply to `ReportStack`: the stack of the caller's program."""

    text: str
    is_at_lock: bool = False
    """True if the program seems to wait for a lock."""


class AwaitedExternalThreads(NamedTuple):
    """The host's reply to `AwaitExternalThreads`: whether a task was woken."""

    woke_somebody: bool


Request = (
    Checkpoint | Poll | Sleep | BeginCall | IssueCall | WaitFor | IsComplete | Block | StoreOperation | ReadClock
    | FinishTask | WakeTask | CancelThread | NameGroup | DeclareGroup | AnnounceGroup | DestroyGroup | AskMissingRanks
    | GiveUpBarrier | AskGivenUpBarrier | AskWhereabouts | AskOthersDeliver | OpenBatch | CloseBatch | StartThread
    | SawThreadEnd | ReportAccesses | ReleaseObject | AcquireObject | ReportUse | WriteNote | ReportAgreedValue
    | AskLatestStep | LoaderStarted | SamplerStarted | StepDone | ProgramReturned | ProgramRaised | Noticed
)  # fmt: skip
Reply = DeliveredCompletion | MovedTensors | StackReport | AwaitedExternalThreads

UNANSWERED = frozenset({
    AcquireObject, CloseBatch, DeclareGroup, DestroyGroup, GiveUpBarrier, LoaderStarted, Noticed, OpenBatch,
    ProgramReturned, ReleaseObject, ReportAccesses, SamplerStarted, SawThreadEnd, StepDone, WriteNote,
})  # fmt: skip
"""Requests that are always done at once and have no answer value, so a rank that is a process need not wait."""
