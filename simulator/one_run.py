"""Run one execution with ranks as threads or as processes, and make its result."""

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from time import time
from typing import Any, NamedTuple

import torch

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Policy, RankSeeds, Schedule, program_identity
from ddpsim.simulator.debugging.directed_kernel import DirectedKernel
from ddpsim.simulator.debugging.director import RunDirector
from ddpsim.simulator.debugging.late_pdb import PdbReplacement
from ddpsim.simulator.debugging.thread_session_host import ThreadSessionHost
from ddpsim.simulator.diagnosis.partings import name_parting, name_threads
from ddpsim.simulator.errors import InternalError, UsageError, is_unexpected_error, make_internal_error
from ddpsim.simulator.faults import FaultPlan, How, Strike
from ddpsim.simulator.hazards.hazard_watch import HazardWatch
from ddpsim.simulator.hosts import FRESH_STORE, MONITOR_SECONDS
from ddpsim.simulator.imports import torch_too_old_message
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.requests import ReadClock, Sleep
from ddpsim.simulator.pass_notes import threads_together, with_limits_of_pass
from ddpsim.simulator.process_group.backend import SimulatedBackend
from ddpsim.simulator.process_group.user_stores import stores_replaced_on_ranks
from ddpsim.simulator.replicas.replica_judge import ReplicaJudge
from ddpsim.simulator.result import Result, RunInterrupted
from ddpsim.simulator.run_options import DEFAULTS, OPTIONS, RanksOutcome, RunPlan
from ddpsim.simulator.runtime.call_sites import begin_function
from ddpsim.simulator.runtime.gc_freeze import fewer_collections
from ddpsim.simulator.runtime.isolation import Isolation, VirtualTime
from ddpsim.simulator.runtime.isolation.virtual_time import is_subprocess_wait
from ddpsim.simulator.runtime.shared_process import SharedProcessWatch
from ddpsim.simulator.runtime.threaded_run import ThreadedRun
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.transport.gloo import GlooTransport
from ddpsim.simulator.transport.memory import MemoryTransport
from ddpsim.simulator.verdict import Verdict

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
    ran = ran._replace(findings=tuple(name_threads(finding, threads_together(trace)) for finding in ran.findings))
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
        result = with_limits_of_pass(result, program, plan, kernel.run, judge, mover.notes.values())
    result = result.with_replay(_replay_call(program, world_size, result.schedule, plan))
    if kernel.run.life.is_interrupted:
        raise RunInterrupted(result)
    kept = kernel.store.lasting_keys(has_agent_store=os.environ.get(FRESH_STORE) != "1")
    return result, _Earlier((*earlier.results, result), kept, choices)


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
