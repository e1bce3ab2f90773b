"""Requests of ranks to the kernel, and the host's replies to answers that ask it for work, as frozen values.

The package's docstring says what the kernel does for each request; this file has its fields. They are `NamedTuple`s,
which are made fast: each rank makes one at each step.
"""

from typing import NamedTuple

from ddpsim.simulator.accesses import Access, Accesses, Object
from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.diagnosis.hazards import Noticed
from ddpsim.simulator.diagnosis.samplers import SamplerSettings
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.states import TaskChange
from ddpsim.simulator.waits import OutsideWait, Wait

# --- at a choice point ------------------------------------------------------------------------------------------------


class Checkpoint(NamedTuple):
    """The caller lets other tasks (programs and threads of ranks) run here, and does nothing else."""

    intent: Accesses = ()
    """The shared objects that the caller reads or writes when it continues."""


class Poll(NamedTuple):
    """The caller has checked for something in vain: all other ranks and threads run before it checks again."""

    intent: Accesses = ()


class Sleep(NamedTuple):
    """The caller waits for so many seconds of virtual time."""

    seconds: float


class BeginCall(NamedTuple):
    """The caller is about to make a call. The answer may be an injected fault."""

    intent: Accesses = ()


class IssueCall(NamedTuple):
    """The caller makes a communication call. If it completes a collective or matches a message, the data moves now."""

    handle: int
    call: Call


class WaitFor(NamedTuple):
    """The caller waits until one of its rank's calls is complete. The answer is False if the time-out passed first."""

    handles: tuple[int, ...]
    timeout_seconds: float | None = None


class IsComplete(NamedTuple):
    """The caller asks whether a call is complete. If it is not, other ranks and threads run first."""

    handle: int
    look: Access
    is_blind: bool = False
    """True if the caller is told that it is not complete, whatever the answer, until it waits."""


class Block(NamedTuple):
    """The caller waits until another thread or rank wakes it. The answer is False if the time-out passed first."""

    wait: Wait
    timeout_seconds: float | None = None


class AwaitOutside(NamedTuple):
    """The caller has looked in vain for something outside the simulation. It looks again when no other can run, or time
    has passed. The answer is the real seconds that it may wait then; None if `until` passed first."""

    wait: OutsideWait
    seconds: float = 0.0
    """The real seconds that the caller has waited since its last request of this wait."""
    until: float | None = None
    """The virtual time at which the wait ends; None if it has no time-out."""
    is_first: bool = False
    """True for the first request of a wait: later ones are no steps, as their number depends on real time."""


class StoreOperation(NamedTuple):
    """An operation of the shared key-value store. Its keys include the prefixes of nested stores."""

    operation: str
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    amount: int = 0
    prefix: str = ""
    """The prefix of the keys to list."""
    timeout_seconds: float | None = None
    """The time-out of `wait`; None for other operations."""
    store_seconds: float | None = None
    """The time-out of the store, for waits without one of their own."""
    site: Site = NOWHERE
    may_wait: bool = True
    """True if the caller waits while the queue is empty."""
    server: str = ""
    """The key that exists while the server of the store runs; empty for a store whose server outlives all ranks."""


class ReadClock(NamedTuple):
    """The caller asks for the virtual time in seconds. If it does nothing but ask, it is taken to poll."""


class FinishTask(NamedTuple):
    """The caller's program or thread has ended; it makes no more requests."""

    how: TaskChange


# --- served at once ---------------------------------------------------------------------------------------------------


class WakeTask(NamedTuple):
    """The caller wakes another task (a rank's program or thread); no effect if that task does not wait."""

    number: int
    from_outside: bool = False
    """True if the caller is a thread outside the simulation."""


class CancelThread(NamedTuple):
    """The caller's rank ends: one of its threads has to end early when it runs next."""

    number: int


class NameGroup(NamedTuple):
    """The caller asks for a group's label, its name in findings. The first rank to ask proposes the label."""

    name: str
    """The place in a store where the members meet, which ends with torch's name of the group."""
    made: int
    """How many groups the caller's rank has made at this place: one that is used again means another group."""
    proposed: str


class DeclareGroup(NamedTuple):
    """The caller declares a group and its members. A second declaration of the same group changes nothing."""

    group: str
    members: tuple[int, ...]
    is_beside_streams: bool = False
    """True if the group's calls start when they are issued, even on a backend that runs a rank's calls in order."""
    is_compared: bool = False
    """True if torch compares the ranks' calls on the group: it was made under TORCH_DISTRIBUTED_DEBUG=DETAIL."""


class SetTimeLimit(NamedTuple):
    """The caller's rank sets the time-out of its calls on a group."""

    group: str
    seconds: float
    is_nccl: bool = False


class AnnounceGroup(NamedTuple):
    """The caller, outside a new group, states its view of the group's members; the kernel compares all views."""

    call: Call


class OpenBatch(NamedTuple):
    """The next calls of the caller's rank start together (as in batch_isend_irecv), if the backend can do that."""


class CloseBatch(NamedTuple):
    """The caller's rank adds no more calls to its batch (calls that start together)."""


class DestroyGroup(NamedTuple):
    """The caller's rank destroyed a group, and makes no more calls on it."""

    group: str
    site: Site


class AskMissingRanks(NamedTuple):
    """The caller asks for the ranks that have not made their call of a collective."""

    handle: int


class GiveUpBarrier(NamedTuple):
    """The caller gives up a monitored_barrier, because ranks of its group are missing."""

    group: str
    sequence: int
    missing: tuple[int, ...]


class AskGivenUpBarrier(NamedTuple):
    """The caller asks which ranks were missing when a monitored_barrier was given up; () if it was not given up."""

    group: str
    sequence: int


class AskWhereabouts(NamedTuple):
    """The caller asks for lines of text that say what given ranks wait for, or how they ended."""

    ranks: tuple[int, ...]


class AskOthersDeliver(NamedTuple):
    """The caller asks whether another thread of its rank is running the callbacks of a completed call."""


class StartThread(NamedTuple):
    """The caller has started a thread, which waits for its turn. The answer is the thread's number."""

    name: str
    is_daemon: bool = False


class SawThreadEnd(NamedTuple):
    """The caller has seen that a thread has ended."""

    number: int


class ReportAccesses(NamedTuple):
    """The caller has read or written objects that other ranks or threads may observe."""

    accesses: Accesses


class ReleaseObject(NamedTuple):
    """The caller releases an object, such as a lock. Whoever acquires it next sees all that the caller did before."""

    object: Object


class AcquireObject(NamedTuple):
    """The caller acquires an object, such as a lock, that another thread released."""

    object: Object


CALLBACKS = "callbacks of calls"


class ReportLockUse(NamedTuple):
    """The caller uses something, such as a Lock, of which the exploration of schedules has to know."""

    kind: str


class WriteNote(NamedTuple):
    """The caller writes an event into the trace."""

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
    made: tuple[Site, int] | None
    """The line that constructed it, and how many the rank had constructed there by then; None if that is unknown."""
    site: Site


class SamplerStarted(NamedTuple):
    """The caller's rank begins to iterate over a DistributedSampler, which yields its part of a data set."""

    sampling: SamplerSettings
    made: Site
    """The line of the program that constructed the sampler."""
    number: int
    """How many samplers the rank had constructed at this line, this one included."""
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
    site: Site | None


class ProgramRaised(NamedTuple):
    """The program of the caller's rank raised an exception."""

    error: RankError


# --- what a host says to an answer ------------------------------------------------------------------------------------


class DeliveredCompletion(NamedTuple):
    """The host's reply to `DeliverCompletion`: the call's futures are set, and their callbacks have run."""


class MovedTensors(NamedTuple):
    """The host's reply to `MoveTensors`: the data has moved, or could not be moved because of an error."""

    error: str | None = None


class StackReport(NamedTuple):
    """The host's reply to `ReportStack`: the stack of the caller's program."""

    text: str
    is_at_lock: bool = False
    """True if the program seems to wait for a lock."""
    has_children: bool = False
    """True if the program has started processes that run, for which it may wait."""


class AwaitedExternalThreads(NamedTuple):
    """The host's reply to `AwaitExternalThreads`: whether a thread outside the simulation woke a task."""

    woke_a_rank: bool


Request = (
    Checkpoint | Poll | Sleep | BeginCall | IssueCall | WaitFor | IsComplete | Block | AwaitOutside | StoreOperation
    | ReadClock | FinishTask | WakeTask | CancelThread | NameGroup | DeclareGroup | AnnounceGroup | DestroyGroup
    | SetTimeLimit | AskMissingRanks | GiveUpBarrier | AskGivenUpBarrier | AskWhereabouts | AskOthersDeliver | OpenBatch
    | CloseBatch | StartThread | SawThreadEnd | ReportAccesses | ReleaseObject | AcquireObject | ReportLockUse
    | WriteNote | ReportAgreedValue | AskLatestStep | LoaderStarted | SamplerStarted | StepDone | ProgramReturned
    | ProgramRaised | Noticed
)  # fmt: skip
Reply = DeliveredCompletion | MovedTensors | StackReport | AwaitedExternalThreads

UNANSWERED = frozenset({
    AcquireObject, CloseBatch, DeclareGroup, DestroyGroup, GiveUpBarrier, LoaderStarted, Noticed, OpenBatch,
    ProgramReturned, ReleaseObject, ReportAccesses, SamplerStarted, SawThreadEnd, SetTimeLimit, StepDone, WriteNote,
})  # fmt: skip
"""Requests that the kernel serves at once and without a result: a rank in its own process waits for no answer."""
