"""Picks the cause (from `advice/`) of a deadlock in the wait-for graph, and the ranks at fault.

within a rank       thread_findings.py
a dead rank         its exception is the cause
a cycle             _advise_cycle: store keys, messages, creation of groups, then the order of groups
a missing rank      store keys, FSDP2 and similar (parallel_causes.py), messages, _advise_wrappers if a wrapper waits (a
                    wrapper's call says more), then _advise_user_calls
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.calls import Call, Origin, Parallelism, Phase
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock_snapshot import OF_RECORDS, OpenCalls, RankState, Snapshot, WaitReason
from ddpsim.simulator.diagnosis.explain import shorten_list, sites_text
from ddpsim.simulator.diagnosis.mismatch_causes import WRAPPING, advise_bucket_left_out, advise_post_hooks
from ddpsim.simulator.diagnosis.parallel_causes import advise_waiting, parallelism_of
from ddpsim.simulator.diagnosis.rank_errors import LOST
from ddpsim.simulator.diagnosis.thread_findings import advise_threads
from ddpsim.simulator.diagnosis.uneven import COUNTERPART, advise_unequal_messages, messages_after_loop
from ddpsim.simulator.operations import CREATING, POINT_TO_POINT
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait, StoreWait
from ddpsim.simulator.wording import LabelledLine, rank_list, ranks_by_value


def ranks_at_fault(snapshot: Snapshot, reading: WaitReason) -> tuple[int, ...]:
    """Return the ranks at fault: missing or dead ones, those of the cycle, or the few that alone made a call."""
    if reading.code is Code.DEADLOCK_MISSING_RANK and _are_fewer_waiting_than_returned(snapshot, reading):
        return reading.victims
    if reading.code is not Code.DEADLOCK_CYCLE:
        return reading.culprits
    left = tuple(messages_after_loop(snapshot, reading))
    others = left if 0 < 2 * len(left) < len(reading.victims) else reading.culprits
    return _ranks_missing_in_group_creation(snapshot, reading) or _ranks_in_other_order(snapshot, reading) or others


def advise_deadlock(snapshot: Snapshot, reading: WaitReason, culprits: tuple[int, ...]) -> list[LabelledLine]:
    """Return the advice (cause and what to try) for a deadlock; `culprits` are the ranks at fault."""
    if reading.code is Code.DEADLOCK_THREADS:
        return advise_threads(snapshot, reading)
    if reading.code is Code.DEADLOCK_DEAD_RANK:
        gone = all(snapshot.ranks[rank].error.startswith(LOST) for rank in culprits)
        return (Cause.PROCESS_GONE if gone else Cause.DIED).lines(who=rank_list(culprits))
    if reading.code is Code.DEADLOCK_CYCLE:
        return _advise_cycle(snapshot, reading, culprits)
    calls = snapshot.calls_of(reading.victims)
    are_of_records = all(snapshot.ranks[rank].state in OF_RECORDS for rank in culprits)
    if calls and culprits and culprits != reading.victims and are_of_records:
        return _advise_of_record(snapshot, calls, culprits)
    waits = [wait for rank in reading.culprits for wait in snapshot.ranks[rank].waits]
    if not calls or any(isinstance(wait, StoreWait) for wait in waits):
        return Cause.KEY_NEVER_SET.lines()
    if reading.any_suffices:
        return Cause.NOTHING_SENT.lines(who=rank_list(culprits))
    if _ended_before_connection(snapshot, calls[0], culprits):
        return Cause.LEFT_BEHIND.lines(who=rank_list(culprits))
    if parts := advise_waiting(calls, rank_list(culprits), is_alone=culprits == reading.victims):
        return parts
    if calls[0].is_point_to_point:
        message = next((call for call in calls if call.peer in culprits), calls[0])
        return Cause.UNPAIRED_MESSAGE.lines(who=rank_list(culprits), operation=COUNTERPART[message.operation])
    if wrappers := [call for call in calls if call.origin.phase is not Phase.USER]:
        return _advise_wrappers(snapshot, reading, wrappers)
    return _advise_user_calls(snapshot, reading, culprits)


def _advise_of_record(snapshot: Snapshot, calls: Sequence[Call], culprits: tuple[int, ...]) -> list[LabelledLine]:
    """Return the advice for a deadlock in the record of a real job, which does not show why a rank made no call."""
    first = next((call for call in calls if call.peer in culprits), calls[0])
    if any(snapshot.ranks[rank].state is RankState.UNRECORDED for rank in culprits):
        return Cause.NO_RECORD.lines(who=rank_list(culprits), operation=first.title)
    if first.is_point_to_point:
        return Cause.MESSAGE_NOT_MET.lines(who=rank_list(culprits), operation=COUNTERPART[first.operation])
    return Cause.DID_NOT_COME.lines(who=rank_list(culprits), operation=first.title)


def _ended_before_connection(snapshot: Snapshot, call: Call, culprits: tuple[int, ...]) -> bool:
    """Return True if ended ranks had made the call that others wait for, but ended before they connected to their
    peers."""
    index = snapshot.open_calls_by_call.get(call)
    if index is None:
        return False
    left_behind = filter(snapshot.open_slots[index].is_waiting_for, snapshot.left_behind)
    return {call.rank for call in left_behind}.issuperset(culprits)


# --- a rank is missing ------------------------------------------------------------------------------------------------


def _advise_user_calls(snapshot: Snapshot, reading: WaitReason, culprits: tuple[int, ...]) -> list[LabelledLine]:
    calls = snapshot.calls_of(reading.victims)
    operation = calls[0].title
    if calls[0].operation in CREATING:
        return Cause.GROUP_NOT_CREATED.lines(who=rank_list(reading.culprits))
    if post_hooks := advise_post_hooks(calls):
        return post_hooks
    if culprits == reading.victims:
        return Cause.ONE_CALL_MORE.lines(who=rank_list(culprits), operation=operation)
    destroyed = {snapshot.ranks[rank].destroyed.get(calls[0].group) for rank in culprits}
    if len(destroyed) == 1 and (site := next(iter(destroyed))) is not None:
        return Cause.GROUP_DESTROYED.lines(who=rank_list(culprits), operation=operation, fact=str(site))
    return Cause.RETURNED_EARLY.lines(who=rank_list(culprits), operation=operation)


def _advise_wrappers(snapshot: Snapshot, reading: WaitReason, calls: Sequence[Call]) -> list[LabelledLine]:
    """Return the advice for a deadlock in which ranks wait in DDP wrappers' calls that others did not make."""
    missing = rank_list(reading.culprits)
    phases = {call.origin.phase for call in calls}
    if any(call.origin.shadow for call in calls) or Phase.JOIN_CONTROL in phases:
        return Cause.JOINED_ON_SOME_RANKS.lines(who=missing)
    if phases <= WRAPPING:
        return Cause.WRAPPED_ALONE.lines(who=missing)
    has_passed = _have_missing_ranks_finished_step(snapshot, reading, calls)
    if has_passed and all(call.origin.by_hook for call in calls):
        return Cause.HOOK_MADE_NO_CALL.lines(who=missing, fact=sites_text(calls))
    if left_out := advise_bucket_left_out(missing, calls):
        return left_out
    if has_passed:
        return Cause.BACKWARD_WITHOUT_BUCKET.lines(who=missing)
    if _may_be_evaluation(snapshot, calls):
        return Cause.FORWARD_ALONE.lines(who=rank_list({call.rank for call in calls}))
    return Cause.RAN_OUT_OF_INPUT.lines(who=missing)


def _have_missing_ranks_finished_step(snapshot: Snapshot, reading: WaitReason, calls: Sequence[Call]) -> bool:
    """True if ranks wait in a bucket of a step, and the missing ranks have finished that step or its forward."""
    done = [snapshot.ranks[rank] for rank in reading.culprits]
    waiting = max(snapshot.ranks[rank].optimizer_steps for rank in reading.victims)
    origins = {call.origin for call in calls}
    forwards = {Origin(Phase.BUFFERS, each.wrapper, step=each.step, shadow=each.shadow) for each in origins}
    return all(call.origin.phase is Phase.BUCKET for call in calls) and (
        all(rank.optimizer_steps > waiting for rank in done)
        or all(rank.last_call is not None and rank.last_call.origin in forwards for rank in done)
    )


def _may_be_evaluation(snapshot: Snapshot, calls: Sequence[Call]) -> bool:
    """True if ranks sync buffers in a step that they have finished: a forward without gradients does not count as a
    step."""
    origins = [(call.origin, snapshot.ranks[call.rank].optimizer_steps) for call in calls]
    return all(each.phase is Phase.BUFFERS and each.step is not None and each.step <= done for each, done in origins)


def _are_fewer_waiting_than_returned(snapshot: Snapshot, reading: WaitReason) -> bool:
    """Return True if fewer ranks wait than returned, and they wait in the program's own call or in an evaluation."""
    calls = snapshot.calls_of(reading.victims)
    if len(reading.victims) >= len(reading.culprits) or not calls or set(reading.culprits) & set(reading.victims):
        return False
    if any(call.is_point_to_point or call.operation in CREATING or call.origin.shadow for call in calls):
        return False
    return all(call.origin.phase is Phase.USER for call in calls) or _may_be_evaluation(snapshot, calls)


# --- a cycle ----------------------------------------------------------------------------------------------------------


def _ranks_missing_in_group_creation(snapshot: Snapshot, reading: WaitReason) -> tuple[int, ...]:
    """Return the ranks of a cycle that wait elsewhere while its other ranks create a group with them."""
    calls = _cycle_calls(snapshot, reading)
    creating = [call for call in calls if call.operation in CREATING]
    missing = {rank for slot in _open_calls_containing(snapshot, creating) for rank in slot.missing}
    return tuple(sorted(missing & set(reading.victims) - {call.rank for call in creating}))


def _ranks_in_other_order(snapshot: Snapshot, reading: WaitReason) -> tuple[int, ...]:
    """Return the ranks whose DDP wrappers use groups of equal members in another order than most ranks do; () if none.

    For the user's own calls there is no majority rule: either order may be the intended one.
    """
    calls = _cycle_calls(snapshot, reading)
    slots = _open_calls_containing(snapshot, calls)
    if len(slots) < max(2, len(reading.cycle)) or any(call.origin.phase is Phase.USER for call in calls):
        return ()
    members = {frozenset((*slot.arrived_ranks, *slot.missing)) for slot in slots}
    *few, most = sorted(slots, key=lambda slot: len(slot.arrived_ranks))
    if len(members) > 1 or len(few[-1].arrived_ranks) == len(most.arrived_ranks):
        return ()
    return tuple(sorted({rank for slot in few for rank in slot.arrived_ranks}))


def _open_calls_containing(snapshot: Snapshot, calls: Sequence[Call]) -> list[OpenCalls]:
    """Return the slots (rows of matching calls) in which these calls wait; a completed call has none."""
    indices = snapshot.open_calls_by_call
    return [snapshot.open_slots[indices[call]] for call in calls if call in indices]


def _advise_cycle(snapshot: Snapshot, reading: WaitReason, culprits: tuple[int, ...]) -> list[LabelledLine]:
    """Return the advice for ranks that wait for each other in a cycle."""
    if reading.streams:
        return Cause.STREAMS_CROSS.lines(fact=_running_calls_text(snapshot, reading.streams))
    calls = _cycle_calls(snapshot, reading)
    operations = {call.operation for call in calls}
    if not calls:
        return Cause.KEYS_IN_A_CIRCLE.lines()
    if {parallelism_of(call) for call in calls} == {Parallelism.PIPELINE}:
        return Cause.STAGES_DISAGREE.lines()
    if operations <= POINT_TO_POINT and (loops := advise_unequal_messages(calls, snapshot.issued)):
        return loops
    if operations == {"send"}:
        return Cause.SENDS_FIRST.lines()
    if operations == {"recv"}:
        return Cause.RECEIVES_FIRST.lines()
    if operations == {"send", "recv"} and all(call.peer in reading.cycle for call in calls) and len(calls) == 2:
        return Cause.MESSAGES_MISS_EACH_OTHER.lines()
    if operations & CREATING:
        return Cause.GROUP_NOT_CREATED.lines(who=rank_list(culprits))
    if left := messages_after_loop(snapshot, reading):
        message = next(iter(left.values()))
        return Cause.LEFT_LOOP.lines(who=rank_list(left), operation=message.title)
    *groups, last = dict.fromkeys(f'"{call.group}"' for call in calls if not call.is_point_to_point) or [""]
    if not groups:
        return Cause.CIRCLE.lines()
    if all(call.origin.phase is not Phase.USER for call in calls):
        who = "some ranks" if culprits == reading.culprits else rank_list(culprits)
        return Cause.WRAPPERS_IN_OTHER_ORDER.lines(who=who)
    cause = Cause.GROUPS_IN_OTHER_ORDER if len(groups) == 1 else Cause.GROUPS_IN_A_RING
    return cause.lines(fact=f"{', '.join(shorten_list(groups))} and {last}")


def _running_calls_text(snapshot: Snapshot, ranks: Sequence[int]) -> str:
    """Return text on the call that each of these ranks runs now, while its other calls are queued."""
    first = {stream.rank: stream.started[0] for stream in snapshot.streams}
    calls = [(rank, first[rank]) for rank in ranks]
    sides = ranks_by_value((rank, f'{call.operation} on "{call.group}" at {call.location}') for rank, call in calls)
    return ", ".join(shorten_list([f"{rank_list(own)} began with {call}" for call, own in sides.items()]))


def _cycle_calls(snapshot: Snapshot, reading: WaitReason) -> list[Call]:
    waits = [wait for rank in reading.cycle for wait in snapshot.ranks[rank].waits]
    return [wait.calls[0] for wait in waits if isinstance(wait, CallWait)]
