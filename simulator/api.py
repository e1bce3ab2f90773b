"""The public functions: `simulate` one run, `replay` a recorded one, `explore` many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Policy, Schedule, program_on
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.exploration.by_name import strategy_of
from ddpsim.simulator.exploration.determinism import run_twice
from ddpsim.simulator.exploration.exploration import Exploration
from ddpsim.simulator.exploration.explorer import Explorer, OnProgress
from ddpsim.simulator.exploration.strategy import Strategy
from ddpsim.simulator.faults import Fault, FaultPlan
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.requests import ReadClock, Sleep
from ddpsim.simulator.policies import named
from ddpsim.simulator.policies.replay import Replay
from ddpsim.simulator.process_group.backend import Backend
from ddpsim.simulator.process_group.hazard_watch import HazardWatch
from ddpsim.simulator.replay_call import replay_call
from ddpsim.simulator.result import Result
from ddpsim.simulator.runtime.isolation import Isolation, VirtualTime
from ddpsim.simulator.runtime.threaded_run import ThreadedRun
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.transport.gloo import Gloo
from ddpsim.simulator.transport.memory import Memory
from ddpsim.simulator.transport.transport import Transport

TRANSPORTS: dict[str, Callable[[int], Transport]] = {
    "memory": lambda world_size: Memory(),
    "gloo": Gloo,
}
"""The transports, made for a world size."""

EXPLORATION_BUDGET = Budget(executions=1000, seconds=60.0)
"""What an exploration may use unless told."""

MOST_RANKS = 16_384
"""Each is a thread; systems allow some ten thousand."""

_ONE_AT_A_TIME = threading.Lock()
# What a simulation replaces belongs to the whole process, so a process has one lock for it.


def simulate(
    program: Callable[..., Any],
    world_size: int,
    *,
    args: Sequence[Any] = (),
    policy: str | Policy = named.DEFAULT,
    seed: int = 0,
    transport: str = "memory",
    faults: Sequence[Fault] = (),
    check: str | None = None,
    budget: Budget | None = None,
    check_determinism: bool = False,
    name: str | None = None,
) -> Result:
    """Run `program(rank, *args)` on every rank, one rank at a time, and return what came of it.

    torch.distributed's default group is initialised in each rank. Nothing a rank raises comes out of here: it stands in
    the result, as do deadlocks and mismatches. `name` is what reports and replay tokens call the program.
    `check_determinism` runs the schedule once more, and finds `nondeterminism` if the program did not do the same.

    Raises UsageError for arguments it cannot work with, inside another simulation, or if torch.distributed is
    initialised in this process.
    """
    run = partial(
        _execute,
        program,
        world_size,
        identity=_check_usage(program, world_size, name),
        args=args,
        transport=transport,
        faults=faults,
        check=check,
        budget=budget,
        name=name,
    )
    chosen = _policy(policy, seed)
    return run_twice(lambda each: run(policy=each), chosen) if check_determinism else run(policy=chosen)


def replay(
    program: Callable[..., Any],
    world_size: int,
    schedule: str | Schedule,
    *,
    args: Sequence[Any] = (),
    transport: str = "memory",
    faults: Sequence[Fault] = (),
    check: str | None = None,
    budget: Budget | None = None,
    name: str | None = None,
    strict: bool = True,
) -> Result:
    """Run `program` again under a recorded schedule (a `Result.schedule` or its text).

    Raises ReplayError if the token is damaged, of another version, or of another program, and ReplayDivergedError,
    which shows both sides, if the program no longer offers the recorded choices. Without `strict` each answer is made
    to fit instead, and the default follows the last one; the result's schedule says what was taken.
    """
    identity = _check_usage(program, world_size, name)
    recorded = Replay(Schedule.parse(str(schedule), program=identity))
    result = _execute(
        program,
        world_size,
        identity=identity,
        args=args,
        policy=recorded,
        transport=transport,
        faults=faults,
        check=check,
        budget=budget,
        name=name,
    )
    if strict:
        recorded.check(result.trace)
    return result


def explore(
    program: Callable[..., Any],
    world_size: int,
    *,
    args: Sequence[Any] = (),
    policy: str | Strategy = named.DEFAULT_EXPLORING,
    seed: int = 0,
    depth: int | None = None,
    preemptions: int | None = None,
    budget: Budget | None = None,
    transport: str = "memory",
    faults: Sequence[Fault] = (),
    check: str | None = None,
    check_determinism: bool = False,
    keep_going: bool = False,
    name: str | None = None,
    on_progress: OnProgress | None = None,
) -> Exploration:
    """Run `program` under many schedules, each as `simulate` does, until one fails or all are covered.

    Policies: "dpor" runs one schedule of each class that nobody can tell apart, so a program of collectives once;
    "dfs" runs every schedule, those with at most `preemptions` switches away from a rank that could go on if a bound is
    given; "random" and "pct" draw schedules from `seed`, `seed + 1` and so on, "pct" looking for bugs of `depth`
    orderings (3 unless given). The budget, 1000 executions and 60 seconds unless given, is for all together; when it
    runs out, the verdict is unknown, never pass, so "random" and "pct" pass only what leaves nothing open.

    `keep_going` goes on after a failure, so that all outcomes are counted. `check_determinism` runs each schedule
    twice. `on_progress` is called after each execution. Ctrl-C ends the exploration, and what was found is returned.

    Raises UsageError as `simulate` does.
    """
    identity = _check_usage(program, world_size, name)
    strategy = strategy_of(policy, world_size, seed=seed, depth=depth, preemptions=preemptions)
    _check_options(args=args, transport=transport, check=check, budget=budget)
    run = partial(
        _execute,
        program,
        world_size,
        identity=identity,
        args=args,
        transport=transport,
        faults=faults,
        check=check,
        name=name,
    )

    def execution(chosen: Policy, left: Budget) -> Result:
        if check_determinism:
            return run_twice(lambda each: run(policy=each, budget=left), chosen)
        return run(policy=chosen, budget=left)

    explorer = Explorer(
        strategy, execution, budget or EXPLORATION_BUDGET, keep_going=keep_going, on_progress=on_progress
    )
    return explorer.explore(identity)


def _call(program: Callable[..., Any], args: tuple[Any, ...], rank: int) -> Any:
    __tracebackhide__ = True  # pytest then begins with the program
    return program(rank, *args)


def _execute(
    program: Callable[..., Any],
    world_size: int,
    *,
    identity: str,
    args: Sequence[Any],
    policy: Policy,
    transport: str,
    faults: Sequence[Fault],
    check: str | None,
    budget: Budget | None,
    name: str | None,
) -> Result:
    _check_options(args=args, transport=transport, check=check, budget=budget)
    plan = FaultPlan(faults, world_size)
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise UsageError(
            "simulate was called while another simulation runs in this process, expected one at a time: "
            "let the first one end, or use another process"
        )
    with ExitStack() as stack:
        stack.callback(_ONE_AT_A_TIME.release)
        mover = TRANSPORTS[transport](world_size)
        stack.callback(mover.close)
        kernel = Kernel(world_size, policy=policy, budget=budget or Budget(), faults=plan)
        execution = ThreadedRun(
            partial(_call, program, tuple(args)),
            kernel,
            isolation=Isolation(world_size),
            move_data=mover.move,
            enter_rank=lambda rank: backend.rank_entered(rank),
            enter_thread=lambda: backend.thread_entered(),
            hazards=HazardWatch(world_size),
            name_parameters=lambda rank, indices: backend.parameter_names(rank, indices),
            share_core=not torch.cuda.is_available(),  # the CUDA driver starts threads of its own inside ranks
        )
        backend = Backend(execution.host, check_replicas=check == "replicas")
        _run(execution, backend)
        findings = execution.findings(backend.divergences())
    schedule = Schedule(kernel.choices, identity)
    result = Result(
        world_size=world_size,
        findings=findings,
        returns=tuple(rank.value for rank in execution.host.ranks),
        errors=execution.errors,
        schedule=schedule,
        trace=Trace(tuple(kernel.run.events)),
        virtual_seconds=kernel.run.clock.now,
        program=identity,
        waiting=kernel.run.waiting,
    )
    options = {"args": tuple(args), "transport": transport, "faults": list(faults), "check": check, "name": name}
    return result.with_replay(replay_call(program, world_size, schedule, options))


def _run(execution: ThreadedRun, backend: Backend) -> None:
    """Run with everything in place that a rank's program sees, and take it away again."""
    host = execution.host
    virtual_time = VirtualTime(
        host.is_rank_thread, lambda seconds: host.ask(Sleep(seconds)), lambda: float(host.ask(ReadClock()))
    )
    with backend.installed():
        try:
            virtual_time.install()
            host.threads.install()
            execution.run()
        finally:
            host.threads.uninstall()
            virtual_time.uninstall()


def _check_usage(program: Any, world_size: Any, name: str | None) -> str:
    """Check what every entry point takes; return what the program is called in replay tokens."""
    if not callable(program):
        raise UsageError(f"program is {program!r}, expected a function that takes a rank: pass the function itself")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or not 1 <= world_size <= MOST_RANKS:
        raise UsageError(
            f"world_size is {world_size!r}, expected a whole number from 1 to {MOST_RANKS}: say how many ranks to run"
        )
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed is initialised in this process (or simulate was called inside a rank), expected it not "
            "to be: call simulate outside ranks, after destroy_process_group() or in another process"
        )
    return program_on(str(name or getattr(program, "__qualname__", type(program).__qualname__)), world_size)


def _check_options(*, args: Any, transport: Any, check: Any, budget: Any) -> None:
    if transport not in TRANSPORTS:
        raise UsageError(
            f"transport is {transport!r}, expected 'memory' or 'gloo': give one of these"
            + ("; scenarios run on processes, by run_scenario" if transport == "processes" else "")
        )
    if check not in (None, "replicas"):
        raise UsageError(f"check is {check!r}, expected None or 'replicas': give one of these")
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise UsageError(f"args is {args!r}, expected a sequence of arguments: write args=(value,) for a single one")
    if budget is not None and not isinstance(budget, Budget):
        raise UsageError(f"budget is {budget!r}, expected a Budget: write Budget(seconds=...) for instance")


def _policy(policy: str | Policy, seed: int) -> Policy:
    if not isinstance(policy, str):
        if isinstance(policy, type) or not callable(getattr(policy, "choose", None)):
            raise UsageError(f"policy is {policy!r}, expected a name or an object with choose(point, options)")
        return policy
    if policy not in named.RUNNING:
        raise UsageError(f"policy is {policy!r}, expected one of {', '.join(named.RUNNING)}: give one of these names")
    return named.POLICIES[policy].policy(seed)
