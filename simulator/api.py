"""The public functions: `simulate` one run, `replay` a recorded one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist

from simulator.budget import Budget
from simulator.calls import Signature
from simulator.choices import Policy, Schedule
from simulator.errors import UsageError
from simulator.faults import Fault, FaultPlan
from simulator.policies.random_walk import RandomWalk
from simulator.policies.replay import Replay
from simulator.policies.round_robin import RoundRobin
from simulator.process_group.backend import Backend
from simulator.process_group.hazards import Hazards
from simulator.result import Result
from simulator.runtime.execution import Execution
from simulator.runtime.isolation import Isolation
from simulator.runtime.rank_thread import Pending
from simulator.trace import Trace
from simulator.transport import memory

POLICIES: dict[str, Callable[[int], Policy]] = {
    "round_robin": lambda seed: RoundRobin(),
    "random": RandomWalk,
}
"""The policies that have a name, made from a seed."""

_ONE_AT_A_TIME = threading.Lock()
# What a simulation replaces belongs to the whole process, so a process has one lock for it.


def simulate(
    program: Callable[..., Any],
    world_size: int,
    *,
    args: Sequence[Any] = (),
    policy: str | Policy = "round_robin",
    seed: int = 0,
    transport: str = "memory",
    faults: Sequence[Fault] = (),
    check: str | None = None,
    budget: Budget | None = None,
    name: str | None = None,
) -> Result:
    """Run `program(rank, *args)` on every rank, one rank at a time, and return what came of it.

    torch.distributed's default group is initialised in each rank. Nothing a rank raises comes out of here: it stands in
    the result, as do deadlocks and mismatches. `name` is what reports and replay tokens call the program.

    Raises UsageError for arguments it cannot work with, inside another simulation, or if torch.distributed is initialised
    in this process.
    """
    identity = _check_usage(program, world_size, name)
    return _execute(
        partial(_call, program, tuple(args)),
        identity,
        world_size,
        policy=_policy(policy, seed),
        transport=transport,
        faults=faults,
        check=check,
        budget=budget,
    )


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
) -> Result:
    """Run `program` again under a recorded schedule (a `Result.schedule` or its text).

    Raises ReplayError if the token is damaged, of another version, or of another program, and ReplayDivergedError if the
    program no longer offers the recorded choices.
    """
    identity = _check_usage(program, world_size, name)
    token = Schedule.parse(str(schedule), program=identity)
    return _execute(
        partial(_call, program, tuple(args)),
        identity,
        world_size,
        policy=Replay(token),
        transport=transport,
        faults=faults,
        check=check,
        budget=budget,
    )


def _call(program: Callable[..., Any], args: tuple[Any, ...], rank: int) -> Any:
    return program(rank, *args)


def _execute(
    program: Callable[[int], Any],
    identity: str,
    world_size: int,
    *,
    policy: Policy,
    transport: str,
    faults: Sequence[Fault],
    check: str | None,
    budget: Budget | None,
) -> Result:
    if transport != "memory":
        raise UsageError(f"transport is {transport!r}, expected 'memory'")
    if check not in (None, "replicas"):
        raise UsageError(f"check is {check!r}, expected None or 'replicas'")
    plan = FaultPlan(faults, world_size)
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise UsageError(
            "simulate was called while another simulation runs in this process, expected one at a time: "
            "let the first one end, or use another process"
        )
    try:
        execution = Execution(
            program,
            world_size,
            policy=policy,
            budget=budget or Budget(),
            faults=plan,
            isolation=Isolation(world_size),
            move=_move,
            enter_rank=lambda rank: backend.rank_entered(rank),
            hazards=Hazards(),
        )
        backend = Backend(execution)
        with backend.installed():
            execution.run()
    finally:
        _ONE_AT_A_TIME.release()
    return Result(
        world_size=world_size,
        findings=execution.all_findings(),
        returns=tuple(rank.value for rank in execution.ranks),
        errors=execution.errors,
        schedule=Schedule(tuple(execution.scheduler.answers), identity),
        trace=Trace(tuple(execution.events)),
        virtual_seconds=execution.clock.now,
        program=identity,
    )


def _move(signature: Signature, pendings: Sequence[Pending]) -> None:
    payloads = [pending.payload for pending in pendings]
    root = None
    if signature.root is not None:
        root = next(i for i, pending in enumerate(pendings) if pending.owner.rank == signature.root)
    memory.move(signature.operation, payloads, signature.reduction, root)


def _check_usage(program: Any, world_size: Any, name: str | None) -> str:
    """Check what every entry point takes; return what the program is called in replay tokens."""
    if not callable(program):
        raise UsageError(f"program is {program!r}, expected a function that takes a rank: pass the function itself")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise UsageError(f"world_size is {world_size!r}, expected a whole number of 1 or more")
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed is initialised in this process (or simulate was called inside a rank), expected it not to "
            "be: call simulate outside ranks, after destroy_process_group() or in another process"
        )
    return f"{name or getattr(program, '__qualname__', type(program).__qualname__)} on {world_size} ranks"


def _policy(policy: str | Policy, seed: int) -> Policy:
    if not isinstance(policy, str):
        if not callable(getattr(policy, "choose", None)):
            raise UsageError(f"policy is {policy!r}, expected a name or an object with choose(point, options)")
        return policy
    if policy not in POLICIES:
        raise UsageError(f"policy is {policy!r}, expected one of {', '.join(POLICIES)}")
    return POLICIES[policy](seed)
