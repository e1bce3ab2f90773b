"""Requests: what a rank asks of the execution, as frozen values; and what a host says to an answer that asks for more.

`Kernel` says what each does; here stands what each carries. They are `NamedTuple`s, as calls are: one is made at each
step of each rank.
"""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.simulator.accesses import Access, Accesses, Object
from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.diagnosis.hazards import Noticed
from ddpsim.simulator.diagnosis.samplers import Sampling
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.states import Change
from ddpsim.simulator.waits import Wait

# --- at a choice point ------------------------------------------------------------------------------------------------


class Checkpoint(NamedTuple):
    """A choice point and nothing else."""

    intent: Accesses = ()
    """What the caller touches when it goes on."""


class Poll(NamedTuple):
    """The caller looked for something in vain: the others go first."""

    intent: Accesses = ()


class Sleep(NamedTuple):
    """Let virtual time pass."""

    seconds: float


class BeginCall(NamedTuple):
    """Before a call. The answer may be a fault's."""

    intent: Accesses = ()


class Issue(NamedTuple):
    """Make a call. If it is the last of its slot, or its message's partner waits, the data moves now."""

    handle: int
    call: Call


class WaitFor(NamedTuple):
    """Wait until one of the caller's rank's calls is complete. Answered by False if the time-out came first."""

    handles: tuple[int, ...]
    timeout_seconds: float | None = None


class IsComplete(NamedTuple):
    """Answered by whether a call is complete. To look in vain lets the others run."""

    handle: int
    look: Access


class Block(NamedTuple):
    """Wait until woken. Answered by False if the time-out came first."""

    wait: Wait
    timeout_seconds: float | None = None


class StoreOperation(NamedTuple):
    """An operation of the key-value store. Keys are whole."""

    operation: str
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    amount: int = 0
    """To add."""
    prefix: str = ""
    """Of keys to list."""
    timeout_seconds: float | None = None
    """Of `wait` alone."""
    site: Site = NOWHERE
    may_wait: bool = True
    """For an item of a queue."""


class ReadClock(NamedTuple):
    """Answered by virtual seconds. Who does nothing but look at the clock polls it."""


class Finish(NamedTuple):
    """What the caller runs is over; it makes no request any more."""

    how: Change


# --- served at once ---------------------------------------------------------------------------------------------------


class Wake(NamedTuple):
    """Enable a task that waits. One that no longer does stays as it is."""

    number: int
    from_outside: bool = False
    """By a thread that is none of a rank's."""


class Cancel(NamedTuple):
    """Let a thread of the caller's rank be unwound when it runs next."""

    number: int


class NameGroup(NamedTuple):
    """Answered by what a group is called in calls and reports: as the first of its ranks proposed."""

    name: str
    """torch's."""
    made: int
    """How many groups of this name the caller's rank has made by now: used again, a name is another group's."""
    proposed: str


class Declare(NamedTuple):
    """Make a group known. The first declaration stands."""

    group: str
    members: tuple[int, ...]
    is_beside_streams: bool = False
    """Its calls start when they are issued, whatever the backend of the other groups does."""


class Announce(NamedTuple):
    """Tell the members of a new group what the caller's rank, which is none of them, takes the group for."""

    call: Call


class OpenBatch(NamedTuple):
    """The calls of the caller's rank from here on are one unit, on a backend that has such."""


class CloseBatch(NamedTuple):
    """That unit is whole."""


class Destroy(NamedTuple):
    """The caller's rank makes no more calls on a group."""

    group: str
    site: Site


class Missing(NamedTuple):
    """Answered by the ranks that have not come to the slot of a call that is not complete."""

    handle: int


class GiveUp(NamedTuple):
    """Give a barrier up, since ranks of its group are missing."""

    group: str
    sequence: int
    missing: tuple[int, ...]


class GivenUp(NamedTuple):
    """Answered by the ranks that a barrier was given up for; by none if it was not."""

    group: str
    sequence: int


class Whereabouts(NamedTuple):
    """Answered by lines that say where ranks are: what they wait for, or how they ended."""

    ranks: tuple[int, ...]


class OthersDeliver(NamedTuple):
    """Answered by whether another thread of the caller's rank runs what hangs on a completion."""


class StartThread(NamedTuple):
    """The caller has started a thread, which waits for the baton. Answered by its number."""

    name: str


class SawEnd(NamedTuple):
    """The caller has seen that a thread has ended."""

    number: int


class Touch(NamedTuple):
    """The caller has touched objects that others may observe."""

    accesses: Accesses


class Release(NamedTuple):
    """The caller gives an object away: whoever acquires it knows what came before."""

    object: Object


class Acquire(NamedTuple):
    """The caller has got an object that somebody released."""

    object: Object


class Use(NamedTuple):
    """The caller uses something by which threads wait for each other."""

    kind: str


class Note(NamedTuple):
    """Write an event into the trace."""

    kind: EventKind
    text: str = ""


class Agree(NamedTuple):
    """The caller's rank tells a value that all ranks should have alike."""

    name: str
    value: str
    site: Site


class LatestStep(NamedTuple):
    """Answered by the latest step of a DDP wrapper that a call of any rank belongs to; 0 if there is none."""

    group: str
    wrapper: int


class LoaderBegun(NamedTuple):
    """The caller's rank begins to go through a data loader."""

    batches: int
    site: Site


class Sampled(NamedTuple):
    """The caller's rank begins to go through its part of a data set."""

    sampling: Sampling
    made: Site
    """The line that made the sampler."""
    site: Site


class StepDone(NamedTuple):
    """An optimizer of the caller's rank finished a step."""


class Returned(NamedTuple):
    """The program of the caller's rank returned."""


class RankError(NamedTuple):
    """What a rank raised, as words."""

    kind: str
    """The name of the type."""
    text: str
    """Type and message, in one line."""
    site: Site | None


class Raised(NamedTuple):
    """The program of the caller's rank raised."""

    error: RankError


# --- what a host says to an answer ------------------------------------------------------------------------------------


class Delivered(NamedTuple):
    """To `Deliver`: what hangs on the completion has run."""


class Moved(NamedTuple):
    """To `Move`: the data has moved, or the transport refused."""

    error: str | None = None


class StackTold(NamedTuple):
    """To `TellStack`: where the caller's program stands."""

    text: str
    is_at_lock: bool = False
    """It seems to wait for a lock."""


class Looked(NamedTuple):
    """To `LookOutside`: whether a task was woken."""

    woke_somebody: bool


Request = (
    Checkpoint | Poll | Sleep | BeginCall | Issue | WaitFor | IsComplete | Block | StoreOperation | ReadClock | Finish
    | Wake | Cancel | NameGroup | Declare | Announce | Destroy | Missing | GiveUp | GivenUp | Whereabouts
    | OthersDeliver | OpenBatch | CloseBatch | StartThread | SawEnd | Touch | Release | Acquire | Use | Note | Agree
    | LatestStep | LoaderBegun | Sampled | StepDone | Returned | Raised | Noticed
)  # fmt: skip
Reply = Delivered | Moved | StackTold | Looked

UNANSWERED = frozenset({
    Acquire, CloseBatch, Declare, Destroy, GiveUp, LoaderBegun, Note, Noticed, OpenBatch, Release, Returned, Sampled,
    SawEnd, StepDone, Touch,
})  # fmt: skip
"""Requests that are served at once whatever stands, by an answer without a value: nobody has to wait for it."""
