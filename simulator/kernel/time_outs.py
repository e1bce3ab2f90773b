"""Time-outs of groups and of the store, and connections that are closed after one.

The clock comes to a time-out only on its way to something else: a rank that sleeps, or that waits with a time-out of
its own. If all ranks wait for each other for ever, the deadlock is reported at once. So these time-outs are no alarms,
but are looked for before the clock advances.

As measured on gloo: a collective has its time from the moment it is issued, a message from the moment it is waited for.
A rank whose call times out closes its connections in the group. Its later calls there fail, as do those of other ranks
that need it; so do calls that wait for a call that a rank left unfinished when it ended.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.diagnosis.deadlock import lines_of_ranks
from ddpsim.simulator.diagnosis.rank_errors import ClosedConnection, FailedBarrier
from ddpsim.simulator.kernel.answers import CallFailure
from ddpsim.simulator.kernel.requests import SetTimeLimit
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.states import TaskState
from ddpsim.simulator.kernel.tasks import IssuedCall, RankRecord, Task
from ddpsim.simulator.waits import CallWait, StoreWait

_GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
_OWN_CLOSURE = "Application timeout caused pair closure"
_ABORTED = "NCCL communicator was aborted"
_CLOSED = (
    f"{_GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]. This is typically caused by a remote worker crashing. "
    "Check the logs of the remote worker before reporting an error."
)
_NOT_CONNECTED = f"Gloo connectFullMesh failed with {_GLOO}pair.cc:152] timed out connecting: Connection refused"
_LEAVING_SECONDS = 1.0
"""A process is gone for certain so long after the end of its program."""
_SENDING = frozenset({"send", "all_to_all", "all_to_all_single"})
_ROOT_SENDS = frozenset({"broadcast", "scatter"})


class DueWaits(NamedTuple):
    """The waits that time out at one moment."""

    moment: float
    calls: tuple[IssuedCall, ...]
    tasks: tuple[Task, ...]
    """Programs and threads of ranks that wait for the store."""
    seconds: float | None = None
    """The time-out that the program gave to the wait; None for that of the group."""


class TimeOuts:
    """The time-outs of one run, and the connections that were closed."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._limits: dict[tuple[int, str], SetTimeLimit] = {}
        """The time limit of each group, by rank: each may have set another."""
        self.least_seconds = inf
        """The shortest time-out of all. Before, nothing is due."""
        self.may_fail = False
        """True if a new call may need a connection that was closed."""
        self._closed: dict[str, dict[int, ClosedConnection]] = {}
        self._ended: dict[int, float] = {}
        """When ranks ended that left calls unfinished, in virtual seconds."""

    def on_set_time_limit(self, me: Task, request: SetTimeLimit) -> None:
        """Answer a rank's `SetTimeLimit` request: record the time limit of its calls on a group."""
        self._limits[me.rank_number, request.group] = request
        self.least_seconds = min(self.least_seconds, request.seconds)

    def close_connections(self, rank: int, group: str, how: str) -> None:
        """Record that a rank has closed its connections in a group."""
        self.may_fail = True
        self._closed.setdefault(group, {}).setdefault(rank, ClosedConnection(rank, how))
        self._run.observer.used_feature("time-outs of groups")

    def closes_connections(self, call: Call) -> bool:
        """True if gloo closes connections when the program's own time-out ends the wait for a call."""
        limit = self._limits.get((call.rank, call.group))
        return call.is_point_to_point and limit is not None and not limit.is_nccl

    def record_end(self, rank: RankRecord) -> None:
        """Record that a rank's program has ended, if it left calls unfinished."""
        if rank.open and self._run.connections is None:
            self._ended[rank.rank] = self._run.clock.now
            self.may_fail = True

    def find_due(self, until: float) -> DueWaits | None:
        """Return the waits that are the first to time out before the clock says `until`; None if none does."""
        outside = self._run.clock.outside
        if until + outside <= self.least_seconds:
            return None
        due = [(moment - outside, each) for moment, each in self._deadlines() if moment - outside < until]
        if not due:
            return None
        first = min(moment for moment, _ in due)
        waits = [each for moment, each in due if moment == first]
        calls = tuple([each for each in waits if isinstance(each, IssuedCall)])
        return DueWaits(first, calls, tuple([each for each in waits if isinstance(each, Task)]))

    def _deadlines(self) -> Iterator[tuple[float, IssuedCall | Task]]:
        """Yield what may time out, and when: by the virtual clock and the real time of waits outside together."""
        for rank in self._run.ranks:
            if rank.main.is_finished:
                continue
            for issued in rank.open.values():
                limit = self._limits.get((rank.rank, issued.call.group))
                since = self._began(issued, limit)
                if limit is not None and since is not None:
                    yield since + limit.seconds, issued
            for task in rank.tasks:
                is_limited = isinstance(task.wait, StoreWait) and task.number not in self._run.clock.live
                if is_limited and task.store_seconds is not None:
                    yield task.waits_since + task.store_seconds, task

    def _began(self, issued: IssuedCall, limit: SetTimeLimit | None) -> float | None:
        """Return when the time of a call began; None if it has none now."""
        call = issued.call
        if call.operation == "monitored_barrier":
            return None  # it has a time-out of its own
        if not call.is_point_to_point and self._run.slots.find_collective(call) is None:
            return None  # it waits for earlier calls of its rank
        if not call.is_point_to_point or (limit is not None and limit.is_nccl):
            return issued.since
        live = self._run.clock.live
        waiting = (each for each in issued.rank.tasks if isinstance(each.wait, CallWait) and each.wait.calls == (call,))
        return min((each.waits_since for each in waiting if each.number not in live), default=None)

    def time_out(self, issued: IssuedCall, seconds: float | None = None) -> CallFailure:
        """Close the connections of a call whose time (`seconds`, or the group's limit) is over; return its error."""
        call, run = issued.call, self._run
        limit = self._limits[call.rank, call.group]
        milliseconds = round((limit.seconds if seconds is None else seconds) * 1000)
        missing = self._missing_ranks(call)
        where = "" if call.group == "default" else f' on "{call.group}"'
        title = f"{call.operation} #{call.sequence}{where}"
        operation = f"the other side of {title}" if call.is_point_to_point else title
        self.close_connections(call.rank, call.group, f"gave up {title} after {milliseconds} ms")
        reason = FailedBarrier(operation, f"{milliseconds} ms", missing, lines_of_ranks(run.snapshot(), missing))
        if call.signature.members is not None:
            late = call.signature.members.index(missing[0])
            prefix = "" if call.group == "default" else f"{call.group}//"
            keys = f"/default_pg/0//{prefix}cpu//0/{late}"
            return CallFailure("DistStoreError", f"wait timeout after {milliseconds}ms, keys: {keys}", reason)
        if limit.is_nccl:
            work = f"SeqNum={call.sequence + 1}, OpType={call.operation.replace('_', '').upper()}"
            return CallFailure(
                "DistBackendError",
                f"[Rank {call.rank}] Watchdog caught collective operation timeout: WorkNCCL({work}, "
                f"Timeout(ms)={milliseconds}) ran for {milliseconds} milliseconds before timing out.",
                reason,
            )
        sends = call.operation in _SENDING or (call.operation in _ROOT_SENDS and call.signature.root == call.rank)
        side, line = ("send", 129) if sends else ("recv", 78)
        what = f"Timed out waiting {milliseconds}ms for {side} operation to complete"
        return CallFailure("RuntimeError", f"{_GLOO}unbound_buffer.cc:{line}] {what}", reason)

    def _missing_ranks(self, call: Call) -> tuple[int, ...]:
        if call.peer is not None:
            members = self._run.slots.members_of(call.group) if call.peer == ANY_SOURCE else (call.peer,)
            return tuple([rank for rank in sorted(members) if rank != call.rank])
        slot = self._run.slots.find_collective(call)
        assert slot is not None, "a call that has not started is not due"
        return slot.missing

    def failure_of_new_call(self, call: Call) -> CallFailure | None:
        """Return the error of a call that needs a closed connection; None for any other call."""
        closed = self._closed.get(call.group, {})
        if call.rank in closed:
            text = _ABORTED if self._limits[call.rank, call.group].is_nccl else _OWN_CLOSURE
            return CallFailure("RuntimeError", text, closed[call.rank])
        limit = self._limits.get((call.rank, call.group))
        if limit is None or limit.is_nccl or not (closed or self._ended):
            return None
        others = self._run.slots.members_of(call.group) if call.peer is None else (call.peer,)
        for rank in others:
            gone = closed.get(rank) or self._unfinished_call_of(rank, call)
            if gone is not None:
                text = _CLOSED if call.signature.members is None else _NOT_CONNECTED
                return CallFailure("RuntimeError", text, gone)
        return None

    def _unfinished_call_of(self, rank: int, call: Call) -> ClosedConnection | None:
        """Return how the partner of a call ended, if it had issued its own call, and its process is gone by now."""
        if self._run.clock.now < self._ended.get(rank, inf) + _LEAVING_SECONDS:
            return None
        for other in (issued.call for issued in self._run.ranks[rank].open.values()):
            if other.operation == "send" and self._run.semantics.sends_eagerly:
                continue
            is_partner = (
                other.peer in (call.rank, ANY_SOURCE) and other.tag == call.tag and other.operation != call.operation
            )
            if other.group == call.group and (other.sequence == call.sequence if call.peer is None else is_partner):
                return ClosedConnection(rank, f"ended before {other.operation} #{other.sequence} was complete")
        return None

    def list_left_alone(self) -> list[tuple[IssuedCall, CallFailure]]:
        """Return the calls that programs wait for and that need a rank whose program has returned, with gloo's errors.

        The ranks may catch these. None if a rank has started a thread.
        """
        run, found = self._run, list[tuple[IssuedCall, CallFailure]]()
        if not run.tries_errors or not run.semantics.is_like_gloo or any(r.has_started_threads for r in run.ranks):
            return found
        returned = {each.rank for each in run.ranks if each.main.state is TaskState.RETURNED and each.error is None}
        for rank in run.ranks:
            awaited = rank.main.wait.calls if isinstance(rank.main.wait, CallWait) else ()
            for issued in (each for each in rank.open.values() if each.call in awaited):
                limit = self._limits.get((rank.rank, issued.call.group))
                if issued.call.signature.members is not None or limit is None or limit.is_nccl:
                    continue
                needed = self._missing_ranks(issued.call)
                gone = [each for each in needed if each in returned]
                if gone and (issued.call.peer != ANY_SOURCE or len(gone) == len(needed)):
                    reason = ClosedConnection(gone[0], "ended", is_tried=True)
                    found.append((issued, CallFailure("RuntimeError", _CLOSED, reason)))
        return found

    def list_cut_off(self, groups: set[str]) -> list[tuple[IssuedCall, CallFailure]]:
        """Return the open calls that need a connection which was closed in one of these groups, with their errors."""
        opened = [each for rank in self._run.ranks if not rank.main.is_finished for each in rank.open.values()]
        found = [(each, self.failure_of_new_call(each.call)) for each in opened if each.call.group in groups]
        return [(issued, failure) for issued, failure in found if failure is not None]
