"""The state that the parts of the kernel share: the ranks, the clock, the open calls and the events of one run; and
which ranks are connected, on a backend whose ranks connect at the first call that they make together.

If a rank ends with an unfinished call, the call does not arrive at ranks that it is not connected to. See
pytorch/gloo#520, where the surviving rank waits forever.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.calls import ANY_SOURCE, Call, Site
from ddpsim.simulator.clock import VirtualClock
from ddpsim.simulator.diagnosis.deadlock_snapshot import (
    RankSnapshot,
    RankState,
    Snapshot,
    ThreadSnapshot,
    collect_open_calls,
)
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind, WatchedRun, find_hazards
from ddpsim.simulator.diagnosis.uneven import BatchCounts
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.kernel.states import RunLifecycle
from ddpsim.simulator.kernel.streams import CallStreams
from ddpsim.simulator.kernel.tasks import RankRecord, Task
from ddpsim.simulator.matching.slots import PendingCollectives, UnmatchedMessages
from ddpsim.simulator.policies.observer import Observer
from ddpsim.simulator.verdict import Finding
from ddpsim.simulator.waits import Waiting
from ddpsim.simulator.wording import values_by_key


class RankConnections:
    """The connections between the ranks of one run. Two ranks connect at the first call that they make together."""

    def __init__(self, slots: PendingCollectives, messages: UnmatchedMessages) -> None:
        self._slots = slots
        self._messages = messages
        self.left_behind: list[Call] = []
        """Unfinished calls of ended ranks that never arrive at the others, to which the rank was not connected."""
        self._groups: set[str] = set()
        """Groups whose ranks are all connected."""
        self._pairs: set[tuple[str, frozenset[int]]] = set()

    def record_connections(self, calls: Sequence[Call]) -> None:
        """Record that the ranks of matched calls are now connected to each other."""
        if calls[0].peer is None:
            self._groups.add(calls[0].group)
        else:
            self._pairs.add((calls[0].group, frozenset(call.rank for call in calls)))

    def rank_ended(self, rank: RankRecord) -> None:
        """Remove an ended rank's unfinished calls from groups where no other rank is connected to that rank."""
        for issued in rank.open.values():
            call = issued.call
            if self._is_connected(call):
                continue
            self.left_behind.append(call)
            if call.peer is None:
                self._slots.remove_call(call)
            else:
                self._messages.remove_call(call)

    def _is_connected(self, call: Call) -> bool:
        is_of_pair = call.peer is not None and (call.group, frozenset((call.rank, call.peer))) in self._pairs
        return call.group in self._groups or is_of_pair or call.peer == ANY_SOURCE


_new = tuple.__new__


class RunState:
    """The state of one run. The parts of the kernel change this state; it makes no decisions itself."""

    def __init__(
        self,
        world_size: int,
        budget: Budget,
        observer: Observer | None,
        semantics: BackendSemantics = GLOO,
        kept_keys: Mapping[str, bytes] | None = None,
    ) -> None:
        self.kept_keys = kept_keys or {}
        """What an earlier attempt has left in the agent's store."""
        self.budget = budget
        self.semantics = semantics
        self.is_observed = observer is not None
        """True if an exploration of schedules records what each step reads and writes."""
        self.observer = Observer() if observer is None else observer
        self.life = RunLifecycle()
        self.clock = VirtualClock()
        self.slots = PendingCollectives()
        self.messages = UnmatchedMessages()
        self.streams = (
            CallStreams(world_size, batch_is_unit=semantics.batch_is_unit) if semantics.calls_in_order else None
        )
        """Each rank's stream of calls; None on a backend where a call starts as soon as it is issued."""
        self.connections = RankConnections(self.slots, self.messages) if semantics.connects_lazily else None
        """Which ranks are connected; None on a backend whose groups are connected when they are made."""
        self.events: list[Event] = []
        self.issued: list[tuple[Call, int]] = []
        """All calls in order of issue, each with the number of the task (rank program or thread) that issued it."""
        self.findings: list[Finding] = []
        self.compared: set[tuple[int, str]] = set()
        """Ranks and groups whose calls torch compares (TORCH_DISTRIBUTED_DEBUG=DETAIL): a mismatch is an exception."""
        self.noticed: list[Noticed] = []
        """Observations that checks made in the ranks, except the states of model replicas."""
        self.writers: dict[tuple[str, int, str], set[int]] = {}
        """By file, and how many calls they had made by then, the ranks that wrote it anew or removed it; of a folder,
        the ranks that made or removed it, also by the line at which they looked for it."""
        self.readers: dict[tuple[str, int, str], set[int]] = {}
        """The ranks that read a file that was written in the run, or looked for a folder, as above."""
        self.looks: list[tuple[Site, int, int]] = []
        """Where a rank found a key of the store by chance, the rank, and the one that made the key."""
        self.agent_waits: float | None = None
        """How long after the failure of a rank an agent ends the others; None if there is no agent."""
        self.failed_at: float | None = None
        """The virtual time at which the first rank failed."""
        self.steps_of_wrappers: dict[tuple[str, int], int] = {}
        """The latest training step of the calls so far, by process group and the DDP wrapper's number in that group."""
        self.judge: Callable[[Any], None] = lambda what: None
        """A function that takes the state of a rank's model replica and compares it with the other ranks' replicas."""
        self.waiting: tuple[Waiting, ...] = ()
        self.tries_errors = True
        """True if a deadlock is reported only after the ranks have got the chance to catch the error of real gloo."""
        self.tried = 0
        """How many waits such errors have ended."""
        self.steps = 0
        self.ranks = [RankRecord(rank) for rank in range(world_size)]
        self.tasks: dict[int, Task] = {rank.rank: rank.main for rank in self.ranks}
        """By number: the tasks (ranks' programs and threads) that have not ended, and the main task of every rank."""
        self.started = world_size
        """The number of programs and threads of ranks started so far; the next one gets this number."""
        self.running: Task | None = None
        """The task (a rank's program or thread) that runs now; all others wait."""

    def record_event(self, kind: EventKind, call: Call | None = None, text: str = "") -> None:
        """Write an event of the running program or thread into the trace."""
        me = self.running
        assert me is not None
        # does what Event(...) does in half the time: there are three events to each call
        self.events.append(_new(Event, (kind, me.rank_number, self.steps, self.clock.now, call, text, me.name)))

    def note_failure(self) -> None:
        """Record that a rank has failed."""
        self.failed_at = self.clock.now if self.failed_at is None else self.failed_at

    def is_agent_due(self) -> bool:
        """Return whether the agent ends all ranks before any of them can go on: one has failed, and the others wait."""
        if self.agent_waits is None or self.failed_at is None:
            return False
        alarm = self.clock.next_alarm()
        return alarm is None or alarm > self.failed_at + self.agent_waits

    def note_progress(self, seconds: float, processes: Sequence[int] = ()) -> None:
        """Tell the budget how far the run is, after so many seconds. The ids are those of the ranks' processes."""
        self.budget.note_progress(seconds, self.steps, len(self.issued), self.running, (os.getpid(), *processes))

    def all_calls(self) -> tuple[Call, ...]:
        """Return all calls that were made so far, in order of issue."""
        return tuple([call for call, _ in self.issued])

    def tensor_names(self) -> Mapping[Call, str]:
        """Return the program's names of the tensors of its calls, where a name was found."""
        named = [(each.calls[0], each.detail.text) for each in self.noticed if each.kind is NoticedKind.NAMED]
        return {call: ", ".join(texts) for call, texts in values_by_key(named).items()}

    def hazard_findings(self) -> tuple[Finding, ...]:
        """Return the hazards of the ended run: mistakes that did no harm in it, and may make another run fail."""
        returned = sum(event.kind is EventKind.RETURN for event in self.events)
        return find_hazards(WatchedRun(self.noticed, self.issued, have_returned=returned == len(self.ranks)))

    def batch_counts(self) -> BatchCounts:
        """Return how many batches each iteration over a data loader had, by rank and the lines of the loader."""
        return {rank.rank: rank.batches for rank in self.ranks if rank.batches}

    def snapshot(self) -> Snapshot:
        """Return the state of every rank and every open collective, as frozen values."""
        ranks = tuple(map(_snapshot_of, self.ranks))
        streams = () if self.streams is None else self.streams.snapshot()
        left_behind = () if self.connections is None else tuple(self.connections.left_behind)
        outside = tuple(each.detail for each in self.noticed if each.kind is NoticedKind.OUTSIDE)
        open_calls = collect_open_calls(self.slots, self.messages)
        return Snapshot(ranks, open_calls, self.steps, self.all_calls(), streams, left_behind, outside)


def _snapshot_of(rank: RankRecord) -> RankSnapshot:
    error = rank.error
    return RankSnapshot(
        rank.rank,
        RankState.RAISED if error else RankState.RETURNED if rank.main.is_finished else RankState.WAITING,
        rank.main.wait,
        rank.last_call,
        rank.optimizer_steps,
        "" if error is None else error.text,
        None if error is None else error.site,
        dict(rank.destroyed),
        tuple(
            ThreadSnapshot(each.number, each.name, each.wait, each.is_daemon) for each in rank.tasks if not each.is_main
        ),
    )
