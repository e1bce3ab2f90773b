"""Picks the cause (from `advice/`) of a deadlock in the wait-for graph, and the ranks at fault.

within a rank       thread_findings.py
a dead rank         its exception is the cause
a cycle             _advise_cycle: store keys, messages, creation of groups, then the order of groups
a missing rank      store keys, FSDP2 and similar (parallel_causes.py), messages, _advise_wrappers if a wrapper waits (a
                    wrapper's call says more), then _advise_user_calls
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Call, Origin, Parallelism, Phase, channel_of_message
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock_snapshot import OF_RECORDS, OpenCalls, RankState, Snapshot, WaitReason
from ddpsim.simulator.diagnosis.explain import shorten_list, sites_text, values_with_ranks_text
from ddpsim.simulator.diagnosis.mismatch_causes import WRAPPING, advise_bucket_left_out, advise_post_hooks
from ddpsim.simulator.diagnosis.parallel_causes import advise_waiting, parallelism_of
from ddpsim.simulator.diagnosis.rank_errors import LOST
from ddpsim.simulator.diagnosis.thread_findings import advise_threads
from ddpsim.simulator.diagnosis.uneven import (
    COUNTERPART,
    advise_unequal_messages,
    calls_made_again,
    left_loop_of_messages,
    messages_after_loop,
)
from ddpsim.simulator.operations import CREATING, POINT_TO_POINT
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.waits import CallWait, StoreWait
from ddpsim.simulator.wording import LabelledLine, rank_list, ranks_by_value, values_by_key


class Blame(NamedTuple):
    """The ranks at fault for a deadlock, and the advice, if calls that ranks made before show both."""

    ranks: tuple[int, ...]
    lines: list[LabelledLine]


_OTHERS = frozenset({*CREATING, *POINT_TO_POINT})
"""Calls that are no collectives of a group's data."""


def find_blame(snapshot: Snapshot, reading: WaitReason) -> Blame | None:
    """Return the ranks at fault and the advice, if calls that ranks made before show why they wait; None if not."""
    calls = [call for call in snapshot.calls_of(reading.victims) if call in snapshot.open_calls_by_call]
    indices = dict.fromkeys(snapshot.open_calls_by_call[call] for call in calls)
    slots = [snapshot.open_slots[index] for index in indices]
    missing = reading.culprits if reading.code is Code.DEADLOCK_MISSING_RANK else ()
    again = calls_made_again(snapshot.calls_of(reading.victims), snapshot.issued, missing)
    return (
        (None if again is None else Blame(*again))
        or _taken_by_any_source(snapshot, calls)
        or _not_in_group(snapshot, slots)
        or _other_group_at_line(snapshot, slots)
        or _group_named_apart(slots)
        or _left_loop(snapshot, reading)
    )


def ranks_at_fault(snapshot: Snapshot, reading: WaitReason) -> tuple[int, ...]:
    """Return the ranks at fault: missing or dead ones, those of the cycle, or the few that alone made a call."""
    if reading.code is Code.DEADLOCK_MISSING_RANK and _are_fewer_waiting_than_returned(snapshot, reading):
        return reading.victims
    if reading.code is not Code.DEADLOCK_CYCLE:
        return reading.culprits
    left = tuple(messages_after_loop(snapshot, reading))
    others = left if 0 < 2 * len(left) < len(reading.victims) else reading.culprits
    if absent := _ranks_missing_in_group_creation(snapshot, reading):
        alone = tuple(call.rank for call in snapshot.calls_of(reading.victims) if call.operation in CREATING)
        return absent if len(absent) <= len(alone) else alone
    return _ranks_in_other_order(snapshot, reading) or others


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
    """Return True if ended ranks had made the call that others wait for, but ended before they connected."""
    index = snapshot.open_calls_by_call.get(call)
    if index is None:
        return False
    left_behind = filter(snapshot.open_slots[index].is_waiting_for, snapshot.left_behind)
    return {call.rank for call in left_behind}.issuperset(culprits)


# --- a rank is missing ------------------------------------------------------------------------------------------------


def _advise_user_calls(snapshot: Snapshot, reading: WaitReason, culprits: tuple[int, ...]) -> list[LabelledLine]:
    calls = snapshot.calls_of(reading.victims)
    operation = calls[0].title
    if post_hooks := advise_post_hooks(calls):
        return post_hooks
    if culprits == reading.victims:
        return Cause.ONE_CALL_MORE.lines(who=rank_list(culprits), operation=operation)
    if calls[0].operation in CREATING:
        return Cause.GROUP_NOT_CREATED.lines(who=rank_list(reading.culprits))
    destroyed = {snapshot.ranks[rank].destroyed.get(calls[0].group) for rank in culprits}
    if len(destroyed) == 1 and (site := next(iter(destroyed))) not in (None, NOWHERE):
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
    """True if ranks sync buffers in a step that they have finished: a forward without gradients is no step."""
    origins = [(call.origin, snapshot.ranks[call.rank].optimizer_steps) for call in calls]
    return all(each.phase is Phase.BUFFERS and each.step is not None and each.step <= done for each, done in origins)


def _are_fewer_waiting_than_returned(snapshot: Snapshot, reading: WaitReason) -> bool:
    """Return True if fewer ranks wait than returned, and they wait in the program's own call or in an evaluation."""
    calls = snapshot.calls_of(reading.victims)
    if len(reading.victims) >= len(reading.culprits) or not calls or set(reading.culprits) & set(reading.victims):
        return False
    if any(call.is_point_to_point or call.origin.shadow for call in calls):
        return False
    return all(call.origin.phase is Phase.USER for call in calls) or _may_be_evaluation(snapshot, calls)


# --- a cycle ----------------------------------------------------------------------------------------------------------


def _ranks_missing_in_group_creation(snapshot: Snapshot, reading: WaitReason) -> tuple[int, ...]:
    """Return the ranks of a cycle that wait elsewhere while its other ranks create a group with them."""
    creating = [call for call in _cycle_calls(snapshot, reading) if call.operation in CREATING]
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
    # A rank that takes messages from any source may serve the others: then its wait may be for the wrong one of them.
    serves = any(each.peer == ANY_SOURCE and each.rank in reading.cycle for each in snapshot.issued)
    if operations in ({"send"}, {"recv"}) and not serves:
        messages = [slot.calls[0] for slot in snapshot.open_slots if slot.calls[0].is_point_to_point]
        others = {each.rank: each for each in messages if each.operation not in operations}
        if others.keys() >= set(reading.cycle) and all(others[call.peer or 0].peer != call.rank for call in calls):
            here = f"{calls[0].title} of rank {calls[0].rank} names rank {calls[0].peer}"
            there = others[reading.cycle[1]]
            return Cause.PEERS_DIFFER.lines(fact=f"{here}, whose {there.operation} names rank {there.peer}")
        return (Cause.SENDS_FIRST if "send" in operations else Cause.RECEIVES_FIRST).lines()
    if operations == {"send", "recv"} and all(call.peer in reading.cycle for call in calls) and len(calls) == 2:
        sides = [
            f'the {call.operation} of rank {call.rank} has tag {call.tag} in group "{call.group}"' for call in calls
        ]
        return Cause.MESSAGES_MISS_EACH_OTHER.lines(fact=" and ".join(sides))
    if culprits != (_ranks_missing_in_group_creation(snapshot, reading) or culprits):
        return Cause.ONE_CALL_MORE.lines(who=rank_list(culprits), operation=snapshot.calls_of(culprits)[0].title)
    if operations & CREATING:
        return Cause.GROUP_NOT_CREATED.lines(who=rank_list(culprits))
    if left := messages_after_loop(snapshot, reading):
        return Cause.LEFT_LOOP.lines(who=rank_list(left), operation=next(iter(left.values())).title)
    *groups, last = dict.fromkeys(f'"{call.group}"' for call in calls if not call.is_point_to_point) or [""]
    if not groups:
        return Cause.CIRCLE.lines()
    if all(call.origin.phase is not Phase.USER for call in calls):
        who = "some ranks" if culprits == reading.culprits else rank_list(culprits)
        return Cause.WRAPPERS_MIXED.lines(who=who)
    cause = Cause.GROUPS_IN_OTHER_ORDER if len(groups) == 1 else Cause.GROUPS_IN_A_RING
    return cause.lines(fact=f"{', '.join(shorten_list(groups))} and {last}")


def _running_calls_text(snapshot: Snapshot, ranks: Sequence[int]) -> str:
    """Return text on the call that each of these ranks runs now, while its other calls are queued."""
    first = {stream.rank: stream.started[0] for stream in snapshot.streams}
    calls = [(rank, first[rank]) for rank in ranks]
    sides = ranks_by_value((rank, f'{call.operation} on "{call.group}" at {call.location}') for rank, call in calls)
    return ", ".join(shorten_list([f"{rank_list(own)} began with {call}" for call, own in sides.items()]))


# --- calls that were made before show why ranks wait ------------------------------------------------------------------


def _taken_by_any_source(snapshot: Snapshot, calls: Sequence[Call]) -> Blame | None:
    """Return the blame for a receive from any source that took the message another receive of its rank waits for.

    That rank has then got more messages of the sender than it made receives from it, and another rank's send waits.
    """
    for call in calls:
        if call.operation != "recv" or call.peer == ANY_SOURCE:
            continue
        channel = channel_of_message(call)
        others = [each for each in snapshot.issued if each.is_point_to_point and channel_of_message(each) == channel]
        done = [each for each in others if each not in snapshot.open_calls_by_call]
        taking = [each for each in done if each.operation == "recv" and each.peer == ANY_SOURCE]
        sent = sum(each.operation == "send" and each.rank == call.peer for each in done)
        named = sum(each.operation == "recv" and each.peer == call.peer for each in done)
        waiting = [each for each in others if each not in done and each.operation == "send" and each.rank != call.peer]
        if taking and sent > named and waiting:
            what = f"{call.title} from rank {call.peer}"
            return Blame((call.rank,), Cause.TAKEN_BY_ANY_SOURCE.lines(f"rank {call.rank}", what, sites_text(taking)))
    return None


def _not_in_group(snapshot: Snapshot, slots: Sequence[OpenCalls]) -> Blame | None:
    """Return the blame for missing ranks that came to the others' line with a group in which they are not.

    torch makes no call then. Ranks that arrived have to have done so less often at that line.
    """
    for slot in slots if snapshot.outside else ():
        here = [each for each in snapshot.outside if each.site == slot.calls[0].site]
        times = Counter(each.rank for each in here)
        usual = max(times[rank] for rank in slot.arrived_ranks)
        if who := tuple(rank for rank in slot.missing if times[rank] > usual):
            operation = next(each.operation for each in here if each.rank in who)
            return Blame(who, Cause.NOT_IN_GROUP.lines(rank_list(who), operation, str(slot.calls[0].site)))
    return None


def _other_group_at_line(snapshot: Snapshot, slots: Sequence[OpenCalls]) -> Blame | None:
    """Return the blame for ranks whose n-th call of a line is on another group than the call in which others wait.

    The n-th call of some missing rank has to be complete. (If not, the ranks may use their groups in another order.)
    To blame is the rank that is one side, alone, wherever a call waits for such ranks; if there is none, all ranks of
    both sides.
    """
    waiting = [slot for slot in slots if slot.calls[0].origin.is_of_program and slot.calls[0].operation not in _OTHERS]
    for line, here in values_by_key(((slot.calls[0].site, slot.calls[0].caller), slot) for slot in waiting).items():
        issued = values_by_key((call.rank, call) for call in snapshot.issued if (call.site, call.caller) == line)
        groups: dict[int, str] = {}
        alone: list[set[int]] = []
        is_past = False
        for slot in here:
            first = slot.calls[0]
            nth = issued[first.rank].index(first) if first in issued.get(first.rank, ()) else 0
            found = (call for rank in slot.missing for call in issued.get(rank, [])[nth : nth + 1])
            elsewhere = [call for call in found if call.group != first.group]
            is_past |= any(call not in snapshot.open_calls_by_call for call in elsewhere)
            if elsewhere:
                groups |= {call.rank: _dimension_or_group(call) for call in (*slot.calls, *elsewhere)}
                alone.append({side[0].rank for side in (slot.calls, elsewhere) if len(side) == 1})
        operations = {call.operation for calls in issued.values() for call in calls}  # several: it makes any call
        if is_past and line[0] != NOWHERE and len(operations) == 1:
            odd = tuple(set.intersection(*alone))
            fact = values_with_ranks_text(ranks_by_value(sorted(groups.items())))
            lines = Cause.OTHER_GROUP_AT_LINE.lines(fact=fact, site=str(line[0]))
            return Blame(odd if len(odd) == 1 else tuple(sorted(groups)), lines)
    return None


def _group_named_apart(slots: Sequence[OpenCalls]) -> Blame | None:
    """Return the blame for ranks that create a group of the same ranks under different names."""
    creating = [slot for slot in slots if slot.calls[0].operation in CREATING]
    calls = [call for slot in creating for call in slot.calls if call.signature.members]
    for own in values_by_key((call.signature.members, call) for call in calls).values():
        sides = ranks_by_value((call.rank, f'"{call.group}"') for call in own)
        if len(sides) > 1:
            who = tuple(sorted(call.rank for call in own))
            if all(call.group.partition(" #")[0] == "default" for call in own):
                return Blame(who, Cause.DEFAULT_GROUPS_APART.lines(who=rank_list(who)))
            lines = Cause.GROUP_NAMED_APART.lines(who=rank_list(who), fact=values_with_ranks_text(sides))
            return Blame(who, lines)
    return None


def _left_loop(snapshot: Snapshot, reading: WaitReason) -> Blame | None:
    if reading.code is not Code.DEADLOCK_CYCLE or reading.streams or messages_after_loop(snapshot, reading):
        return None
    calls = [call for call in snapshot.calls_of(reading.victims) if call.origin.is_of_program]
    left = left_loop_of_messages(calls, snapshot.issued)
    return None if left is None else Blame(*left)


def _dimension_or_group(call: Call) -> str:
    """Return the name of a group; of a mesh's group (such as `tp (dp 1)`) only the dimension, which all ranks share."""
    return f'"{call.group.partition(" (")[0] if call.coordinates else call.group}"'


def _cycle_calls(snapshot: Snapshot, reading: WaitReason) -> list[Call]:
    waits = [wait for rank in reading.cycle for wait in snapshot.ranks[rank].waits]
    return [wait.calls[0] for wait in waits if isinstance(wait, CallWait)]
