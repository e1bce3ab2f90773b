"""Run one execution with ranks as threads or as processes, and make its result."""

import dataclasses
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import torch

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.calls import ANY_SOURCE, FROM_RANK, Parallelism, Site, channel_of_message
from ddpsim.simulator.choices import Policy, RankSeeds, Schedule, program_identity
from ddpsim.simulator.debugging.directed_kernel import DirectedKernel
from ddpsim.simulator.debugging.director import RunDirector
from ddpsim.simulator.debugging.late_pdb import PdbReplacement
from ddpsim.simulator.debugging.thread_session_host import ThreadSessionHost
from ddpsim.simulator.diagnosis.partings import name_parting, name_threads
from ddpsim.simulator.diagnosis.replica_divergence import NOTHING_COMPARED, nothing_compared_finding
from ddpsim.simulator.errors import InternalError, UsageError, is_unexpected_error, make_internal_error
from ddpsim.simulator.events import AT_EXIT, EXITED_AT_ONCE, NOT_CHECKED, RAW_MEMORY, EventKind
from ddpsim.simulator.faults import Crash, Delay, EarlyReturn, FaultPlan, How, Strike
from ddpsim.simulator.hazards.hazard_watch import HazardWatch
from ddpsim.simulator.hosts import FRESH_STORE, MONITOR_SECONDS
from ddpsim.simulator.imports import torch_too_old_message
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.requests import ReadClock, Sleep
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.process_group.backend import SimulatedBackend
from ddpsim.simulator.process_group.creation import DEFAULT_GROUP
from ddpsim.simulator.process_group.user_stores import stores_replaced_on_ranks
from ddpsim.simulator.replicas.replica_judge import ReplicaJudge
from ddpsim.simulator.result import Result, RunInterrupted
from ddpsim.simulator.run_options import DEFAULTS, OPTIONS, REPLICAS, RanksOutcome, RunPlan
from ddpsim.simulator.runtime.call_sites import begin_function
from ddpsim.simulator.runtime.gc_freeze import fewer_collections
from ddpsim.simulator.runtime.isolation import Isolation, VirtualTime
from ddpsim.simulator.runtime.isolation.virtual_time import is_subprocess_wait
from ddpsim.simulator.runtime.leaving import is_in_loop
from ddpsim.simulator.runtime.shared_process import SharedProcessWatch
from ddpsim.simulator.runtime.threaded_run import ThreadedRun
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.transport.gloo import GlooTransport
from ddpsim.simulator.transport.memory import MemoryTransport
from ddpsim.simulator.verdict import Verdict
from ddpsim.simulator.wording import count_with_noun, join_names, rank_list, ranks_by_value

Transport = MemoryTransport | GlooTransport

TRANSPORTS: dict[str, Callable[[int], Transport]] = {
    "memory": lambda world_size: MemoryTransport(),
    "gloo": GlooTransport,
}
"""The classes of transports, which move the bytes, by name. Each is called with the world size."""

_ONE_AT_A_TIME = threading.Lock()
# A simulation patches modules of the whole process, so only one may run in it at a time.


def run_once(
    program: Any,
    world_size: int,
    plan: RunPlan,
    *,
    policy: Policy,
    budget: Budget | None,
    goes_on: Callable[[], bool] = lambda: True,
) -> Result:
    """Run the planned program once; `goes_on` is asked before another attempt. Raises UsageError inside another
    simulation, and with a torch that is too old."""
    if line := torch_too_old_message():
        raise UsageError(line)
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise UsageError(
            "simulate was called while another simulation runs in this process, expected one at a time: "
            "let the first one end, or use another process"
        )
    try:
        # Around the whole run: when normal garbage collection resumes, only the result is still alive.
        with nullcontext() if plan.has_processes else fewer_collections(world_size):
            return _run_attempts(plan, partial(_run_kernel, program, world_size, plan, policy, budget), goes_on)
    finally:
        _ONE_AT_A_TIME.release()


class _Earlier(NamedTuple):
    """What the attempts before have left for the next."""

    results: tuple[Result, ...] = ()
    keys: Mapping[str, bytes] = {}  # it is never changed
    """What is left in the agent's store."""
    choices: tuple[int, ...] = ()


def _run_attempts(plan: RunPlan, run: Callable[..., tuple[Result, _Earlier]], goes_on: Callable[[], bool]) -> Result:
    """Run the program, and again while a rank fails and restarts are left; return the result of the last attempt, which
    has those before. What lasts is files and the store of torchrun's agent."""
    start, earlier = plan.start or RankSeeds(), _Earlier()
    with ExitStack() as stack:
        disks: Any = ()
        if plan.private_disk:
            from ddpsim.simulator.rank_processes.private_disks import make_private_disks, renew_disk

            disks = stack.enter_context(make_private_disks(plan.private_disk, start.nodes))
        while True:
            result, earlier = run(earlier, disks)
            strikes = [each for each in plan.faults if isinstance(each, Strike)]
            is_preempted = any(each.how is How.TERM for each in strikes)
            has_ended = not result.errors and (result.attempts or result.findings or not is_preempted)
            if has_ended or len(earlier.results) > start.max_restarts or not goes_on():
                return result
            if disks and not result.attempts and strikes and strikes[0].how is How.HOST:
                renew_disk(disks, strikes[0].rank // (result.world_size // start.nodes))


def _run_kernel(
    program: Any, world_size: int, plan: RunPlan, policy: Policy, budget: Budget | None, earlier: _Earlier, disks: Any
) -> tuple[Result, _Earlier]:
    """Create the kernel (the scheduler's core), run the ranks under it, and return the result with its notes, and what
    it leaves for another attempt."""
    begin_function(program)
    restarts = len(earlier.results)
    with ExitStack() as stack:
        processes = None
        if plan.has_processes:
            from ddpsim.simulator.process_ranks import start_process_ranks

            ranks = start_process_ranks(program, world_size, plan, budget, disks, restarts)
            processes = stack.enter_context(ranks)
            if processes.own_rank_count is not None:
                world_size = processes.own_rank_count
                name = str(plan.name or getattr(program, "name", ""))
                plan = dataclasses.replace(plan, identity=program_identity(name, world_size))
        faults = FaultPlan(() if restarts else plan.faults, world_size)
        mover = TRANSPORTS[plan.transport](world_size)
        stack.callback(mover.close)
        if plan.diary and isinstance(mover, MemoryTransport):  # the end of one run is held against that of another
            mover.is_in_rank_order = True
        terms: dict[str, Any] = {"budget": budget or Budget(), "faults": faults}
        terms |= {"semantics": plan.semantics, "kept_keys": earlier.keys}
        director = policy if isinstance(policy, RunDirector) else None
        kernel = (
            Kernel(world_size, policy=policy, **terms)
            if director is None
            else DirectedKernel(world_size, director, are_threads=processes is None, **terms)
        )
        if plan.max_restarts or (plan.start is not None and plan.start.max_restarts):
            kernel.run.agent_waits = MONITOR_SECONDS
        judge = ReplicaJudge(now=lambda: len(kernel.run.events))
        kernel.run.judge = judge.process_report
        try:
            if processes is not None:
                ran = processes.run_ranks(kernel, mover.move_data, plan, director, judge)
            else:
                ran = _run_ranks_as_threads(program, kernel, mover, plan, director, judge)
        except Exception as error:
            if not is_unexpected_error(error):
                raise
            report = make_internal_error(error, "the process that runs the ranks")
            token = Schedule((*earlier.choices, *kernel.schedule), plan.identity, plan.start)
            raise InternalError(f"{report}\nreplay token {token}") from None
    if plan.follows_paths and ran.findings:
        ran = ran._replace(findings=(name_parting(ran.findings[0], kernel.run.noticed), *ran.findings[1:]))
    trace = Trace(tuple(kernel.run.events))
    ran = ran._replace(findings=tuple(name_threads(finding, _threads_together(trace)) for finding in ran.findings))
    choices = (*earlier.choices, *kernel.schedule)
    schedule = Schedule(choices, plan.identity, plan.start)
    plan = dataclasses.replace(plan, poison=ran.has_poisoned)
    result = Result(
        world_size=world_size,
        **ran._asdict(),
        schedule=schedule,
        trace=trace,
        virtual_seconds=kernel.run.clock.now,
        program=plan.identity,
        waiting=kernel.run.waiting,
        comparisons=judge.compared.total() if plan.check else None,
        attempts=earlier.results,
    )
    if result.verdict is Verdict.PASS:
        result = _with_limits_of_pass(result, program, plan, kernel.run, judge, mover)
    result = result.with_replay(_replay_call(program, world_size, result.schedule, plan))
    if kernel.run.life.is_interrupted:
        raise RunInterrupted(result)
    kept = kernel.store.lasting_keys(has_agent_store=os.environ.get(FRESH_STORE) != "1")
    return result, _Earlier((*earlier.results, result), kept, choices)


def _with_limits_of_pass(
    result: Result, program: Any, plan: RunPlan, run: RunState, judge: ReplicaJudge, mover: Transport
) -> Result:
    """Return a pass with what it did not check, how much was compared, and which faults did not strike."""
    result = dataclasses.replace(result, notes=_notes_of_pass(program, run, result.trace, mover))
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


def _notes_of_pass(program: Any, run: RunState, trace: Trace, mover: Transport) -> tuple[str, ...]:
    """Return what a run that passes did not check, and what only another schedule or a real job would show."""
    left = (*_same_files_note(run), *_left_groups_note(run)) if isinstance(program, Script) else ()
    threads = (f"{text}: another rank may call them in another order" for *_, text in _threads_together(trace))
    firsts = [next(texts, "") for texts in (threads, _from_any_source(trace), _looks(run))]
    orders = [f"{first}, and only explore tries that" for first in firsts if first]
    return *_notes_of_trace(trace), *islice(_saved_keys(trace), 1), *orders, *mover.notes.values(), *left


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


def _threads_together(trace: Trace) -> Iterator[tuple[int, str, set[str], str]]:
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


_LONGEST_LITERAL = 80
"""The length up to which an argument is written in a replay line; a longer argument is written as `...`."""
_MOST_ITEMS = 40


def _replay_call(program: Callable[..., Any], world_size: int, schedule: Schedule, plan: RunPlan) -> str:
    """Return the `replay(...)` call that repeats a run. A value that has no short literal is written as `...`."""
    arguments = [_program_literal(program), str(world_size), f'"{schedule}"']
    for name, option in OPTIONS.items():
        value = getattr(plan, name)
        if option.is_replayed and value not in (DEFAULTS[name], None, False):
            arguments.append(f"{name}={list(value) if name == 'faults' else _short_literal(value)}")
    return f"replay({', '.join(arguments)})"


def _program_literal(program: Callable[..., Any]) -> str:
    if isinstance(command := getattr(program, "command", None), tuple):  # a `Script`, not a function
        return _short_literal(list(command))
    name = getattr(program, "__name__", "")
    return name if name.isidentifier() else "program"


def _short_literal(value: Any) -> str:
    """Return a short literal for a value, of which only a few items are read; `...` if there is none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        text = repr(value) if not isinstance(value, str) or len(value) <= _LONGEST_LITERAL else "..."
    elif type(value) in (tuple, list) and len(value) <= _MOST_ITEMS:
        items = [_short_literal(item) for item in value]
        inner = ", ".join(items)
        in_tuple = f"({inner},)" if len(items) == 1 else f"({inner})"
        text = "..." if "..." in items else f"[{inner}]" if type(value) is list else in_tuple
    else:
        text = "..."
    return text if len(text) <= _LONGEST_LITERAL else "..."


def _run_ranks_as_threads(
    program: Callable[..., Any],
    kernel: Kernel,
    mover: Transport,
    plan: RunPlan,
    director: RunDirector | None,
    judge: ReplicaJudge,
) -> RanksOutcome:
    """Run the program with a thread per rank, while the simulated backend replaces torch.distributed's."""
    world_size = len(kernel.run.ranks)
    hazards = HazardWatch(world_size, kernel.handle)

    def begun(rank: int) -> Any:
        __tracebackhide__ = True  # so pytest's tracebacks begin in the program
        session_host.prepare_program(rank)
        with nullcontext() if host.paths is None else host.paths.followed(rank):
            return program(rank, *plan.args)

    def enter_thread() -> None:
        backend.thread_entered()
        if host.paths is not None:
            host.paths.follow_thread()

    isolation = Isolation(world_size, is_alike=plan.start is None or plan.start.is_alike)
    execution = ThreadedRun(
        begun,
        kernel,
        isolation=isolation,
        move_data=mover.move_data,
        enter_rank=lambda rank: backend.rank_entered(rank),
        enter_thread=enter_thread,
        hazards=hazards,
        name_parameters=lambda rank, indices: backend.parameter_names(rank, indices),
        follows=plan.follows_paths,
        share_core=not torch.cuda.is_available(),  # the CUDA driver starts threads of its own inside ranks
    )
    host = execution.host
    session_host = ThreadSessionHost(host, kernel, isolation.switch_rank, director)
    if director is not None:
        director.open_debugger = session_host.open_debugger
        host.prompt_server.reader = director.read
    backend = SimulatedBackend(
        host,
        checks_replicas=plan.check is not None,
        makes_groups=plan.default_group,
        poisons=bool(plan.poison),
        semantics=plan.semantics,
        recording=plan.recording,
        ranks=range(world_size),
    )
    shared = SharedProcessWatch(lambda: host.running_thread.rank if host.is_rank_thread() else None, program)
    _run_with_patches(execution, backend, shared, PdbReplacement(session_host), is_alike=plan.has_equal_clocks)
    findings = *execution.findings(judge.findings()), *shared.findings()
    returns = tuple(rank.value for rank in host.ranks)
    return RanksOutcome(findings, returns, execution.errors, hazards.has_poisoned)


def _run_with_patches(execution: ThreadedRun, backend: SimulatedBackend, *others: Any, is_alike: bool) -> None:
    """Install all patches that ranks need, run them, and remove the patches."""
    host = execution.host
    virtual_time = VirtualTime(
        host.is_rank_thread,
        lambda seconds: host.send_request(Sleep(seconds)),
        lambda: (host.running_thread.rank, float(host.send_request(ReadClock()))),
        is_subprocess_wait,
        is_alike=is_alike,
        start=int(time()),
    )
    with backend.installed(), stores_replaced_on_ranks(host), ExitStack() as stack:
        for patch in (virtual_time, host.threads, *others):
            stack.callback(patch.uninstall)
            patch.install()
        execution.run()
