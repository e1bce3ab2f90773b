"""The public functions: `simulate` one run, `replay` a recorded one, `explore` many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ddpsim.simulator.backend_semantics import BACKENDS, GLOO, BackendSemantics
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Policy, Schedule, Start, program_on
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.launching.program import Program, start_of_programs
from ddpsim.simulator.one_run import CHECKS, ISOLATIONS, TRANSPORTS, run_once
from ddpsim.simulator.policies import named
from ddpsim.simulator.policies.guided import Guided
from ddpsim.simulator.policies.replay import Replay
from ddpsim.simulator.result import Result
from ddpsim.simulator.run_options import RunOptions
from ddpsim.simulator.runtime.garbage import set_aside

if TYPE_CHECKING:
    from ddpsim.simulator.exploration.exploration import Exploration
    from ddpsim.simulator.exploration.explorer import OnProgress
    from ddpsim.simulator.exploration.strategy import Strategy

EXPLORATION_BUDGET = Budget(executions=1000, seconds=60.0)
"""What an exploration may use unless told."""

MOST_RANKS = 16_384
"""Each is a thread; systems allow some ten thousand."""


def simulate(
    program: Callable[..., Any] | Sequence[str],
    world_size: int,
    *,
    args: Sequence[Any] = (),
    policy: str | Policy = named.DEFAULT,
    seed: int = 0,
    transport: str = "memory",
    faults: Sequence[Fault] = (),
    check: str | None = None,
    poison: bool = False,
    budget: Budget | None = None,
    check_determinism: bool = False,
    name: str | None = None,
    isolation: str | None = None,
    gpus: int | None = None,
    alike: bool = False,
    preload: Sequence[str] = (),
    one_at_a_time: bool = False,
    backend_semantics: str = GLOO.name,
) -> Result:
    """Run `program(rank, *args)` on every rank, by turns, and return what came of it.

    torch.distributed's default group is initialised in each rank. Nothing a rank raises comes out of here: it stands in
    the result, as do deadlocks and mismatches. A program may also be a command, as `simulate_program` takes it. `name`
    is what reports and replay tokens call the program.
    `check="replicas"` compares the replicas of a model across ranks, and is `unchecked` where there are none;
    `"replicas-if-any"` compares those that there are. With `poison` the tensors that a call is to write hold NaN, or
    about the largest number of their type, until it is waited for: who reads too early cannot be right by luck.
    `check_determinism` runs the schedule once more, and finds `nondeterminism` if the program did not do the same.
    The generators of ranks then start from seeds of their own, unless `alike` is True: what no rank has seeded differs.
    `gpus` is how many virtual GPUs a program finds (docs/howto/gpus.md), for `isolation="process"`. `preload` is for
    `simulate_program`.
    Ranks that are processes may compute beside each other, which comes to the same; `one_at_a_time` forbids it.
    `backend_semantics` is by whose rules calls meet (docs/backends.md): what passes by those of gloo may hang on NCCL.

    Raises UsageError for arguments it cannot work with, inside another simulation, or if torch.distributed is
    initialised in this process.
    """
    runnable = _runnable(program)
    options = _options(
        runnable,
        world_size,
        args,
        transport=transport,
        faults=faults,
        check=check,
        poison=poison,
        name=name,
        gpus=gpus,
        one_at_a_time=one_at_a_time,
        backend_semantics=backend_semantics,
        isolation=isolation,
        start=_start_of(runnable, alike=alike, is_checked=check_determinism),
        preload=preload,
    )
    _check_budget(budget)
    chosen = _policy(policy, seed)
    if isinstance(chosen, (Replay, Guided, Director)):
        options = options._replace(start=chosen.start or options.start)
    return _execution_of(runnable, world_size, options, is_checked=check_determinism)(chosen, budget)


def simulate_program(command: Sequence[str], world_size: int, **options: Any) -> Result:
    """Run a file or a module as `__main__` on every rank, as torchrun does, and return what came of it.

    `command` is a file and its arguments, as in `["train.py", "--epochs", "2"]`, or `["-m", "package.train", ...]`.
    Each rank is a process of its own, with torchrun's environment; no group exists until the program makes it. Options
    are those of `simulate`, but for `args` and `isolation`. As under torchrun, ranks start unlike, with other random
    numbers and another order of the same set of strings on neighbouring ranks, each time the same; with `alike` they
    start alike. `preload` names modules that are slow to import: they are loaded once, before the ranks are forked.

    Raises UsageError as `simulate` does, and if there is no such program.
    """
    if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
        raise UsageError(f'command is {command!r}, expected a list of words: write ["train.py", "--epochs", "2"]')
    return simulate(Program(tuple(command)), world_size, **options)


def replay(
    program: Callable[..., Any] | Sequence[str],
    world_size: int,
    schedule: str | Schedule,
    *,
    args: Sequence[Any] = (),
    transport: str = "memory",
    faults: Sequence[Fault] = (),
    check: str | None = None,
    poison: bool = False,
    budget: Budget | None = None,
    name: str | None = None,
    strict: bool = True,
    isolation: str | None = None,
    gpus: int | None = None,
    preload: Sequence[str] = (),
    one_at_a_time: bool = False,
    backend_semantics: str = GLOO.name,
) -> Result:
    """Run `program` again under a recorded schedule (a `Result.schedule` or its text).

    Raises ReplayError if the token is damaged, of another version, or of another program, and ReplayDivergedError,
    which shows both sides, if the program no longer offers the recorded choices. Without `strict` each answer is made
    to fit instead, and the default follows the last one; the result's schedule says what was taken.
    """
    runnable = _runnable(program)
    options = _options(
        runnable,
        world_size,
        args,
        transport=transport,
        faults=faults,
        check=check,
        poison=poison,
        name=name,
        gpus=gpus,
        one_at_a_time=one_at_a_time,
        backend_semantics=backend_semantics,
        isolation=isolation,
        start=_start_of(runnable, alike=False, is_checked=False),
        preload=preload,
    )
    _check_budget(budget)
    recorded = Replay(Schedule.parse(str(schedule), program=options.identity))
    options = options._replace(start=recorded.start or options.start)
    result = run_once(runnable, world_size, options, policy=recorded, budget=budget)
    if strict:
        recorded.check(result.trace)
    return result


def explore(
    program: Callable[..., Any] | Sequence[str],
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
    poison: bool = True,
    check_determinism: bool = False,
    keep_going: bool = False,
    name: str | None = None,
    on_progress: OnProgress | None = None,
    isolation: str | None = None,
    gpus: int | None = None,
    alike: bool = False,
    preload: Sequence[str] = (),
    one_at_a_time: bool = False,
    backend_semantics: str = GLOO.name,
) -> Exploration:
    """Run `program` under many schedules, each as `simulate` does, until one fails or all are covered.

    Policies: "dpor" runs one schedule of each class that nobody can tell apart, so a program of collectives once;
    "dfs" runs every schedule, those with at most `preemptions` switches away from a rank that could go on if a bound is
    given; "random" and "pct" draw schedules from `seed`, `seed + 1` and so on, "pct" looking for bugs of `depth`
    orderings (3 unless given). The budget, 1000 executions and 60 seconds unless given, is for all together; when it
    runs out, the verdict is unknown, never pass, so "random" and "pct" pass only what leaves nothing open.

    `poison`, as of `simulate`, is on unless it is turned off. `keep_going` goes on after a failure, so that all
    outcomes are counted. `check_determinism` runs each schedule twice, and lets the ranks of functions start unlike,
    see `simulate`. `on_progress` is called after each execution. Ctrl-C ends the exploration, and what was found is
    returned.

    Raises UsageError as `simulate` does.
    """
    from ddpsim.simulator.exploration.by_name import strategy_of
    from ddpsim.simulator.exploration.explorer import Explorer

    runnable = _runnable(program)
    options = _options(
        runnable,
        world_size,
        args,
        transport=transport,
        faults=faults,
        check=check,
        poison=poison,
        name=name,
        gpus=gpus,
        one_at_a_time=one_at_a_time,
        backend_semantics=backend_semantics,
        isolation=isolation,
        start=_start_of(runnable, alike=alike, is_checked=check_determinism),
        preload=preload,
    )
    strategy = strategy_of(policy, world_size, seed=seed, depth=depth, preemptions=preemptions)
    _check_strategy(strategy, options.semantics)
    _check_budget(budget)
    explorer = Explorer(
        strategy,
        _execution_of(runnable, world_size, options, is_checked=check_determinism),
        budget or EXPLORATION_BUDGET,
        keep_going=keep_going,
        on_progress=on_progress,
    )
    with set_aside(0):  # once, as what each execution leaves dies young then
        return explorer.explore(options.identity)


def _runnable(program: Any) -> Any:
    """A program in the place of a command; anything else as it is."""
    is_command = isinstance(program, (list, tuple)) and program and all(isinstance(word, str) for word in program)
    return Program(tuple(program)) if is_command else program


def _options(
    program: Any,
    world_size: Any,
    args: Any,
    *,
    transport: Any,
    faults: Sequence[Fault],
    check: Any,
    poison: bool,
    name: str | None,
    gpus: Any,
    one_at_a_time: bool,
    backend_semantics: Any,
    isolation: Any,
    start: Start | None,
    preload: Any,
) -> RunOptions:
    """What every entry point takes, checked."""
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
    if transport not in TRANSPORTS:
        raise UsageError(
            f"transport is {transport!r}, expected 'memory' or 'gloo': give one of these"
            + ("; scenarios run on processes, by run_scenario" if transport == "processes" else "")
        )
    if check not in (None, *CHECKS):
        names = " or ".join(map(repr, CHECKS))
        raise UsageError(f"check is {check!r}, expected None, {names}: give one of these")
    if backend_semantics not in BACKENDS:
        raise UsageError(
            f"backend_semantics is {backend_semantics!r}, expected one of {', '.join(BACKENDS)}: give one of these"
        )
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise UsageError(f"args is {args!r}, expected a sequence of arguments: write args=(value,) for a single one")
    if isolation not in (None, *ISOLATIONS):
        raise UsageError(f"isolation is {isolation!r}, expected 'thread' or 'process': give one of these")
    if isinstance(program, Program):
        _check_program(program, args, isolation)
    _check_preload(program, preload)
    if gpus is not None:
        _check_gpus(gpus, program, isolation)
    identity = program_on(_name_of(program, name), world_size)
    return RunOptions(
        identity,
        args,
        transport,
        faults,
        check,
        name,
        gpus,
        one_at_a_time,
        isolation,
        start,
        tuple(preload),
        poison,
        BACKENDS[backend_semantics],
    )


def _check_program(program: Program, args: Sequence[Any], isolation: str | None) -> None:
    if isolation == "thread":
        raise UsageError(
            f"isolation is 'thread', but {program.name} is run as __main__ of a process of its own: leave isolation out"
        )
    if args:
        raise UsageError(f"args is {args!r}, but a program has its arguments in its command: put them there")
    program.check()


def _start_of(program: Any, *, alike: bool, is_checked: bool) -> Start | None:
    """How the ranks of a run start. Those of functions start unlike where it is checked that they do the same.

    Raises UsageError if they start alike in any case.
    """
    if isinstance(program, Program):
        return start_of_programs(alike)
    if alike and not is_checked:
        raise UsageError(
            "alike is True, but ranks of functions start alike unless check_determinism is True: leave it out"
        )
    return Start(is_alike=False) if is_checked and not alike else None


def _check_preload(program: Any, preload: Any) -> None:
    if isinstance(preload, str) or not all(isinstance(name, str) and name for name in preload):
        raise UsageError(f'preload is {preload!r}, expected names of modules: write preload=("transformers",)')
    if preload and not isinstance(program, Program):
        raise UsageError(
            f"preload is {tuple(preload)}, but ranks of functions have what this process has imported: import it here"
        )


def _check_gpus(gpus: Any, program: Any, isolation: str | None) -> None:
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        raise UsageError(f"gpus is {gpus!r}, expected a whole number from 1: say how many virtual GPUs there are")
    if isolation != "process" and not isinstance(program, Program):
        raise UsageError(
            f"gpus is {gpus}, but ranks are threads, which share torch.cuda: give isolation='process', too, or leave "
            "gpus out"
        )


def _name_of(program: Any, name: str | None) -> str:
    own = program.name if isinstance(program, Program) else getattr(program, "__qualname__", type(program).__qualname__)
    return str(name or own)


def _check_budget(budget: Any) -> None:
    if budget is not None and not isinstance(budget, Budget):
        raise UsageError(f"budget is {budget!r}, expected a Budget: write Budget(seconds=...) for instance")


def _check_strategy(strategy: Strategy, semantics: BackendSemantics) -> None:
    # One that takes schedules for the same knows what ranks see of each other, on gloo.
    if getattr(strategy, "outside", "") and not semantics.is_like_gloo:
        raise UsageError(
            f"backend_semantics is {semantics.name!r}, whose rules policy 'dpor' does not know: take policy 'dfs' "
            "or 'random'"
        )


def _execution_of(
    program: Any, world_size: int, options: RunOptions, *, is_checked: bool
) -> Callable[[Policy, Budget | None], Result]:
    """What runs the program once under a policy; twice, where it is checked that it does the same both times."""

    def execution(policy: Policy, budget: Budget | None) -> Result:
        run = partial(run_once, program, world_size, options, budget=budget)
        if not is_checked:
            return run(policy=policy)
        from ddpsim.simulator.exploration.determinism import run_twice

        return run_twice(lambda each: run(policy=each), policy)

    return execution


def _policy(policy: str | Policy, seed: int) -> Policy:
    if not isinstance(policy, str):
        if isinstance(policy, type) or not callable(getattr(policy, "choose", None)):
            raise UsageError(f"policy is {policy!r}, expected a name or an object with choose(point, options)")
        return policy
    if policy not in named.RUNNING:
        raise UsageError(f"policy is {policy!r}, expected one of {', '.join(named.RUNNING)}: give one of these names")
    return named.POLICIES[policy].policy(seed)
