"""What a run that passes says beside its verdict: what was not checked, what only another schedule or a real job would
show, how much was compared, and which faults did not strike."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ddpsim.simulator.calls import ANY_SOURCE, FROM_RANK, Call, Parallelism, Site, channel_of_message
from ddpsim.simulator.diagnosis.hazards import NoticedKind
from ddpsim.simulator.diagnosis.replica_divergence import NOTHING_COMPARED, nothing_compared_finding
from ddpsim.simulator.events import AT_EXIT, EXITED_AT_ONCE, NOT_CHECKED, RAW_MEMORY, EventKind
from ddpsim.simulator.faults import Crash, Delay, EarlyReturn, Strike
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.process_group.creation import DEFAULT_GROUP
from ddpsim.simulator.replicas.replica_judge import ReplicaJudge
from ddpsim.simulator.result import Result
from ddpsim.simulator.run_options import REPLICAS, RunPlan
from ddpsim.simulator.runtime.leaving import is_in_loop
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.wording import count_with_noun, join_names, rank_list, ranks_by_value


def with_limits_of_pass(
    result: Result, program: Any, plan: RunPlan, run: RunState, judge: ReplicaJudge, moved: Iterable[str]
) -> Result:
    """Return a pass with what it did not check, how much was compared, and which faults did not strike. `moved` has the
    notes of the transport."""
    result = dataclasses.replace(result, notes=_notes_of_pass(program, run, result.trace, moved))
    if isinstance(program, Script):
        note = _no_communication_note(str(plan.name or program.name), result)
        result = dataclasses.replace(result, note=note)
    at_calls = [each for each in plan.faults if not isinstance(each, Strike)]
    if at_calls and not result.attempts:
        made = [rank.calls_made for rank in run.ranks]
        result = dataclasses.replace(result, not_struck=_missed_faults_note(at_calls, made))
    if plan.check is not None:
        result = _with_comparison_count(result, plan.check, judge.compared)
        unreduced = f"{count_with_noun(judge.beside, 'parameter')} that optimizers step, and whose gradient no call of"
        beside = [f"{unreduced} DDP and no all_reduce shows"] if judge.beside else []
        uncompared = tuple(f"not compared: {each}" for each in (*beside, *judge.groups_apart()))
        result = dataclasses.replace(result, notes=(*result.notes, *judge.not_finite(), *uncompared))
    return result


def _notes_of_pass(program: Any, run: RunState, trace: Trace, moved: Iterable[str]) -> tuple[str, ...]:
    """Return what a run that passes did not check, and what only another schedule or a real job would show."""
    left = (
        (*_gradients_note(run), *_same_files_note(run), *_left_groups_note(run)) if isinstance(program, Script) else ()
    )
    threads = (f"{text}: another rank may call them in another order" for *_, text in threads_together(trace))
    firsts = [next(texts, "") for texts in (threads, _from_any_source(trace), _looks(run))]
    orders = [f"{first}, and only explore tries that" for first in firsts if first]
    found = (*islice(_saved_keys(trace), 1), *islice(_summed_twice(run), 1))
    return *_notes_of_trace(trace), *found, *orders, *moved, *left


def _notes_of_trace(trace: Trace) -> tuple[str, ...]:
    """Return, once each, what ranks have noted as not checked, and what their exit handlers raised."""
    notes = ((event.rank, event.text) for event in trace if event.kind is EventKind.NOTE)
    said = ranks_by_value(note for note in notes if note[1].startswith((NOT_CHECKED, AT_EXIT, RAW_MEMORY)))
    return tuple(text.replace(AT_EXIT, f"{AT_EXIT}{rank_list(ranks)} raised ", 1) for text, ranks in said.items())


def _saved_keys(trace: Trace) -> Iterator[str]:
    """Yield a text for each call by which torch.distributed.checkpoint ends a save: it removes what ranks have twice by
    the key alone (`dedup_save_plans` of torch/distributed/checkpoint/_dedup_save_plans.py)."""
    for part, site in ((event.call.origin.part, event.call.site) for event in trace if event.call is not None):
        if part is not None and part[:2] == (Parallelism.CHECKPOINT, 'step "write"'):
            what = f"whether ranks saved unlike values under one key of the checkpoint of {site}"
            yield f"{NOT_CHECKED}{what}, which keeps one"


def _summed_twice(run: RunState) -> Iterator[str]:
    """Yield a text for each tensor that a dictionary has under two names, and that a line has summed for both."""
    before: dict[tuple[int, str], Call] = {}
    for call, name in ((each.calls[0], each.detail) for each in run.noticed if each.kind is NoticedKind.NAMED):
        first, before[call.rank, name.text] = before.get((call.rank, name.text), call), call
        is_alike = first is not call and first._replace(sequence=call.sequence)[:5] == call[:5]
        if name.alias and is_alike and call.signature.reduction == "SUM":
            yield f"{name.text} and {name.alias} are one tensor, which {call.operation} at {call.site} has summed twice"


def threads_together(trace: Trace) -> Iterator[tuple[int, str, set[str], str]]:
    """Yield the rank, group, names and text of two threads of a rank that were in the group's collectives at once."""
    waiting: dict[tuple[int, str], tuple[str, Site]] = {}
    for rank, call, thread, kind in ((event.rank, event.call, event.thread, event.kind) for event in trace):
        if call is None or call.peer is not None:
            continue
        mine = thread, call.site
        if kind is EventKind.ISSUE and (other := waiting.get((rank, call.group), mine))[0] != thread:
            both = [f'thread "{name}" ({site})' if name else f"the program ({site})" for name, site in (other, mine)]
            text = f'on rank {rank}, {" and ".join(both)} were in collectives of group "{call.group}" at the same time'
            yield rank, call.group, {other[0], thread}, text
        if kind is EventKind.WAIT:
            waiting[rank, call.group] = mine
        elif kind is EventKind.DONE:
            waiting.pop((rank, call.group), None)


def _from_any_source(trace: Trace) -> Iterator[str]:
    """Yield a text for each rank that received from any source what might have come in another order."""
    senders: dict[tuple[str, int, int], set[int]] = {}
    sites: dict[tuple[str, int, int], Site] = {}
    taken: dict[int, int] = {}
    """By rank whose last calls are receives: whose message the last one from any source took."""
    for kind, call, text in ((event.kind, event.call, event.text) for event in trace):
        if call is not None and kind is EventKind.ISSUE and call.operation != "recv":
            taken.pop(call.rank, None)
        if call is None or call.peer is None:
            continue
        way = channel_of_message(call)
        if kind is EventKind.MATCH and text.startswith(FROM_RANK):
            taken[way[1]] = int(text.removeprefix(FROM_RANK))
            senders.setdefault(way, set()).add(taken[way[1]])
        elif kind is EventKind.ISSUE and call.peer == ANY_SOURCE:
            sites[way] = call.site
        elif kind is EventKind.ISSUE and way in sites and taken.get(call.rank, call.peer) != call.peer:
            lost = f"message of rank {call.peer} for which {call.site} waits"
            yield f"on rank {call.rank}, the receive from any source at {sites[way]} may take the {lost}"
    for way, site in sites.items():
        if len(ranks := senders.get(way, set())) > 1:
            who = f"rank {way[1]} received messages of {rank_list(sorted(ranks))} from any source ({site})"
            yield f"{who}: they may come in another order"


def _looks(run: RunState) -> Iterator[str]:
    """Yield a text for each look of a rank for a key of the store that has come after the key by chance."""
    for site, rank, maker in () if _has_unlike_calls(run) else run.looks:
        if not is_in_loop(site):
            text = f"rank {rank} looked for a key at {site} that rank {maker} had set, with no collective between"
            yield f"{text}: it may find none"


def _has_unlike_calls(run: RunState) -> bool:
    """True if ranks make unlike numbers of calls, as of messages and in groups of some ranks."""
    return any(call.peer is not None or not call.group.startswith(DEFAULT_GROUP) for call in run.all_calls())


def _gradients_note(run: RunState) -> tuple[str, ...]:
    """Return a note on gradients that several ranks computed and that no optimizer used; () if one stepped."""
    ranks = {each.detail for each in run.noticed if each.kind is NoticedKind.GRADIENTS}
    if len(ranks) < 2 or not run.issued or any(rank.optimizer_steps for rank in run.ranks):
        return ()
    what = "whether the ranks' gradients are those of one rank (scale of losses and gradients, samples)"
    return (f"{NOT_CHECKED}{what}: no optimizer stepped, so ddpsim compare does not look at that",)


def _same_files_note(run: RunState) -> tuple[str, ...]:
    """Return notes on the files that several ranks used between the same two calls, and one of them wrote; () if none.

    A rank that uses the store may have learned from it that a file is there. Equal numbers of calls are not the same
    two calls where the ranks' calls are unlike.
    """
    if _has_unlike_calls(run):
        return ()
    with_store = {event.rank for event in run.events if event.kind is EventKind.STORE}
    reads = [
        (writer, reader, Path(at[0]).name, at[2], (*at[:2], "") in run.writers)
        for at, readers in run.readers.items()
        for writer in run.writers.get(at, set())
        for reader in readers - run.writers.get(at, set()) - with_store
    ]
    if looks := [each for each in reads if each[3]]:
        writer, _, folder, line, is_gone = looks[0]
        others = rank_list(sorted({reader for _, reader, *at in looks if at[:2] == [folder, line]}))
        deed, found, verb = ("removed", "it", "remove") if is_gone else ("made", "none", "make")
        what = f"rank {writer} {deed} {folder} where {line} found {found}, and {others} looked there, too"
        then = (
            f"several may try to {verb} it, and all but the first raise File{'NotFound' if is_gone else 'Exists'}Error"
        )
        return (f"{what}, with no collective between: {then}",)
    if reads:
        writers, readers, files, *_ = (sorted(set(each)) for each in zip(*reads, strict=True))
        what = f"{rank_list(readers)} read {join_names(files)}, which {rank_list(writers)} had written"
        return (f"{what}, with no collective between: without a barrier there, the file may be missing",)
    shared = {Path(file).name: sorted(ranks) for (file, *_), ranks in run.writers.items() if len(ranks) > 1}
    if not shared:
        return ()
    ranks = rank_list(sorted(set().union(*shared.values())))
    names = join_names(sorted(shared))
    return (f"{ranks} wrote or removed {names} with no collective between: the last one decides what is left",)


def _left_groups_note(run: RunState) -> tuple[str, ...]:
    """Return a note on the ranks that made a default group and never destroyed it; () if there are none."""
    made = {
        (event.rank, event.call.group)
        for event in run.events
        if event.call is not None and event.call.operation == "new_group" and event.call.group.startswith(DEFAULT_GROUP)
    }
    at_once = {event.rank for event in run.events if event.text == EXITED_AT_ONCE}  # no destructor runs then
    left = sorted({rank for rank, group in made if group not in run.ranks[rank].destroyed} - at_once)
    if not left or len(run.ranks) == 1:
        return ()
    why = "real processes may abort while they exit; call it at the end"
    return (f"{rank_list(left)} ended without destroy_process_group: {why}",)


def _no_communication_note(program: str, result: Result) -> str:
    """Return a note for a passed run that proves nothing, because its ranks never communicated; "" if they did, or if
    there is only one rank."""
    talks = any(event.kind in (EventKind.ISSUE, EventKind.STORE) for event in result.trace)
    if result.world_size == 1 or talks or result.notes:
        return ""
    left = [rank for rank, value in enumerate(result.returns) if value == 0]
    all_ended = f"all {result.world_size} ranks ended without any communication"
    how = f"{rank_list(left)} left by sys.exit(0)" if left else all_ended
    return f"{program} made no process group and used no store: {how}"


def _missed_faults_note(faults: Sequence[Crash | Delay | EarlyReturn], made: Sequence[int]) -> str:
    """Return a note on the faults that did not happen, because their rank made too few calls; "" if all did."""
    return "; ".join(
        f"the fault before call {fault.before_call} of rank {fault.rank} did not happen: "
        f"the rank made only {made[fault.rank]} call{'s' * (made[fault.rank] != 1)} (numbered from 0)"
        for fault in faults
        if fault.before_call >= made[fault.rank]
    )


def _with_comparison_count(result: Result, check: str, compared: Counter[str]) -> Result:
    """Add how often replicas were compared; with check="replicas" and no comparison, the verdict is unknown."""
    if check == REPLICAS and result.comparisons:
        times = "once" if result.comparisons == 1 else f"{result.comparisons} times"
        groups = sorted({group.partition(" (")[0] for group in +compared})  # or dimensions of a mesh
        along = "" if groups in ([], [DEFAULT_GROUP]) else f", along {join_names(groups)}"
        return dataclasses.replace(result, checked=f"replicas were compared {times}{along}")
    if result.comparisons or result.world_size == 1:
        return result
    if check == REPLICAS:
        return dataclasses.replace(result, findings=(*result.findings, nothing_compared_finding(result.world_size)))
    has_stepped = any(event.kind is EventKind.STEP for event in result.trace)
    return dataclasses.replace(result, checked=NOTHING_COMPARED) if has_stepped else result
