"""The public functions: `simulate` one run, `replay` a recorded one, `explore` many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ddpsim.simulator.backend_semantics import BackendSemantics
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Policy, Schedule, Start, program_on
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.launching.script import Script, start_of_programs
from ddpsim.simulator.one_run import run_once
from ddpsim.simulator.policies import named
from ddpsim.simulator.policies.guided import Guided
from ddpsim.simulator.policies.replay import Replay
from ddpsim.simulator.result import Result
from ddpsim.simulator.run_options import DEFAULTS, OPTIONS, ReplayKeywords, RunKeywords, RunPlan
from ddpsim.simulator.runtime.gc_freeze import freeze_existing_objects

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    policy: str | Policy = named.DEFAULT,
    seed: int = 0,
    budget: Budget | None = None,
    check_determinism: bool = False,
    **options: Unpack[RunKeywords],
) -> Result:
    """Run `program(rank, *args)` on every rank, by turns, and return what came of it.

    torch.distributed's default group is initialised in each rank. Nothing that a rank raises is raised here: it is in
    the result, as are deadlocks and mismatches. A program may also be a command, as `simulate_program` takes it.
    `check_determinism` runs the schedule once more, and finds `nondeterminism` if the program did not do the same; the
    generators of ranks then start from seeds of their own, unless `alike` is True: what no rank has seeded differs.

    The other options, which `replay`, `explore` and `shrink` take, too:

    `args`: what the program is called with, after its rank. `name`: what reports and replay tokens call it.
    `transport`: "memory" or "gloo". `faults`: a list of Crash, Delay and EarlyReturn.
    `isolation`: "thread" or "process", which is what a rank is. `gpus`: how many virtual GPUs ranks that are processes
    find (docs/howto/gpus.md). `preload`: see `simulate_program`. `one_at_a_time`: ranks that are processes do not
    compute at the same time, which has the same result.
    `check`: "replicas" compares the replicas of a model across ranks, and is `unchecked` where there are none;
    "replicas-if-any" compares those that there are.
    `poison`: the tensors that a call writes hold NaN, or about the largest number of their type, until it is waited
    for, so that a rank that reads too early is found. None, the default, is True in `explore` alone.
    `backend_semantics`: the backend by whose rules calls meet (docs/backends.md): what passes on gloo may hang on NCCL.

    Raises UsageError for arguments it cannot work with, inside another simulation, or if torch.distributed is
    initialised in this process.
    """
    runnable = _runnable(program)
    plan = _plan(runnable, world_size, options, is_checked=check_determinism)
    _check_budget(budget)
    chosen = _policy(policy, seed)
    if isinstance(chosen, (Replay, Guided, Director)):
        plan = replace(plan, start=chosen.start or plan.start)
    return _execution_of(runnable, world_size, plan, is_checked=check_determinism)(chosen, budget)


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
    return simulate(Script(tuple(command)), world_size, **options)


def replay(
    program: Callable[..., Any] | Sequence[str],
    world_size: int,
    schedule: str | Schedule,
    *,
    budget: Budget | None = None,
    strict: bool = True,
    **options: Unpack[ReplayKeywords],
) -> Result:
    """Run `program` again under a recorded schedule (a `Result.schedule` or its text), with options of `simulate`.

    Raises ReplayError if the token is damaged, of another version, or of another program, and ReplayDivergedError,
    which shows both sides, if the program no longer offers the recorded choices. Without `strict` each answer is made
    to fit instead, and the default follows the last one; the result's schedule says what was taken.
    """
    runnable = _runnable(program)
    _check_starts_as_recorded(options)
    plan = _plan(runnable, world_size, options)
    _check_budget(budget)
    recorded = Replay(Schedule.parse(str(schedule), program=plan.identity))
    plan = replace(plan, start=recorded.start or plan.start)
    result = run_once(runnable, world_size, plan, policy=recorded, budget=budget)
    if strict:
        recorded.check(result.trace)
    return result


def explore(
    program: Callable[..., Any] | Sequence[str],
    world_size: int,
    *,
    policy: str | Strategy = named.DEFAULT_EXPLORING,
    seed: int = 0,
    depth: int | None = None,
    preemptions: int | None = None,
    budget: Budget | None = None,
    check_determinism: bool = False,
    keep_going: bool = False,
    on_progress: OnProgress | None = None,
    **options: Unpack[RunKeywords],
) -> Exploration:
    """Run `program` under many schedules, each as `simulate` does, until one fails or all are covered.

    Policies: "dpor" runs one schedule of each class that nobody can tell apart, so a program of collectives once;
    "dfs" runs every schedule, those with at most `preemptions` switches away from a rank that could go on if a bound is
    given; "random" and "pct" draw schedules from `seed`, `seed + 1` and so on, "pct" looking for bugs of `depth`
    orderings (3 unless given). The budget, 1000 executions and 60 seconds unless given, is for all together; when it
    runs out, the verdict is unknown, never pass, so "random" and "pct" pass only what leaves nothing open.

    The other options are those of `simulate`; `poison` is on unless it is turned off. `keep_going` goes on after a
    failure, so that all outcomes are counted. `check_determinism` runs each schedule twice, and lets the ranks of
    functions start unlike, see `simulate`. `on_progress` is called after each execution. Ctrl-C ends the exploration,
    and what was found is returned.

    Raises UsageError as `simulate` does.
    """
    from ddpsim.simulator.exploration.by_name import strategy_of
    from ddpsim.simulator.exploration.explorer import Explorer

    runnable = _runnable(program)
    plan = _plan(runnable, world_size, options, is_checked=check_determinism)
    plan = replace(plan, poison=plan.poison is not False)
    strategy = strategy_of(policy, world_size, seed=seed, depth=depth, preemptions=preemptions)
    _check_strategy(strategy, plan.semantics)
    _check_budget(budget)
    explorer = Explorer(
        strategy,
        _execution_of(runnable, world_size, plan, is_checked=check_determinism),
        budget or EXPLORATION_BUDGET,
        keep_going=keep_going,
        on_progress=on_progress,
    )
    with freeze_existing_objects(0):  # once, as what each execution leaves dies young then
        return explorer.explore(plan.identity)


def _runnable(program: Any) -> Any:
    """A program in the place of a command; anything else as it is."""
    is_command = isinstance(program, (list, tuple)) and program and all(isinstance(word, str) for word in program)
    return Script(tuple(program)) if is_command else program


def _check_starts_as_recorded(options: Mapping[str, object]) -> None:
    if "alike" in options:
        raise UsageError(
            f"alike is {options['alike']!r}, but a recorded schedule says how its ranks start: leave it out"
        )


def _plan(program: Any, world_size: Any, options: Mapping[str, Any], *, is_checked: bool = False) -> RunPlan:
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
    for name, value in options.items():
        _check_option(name, value)
    args, preload, gpus = options.get("args", ()), options.get("preload", ()), options.get("gpus")
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise UsageError(f"args is {args!r}, expected a sequence of arguments: write args=(value,) for a single one")
    isolation, is_program = options.get("isolation"), isinstance(program, Script)
    if is_program:
        _check_program(program, args, isolation)
    _check_preload(program, preload)
    if gpus is not None:
        _check_gpus(gpus, program, isolation)
    faults = options.get("faults", ())
    if not isinstance(faults, Sequence):
        raise UsageError(f"faults is {faults!r}, expected a list of Crash, Delay or EarlyReturn values")
    return RunPlan(
        **{**options, "args": tuple(args), "preload": tuple(preload), "faults": tuple(faults)},
        identity=program_on(_name_of(program, options.get("name")), world_size),
        has_processes=is_program if isolation is None else isolation == "process",
        start=_start_of(program, alike=options.get("alike", False), is_checked=is_checked),
    )


def _check_option(name: str, value: object) -> None:
    """Raise UsageError for an option that there is not, and for a value that is none of its choices."""
    if name not in OPTIONS:
        close = get_close_matches(name, OPTIONS, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "leave it out"
        raise UsageError(f"{name!r} is no option of a run, expected one of {', '.join(OPTIONS)}: {remedy}")
    choices = OPTIONS[name].choices
    if choices and value not in (*choices, DEFAULTS[name]):
        expected = " or ".join(map(repr, choices)) if len(choices) == 2 else f"one of {', '.join(choices)}"
        raise UsageError(
            f"{name} is {value!r}, expected {expected}: give one of these"
            + ("; scenarios run on processes, by run_scenario" if value == "processes" else "")
        )


def _check_program(program: Script, args: Sequence[Any], isolation: str | None) -> None:
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
    if isinstance(program, Script):
        return start_of_programs(alike)
    if alike and not is_checked:
        raise UsageError(
            "alike is True, but ranks of functions start alike unless check_determinism is True: leave it out"
        )
    return Start(is_alike=False) if is_checked and not alike else None


def _check_preload(program: Any, preload: Any) -> None:
    if isinstance(preload, str) or not all(isinstance(name, str) and name for name in preload):
        raise UsageError(f'preload is {preload!r}, expected names of modules: write preload=("transformers",)')
    if preload and not isinstance(program, Script):
        raise UsageError(
            f"preload is {tuple(preload)}, but ranks of functions have what this process has imported: import it here"
        )


def _check_gpus(gpus: Any, program: Any, isolation: str | None) -> None:
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        raise UsageError(f"gpus is {gpus!r}, expected a whole number from 1: say how many virtual GPUs there are")
    if isolation != "process" and not isinstance(program, Script):
        raise UsageError(
            f"gpus is {gpus}, but ranks are threads, which share torch.cuda: give isolation='process', too, or leave "
            "gpus out"
        )


def _name_of(program: Any, name: str | None) -> str:
    own = program.name if isinstance(program, Script) else getattr(program, "__qualname__", type(program).__qualname__)
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
    program: Any, world_size: int, plan: RunPlan, *, is_checked: bool
) -> Callable[[Policy, Budget | None], Result]:
    """What runs the program once under a policy; twice, where it is checked that it does the same both times."""

    def execution(policy: Policy, budget: Budget | None) -> Result:
        run = partial(run_once, program, world_size, plan, budget=budget)
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
