"""The public functions: `simulate` one run, `replay` a recorded one, `explore` many."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Policy, RankSeeds, Schedule, identity_in_words, program_identity
from ddpsim.simulator.debugging.director import RunDirector
from ddpsim.simulator.diagnosis.rank_errors import MAY_FOLLOW
from ddpsim.simulator.errors import SimulatorError, UsageError
from ddpsim.simulator.faults import Strike
from ddpsim.simulator.hosts import LAUNCHERS_THAT_RESTART
from ddpsim.simulator.launching.script import Script, program_seeds
from ddpsim.simulator.one_run import run_once
from ddpsim.simulator.policies import named
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy, ReplayPolicy
from ddpsim.simulator.result import Result, RunInterrupted
from ddpsim.simulator.run_options import DEFAULTS, OPTIONS, REFERENCE, ReplayKeywords, RunKeywords, RunPlan
from ddpsim.simulator.runtime.gc_freeze import freeze_existing_objects
from ddpsim.simulator.verdict import Verdict
from ddpsim.simulator.wording import LabelledLine, count_with_noun

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddpsim.simulator.comparing.judgement import Comparison
    from ddpsim.simulator.comparing.records import Recording
    from ddpsim.simulator.comparing.runs import Reference
    from ddpsim.simulator.exploration.exploration import Exploration
    from ddpsim.simulator.exploration.explorer import OnProgress
    from ddpsim.simulator.exploration.strategy import Strategy
    from ddpsim.simulator.exploration.workers import Workers

EXPLORATION_BUDGET = Budget(executions=1000, seconds=60.0)

_MOST_FOLLOWED, _SECONDS_FOLLOWED = 64, 60.0
"""The largest world size, and the seconds, of a repetition that follows the paths of ranks."""

MOST_RANKS = 16_384
"""The largest world size. Each rank is a thread, and systems allow about this many threads."""


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
    """Run `program(rank, *args)` on every rank under a deterministic scheduler, and return the result.

    torch.distributed's default group is initialised in each rank. An exception in a rank is not raised here: the result
    contains it, as well as deadlocks and mismatches. A program may also be a command, as for `simulate_program`.
    `check_determinism` runs the same schedule twice, and finds `nondeterminism` if the program behaves differently.
    The random generators of ranks then have different seeds, unless `alike` is True, so that missing seeding shows.
    `alike` makes the clocks of ranks equal, too, which otherwise differ by some hundredths of a second.

    The other options, which `replay`, `explore` and `shrink` take, too:

    `args`: arguments of the program after its rank. `name`: its name in reports and replay tokens.
    `transport`: "memory" or "gloo". `faults`: a list of Crash, Delay and EarlyReturn.
    `isolation`: each rank is a "thread" or a "process". `gpus`: number of virtual GPUs for ranks that are processes
    (docs/howto/gpus.md). `nnodes`, `launcher`, `private_disk`, `max_restarts`: hosts and restarts of a program's
    ranks, see docs/howto/nodes_and_restarts.md. `preload`: see `simulate_program`. `one_at_a_time`: ranks that are
    processes compute one after another, with the same result.
    `check`: "replicas" compares the replicas of a model across ranks, and finds `unchecked` if there are none;
    "replicas-if-any" does not require any; "reference" holds the training against one rank, as `compare` does.
    `poison`: the output buffers of a call are filled with NaN, or about the largest value of their type, until the call
    is waited for, so that early reads are found. The default, None, means True in `explore` and False elsewhere.
    `default_group`: False lets the ranks make their default group themselves.
    `backend_semantics`: the backend whose matching and blocking rules apply (docs/backends.md): a program that passes
    on gloo may hang on NCCL.

    Raises UsageError for wrong arguments, inside another simulation, or if torch.distributed is initialised.
    """
    runnable, plan = make_plan(program, world_size, options, budget, is_checked=check_determinism)
    chosen = _policy_by_name(policy, seed)
    if isinstance(chosen, (ReplayPolicy, GuidedPolicy, RunDirector)):
        plan = with_recorded_start(plan, chosen.start)
    return _Executions(runnable, world_size, plan, options, is_checked=check_determinism)(chosen, budget)


def simulate_program(command: Sequence[str], world_size: int, **options: Any) -> Result:
    """Run a file or a module as `__main__` on every rank, as torchrun does, and return the result.

    `command` is a file and its arguments, as in `["train.py", "--epochs", "2"]`, or `["-m", "package.train", ...]`.
    Each rank is a process with torchrun's environment variables; no group exists until the program creates it. Options
    are those of `simulate` except `args` and `isolation`. As under torchrun, ranks have different random and hash
    seeds, so neighbouring ranks draw other numbers and iterate over sets of strings in another order; every run uses
    the same seeds. With `alike`, all ranks have equal seeds. `preload` names modules that are slow to import: they are
    imported once, before the ranks are forked.

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

    Raises ReplayError if the token is damaged, of another version, or of another program. Raises ReplayDivergedError,
    which shows both runs, if a recorded choice is not possible any more. Without `strict`, such a choice is taken
    modulo the number of options, and the default follows the last one; the result's schedule has the choices made.
    If the run does not find what the recorded one found, the result's `unlike` says so.
    """
    given: Mapping[str, object] = options
    if "alike" in given:
        raise UsageError(
            f"alike is {given['alike']!r}, but a recorded schedule already has the seeds of its ranks: leave it out"
        )
    runnable, plan = make_plan(program, world_size, options, budget)
    given_schedule = Schedule.parse(str(schedule), program=plan.identity)
    recorded = ReplayPolicy(given_schedule)
    plan = with_recorded_start(plan, recorded.start)
    result = _Executions(runnable, world_size, plan, options)(recorded, budget)
    if strict:
        recorded.check_divergence(result.trace)
    return result.compared_with(given_schedule)


_WENT_ANOTHER_WAY = LabelledLine(
    "note",
    "a second run, with a tracer, went another way, so it shows no cause: something else than the schedule decides, "
    "such as a file that the first run left, or a clock",
)


def name_parting(
    result: Result,
    program: Callable[..., Any] | Sequence[str],
    world_size: int,
    *,
    budget: Budget | None = None,
    **options: Unpack[ReplayKeywords],
) -> Result:
    """Return a failed result with the place where the paths of its ranks part, which a repetition of the run shows.

    The repetition is under the same schedule, with a tracer, and hides the program's output. `budget` is that of the
    first run, whose steps show. Returns the result itself if there is no such place. If the repetition takes another
    way, a note says so. Raises RunInterrupted with the result itself if the repetition is interrupted.
    """
    may_part = result.findings and not result.errors and result.findings[0].code.value.startswith(MAY_FOLLOW)
    if not may_part or world_size > _MOST_FOLLOWED:
        return result
    runnable, plan = make_plan(program, world_size, options, None)
    plan = replace(plan, start=result.schedule.start or plan.start, follows_paths=True)
    policy, budget = ReplayPolicy(result.schedule), (budget or Budget()).for_repetition(_SECONDS_FOLLOWED)
    hidden = io.StringIO()
    try:
        with redirect_stdout(hidden), redirect_stderr(hidden):
            again = run_once(runnable, world_size, plan, policy=policy, budget=budget)
    except (SimulatorError, OSError):  # a program whose first run left files, for example, may fail in another way
        return result
    except KeyboardInterrupt:
        raise RunInterrupted(result) from None
    if policy.divergence is None and again.trace.digest() == result.trace.digest():
        return replace(result, findings=again.findings)
    if again.verdict is Verdict.UNKNOWN:  # it was too slow
        return result
    first, *rest = result.findings
    return replace(result, findings=(replace(first, lines=(*first.lines, _WENT_ANOTHER_WAY)), *rest))


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
    jobs: int | Workers | None = None,
    **options: Unpack[RunKeywords],
) -> Exploration:
    """Run `program` under many schedules, each as `simulate` does, until one fails or all are covered.

    Policies: "dpor" (dynamic partial-order reduction) runs one schedule of each class of equivalent ones, so a program
    of collectives runs once; the last tenth of its budget goes to random schedules. "dfs" runs every schedule;
    `preemptions` bounds the switches away from a rank that could continue. "random" and "pct" draw schedules from
    `seed`, `seed + 1` and so on; "pct" looks for bugs of `depth` orderings (default 3). The budget, by default 1000
    executions and 60 seconds, is for all schedules together. When it runs out, the verdict is unknown, never pass:
    "random" and "pct" pass only programs without any choice.

    The other options are those of `simulate`; `poison` is on by default. `keep_going` continues after a failure, to
    count all outcomes. `check_determinism` runs each schedule twice, and gives ranks that run a function different
    seeds, see `simulate`. `on_progress` is called after each execution. `jobs` processes run the executions, with the
    same result as one; the program must be a function that can be pickled. Ctrl-C ends the
    exploration, which returns what it has found.

    Raises UsageError as `simulate` does.
    """
    from ddpsim.simulator.exploration.explorer import Explorer
    from ddpsim.simulator.exploration.parts import executions_of_workers
    from ddpsim.simulator.exploration.strategy import strategy_by_name
    from ddpsim.simulator.exploration.workers import Workers, check_can_be_sent

    workers = jobs if isinstance(jobs, Workers) else Workers(jobs)
    runnable, plan = make_plan(program, world_size, options, budget, is_checked=check_determinism)
    if plan.max_restarts:
        raise UsageError(
            f"max_restarts is {plan.max_restarts}, but no exploration varies several attempts: leave it out"
        )
    if plan.has_reference and workers.cluster:
        raise UsageError(
            "check is 'reference' on a cluster, whose machines do not have its files: leave out one of both"
        )
    plan = replace(plan, poison=plan.poison is not False)
    strategy = strategy_by_name(policy, world_size, seed=seed, depth=depth, preemptions=preemptions)
    if getattr(strategy, "outside", "") and not plan.semantics.is_like_gloo:
        # DPOR's notion of equivalent schedules is defined for gloo's rules only.
        raise UsageError(
            f"backend_semantics is {plan.semantics.name!r}, which policy 'dpor' does not support: use policy 'dfs' "
            "or 'random'"
        )
    run = _Executions(runnable, world_size, plan, options, is_checked=check_determinism)
    open_run = partial(workers.within, run)
    if not workers.is_this_process:
        if not hasattr(strategy, "next_part"):
            raise UsageError(f"jobs is {jobs!r} with a policy of your own, which runs in one process: leave it out")
        check_can_be_sent(open_run, plan.identity)
        if plan.has_reference:
            run(_policy_by_name(named.DEFAULT, 0), budget)  # it makes the reference, unless it fails
    budget = budget or EXPLORATION_BUDGET
    parts = nullcontext() if workers.is_this_process else executions_of_workers(workers, open_run, budget, keep_going)
    # Once for all executions: their garbage is young, so its collection is cheap.
    with freeze_existing_objects(0), parts as others:
        explorer = Explorer(strategy, open_run, budget, others, keep_going=keep_going, on_progress=on_progress)
        return explorer.explore(plan.identity)


def compare(
    program: Callable[..., Any] | Sequence[str],
    world_size: int,
    *,
    against: int | str | Sequence[str] | Callable[..., Any] = 1,
    steps: int = 20,
    exact: bool = False,
    budget: Budget | None = None,
    **options: Unpack[RunKeywords],
) -> Comparison:
    """Run `program` on `world_size` ranks and on `against` ranks, as it is, and say whether both are one training.

    The data loaders of the second run, the reference, give at each batch what all ranks of the first read. `against`
    may also be arguments, as one text or a list: the reference then gets them after the program's own, on as many ranks
    or on the number that stands before them. It may be another function, which runs on one rank. The first `steps`
    optimizer steps are compared, up to what rounding alone moves, which a third run shows: the reference with
    parameters and inputs moved by one rounding. With `exact`, only equal bits are equal. Dropout is off, and BatchNorm
    that is not synchronised uses its running statistics; the answer says so. The other options are those of `simulate`.

    Raises UsageError as `simulate` does.
    """
    from ddpsim.simulator.comparing.runs import Reference

    if not isinstance(steps, int) or steps < 1:
        raise UsageError(f"steps is {steps!r}, expected a whole number from 1: correct it")
    runnable, plan = make_plan(program, world_size, {**options, "check": None}, budget)
    reference, size, what = _reference_of(runnable, world_size, against)
    _, own_plan = make_plan(reference, size, {**options, "check": None}, budget)

    own = Reference(_recorded(reference, size, own_plan, named.DEFAULT, budget), steps, what, is_exact=exact)
    _, found = own.compare(_recorded(runnable, world_size, plan, named.DEFAULT, budget))
    return replace(found, program=identity_in_words(f"{plan.identity}"), against=what)


def _reference_of(program: Any, world_size: int, against: Any) -> tuple[Any, int, str]:
    """Return the program of a reference, its world size, and both in words."""
    if isinstance(against, int) and not isinstance(against, bool):
        if not 1 <= against <= world_size:
            raise UsageError(f"against is {against}, expected 1 to {world_size}, the number of ranks: correct it")
        return program, against, count_with_noun(against, "rank")
    if callable(against):
        return against, 1, f"{_program_name(against, None)} on 1 rank"
    words = shlex.split(against) if isinstance(against, str) else list(against)
    has_size = bool(words) and words[0].isdecimal()
    size = _reference_of(program, world_size, int(words.pop(0)))[1] if has_size else world_size
    if not isinstance(program, Script):
        raise UsageError(f"against is {against!r}, arguments, but only a program takes some: give a number of ranks")
    what = f"{shlex.join(words)} on {count_with_noun(size, 'rank')}"
    return replace(program, command=(*program.command, *words)), size, what


def make_plan(
    program: Any, world_size: Any, options: Mapping[str, Any], budget: Any, *, is_checked: bool = False
) -> tuple[Any, RunPlan]:
    """Check the arguments of a run, and return its program and its plan; a command, a list of words, is a `Script`."""
    if isinstance(program, (list, tuple)) and program and all(isinstance(word, str) for word in program):
        program = Script(tuple(program))
    if not callable(program):
        raise UsageError(f"program is {program!r}, expected a function that takes a rank: pass the function itself")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or not 1 <= world_size <= MOST_RANKS:
        raise UsageError(f"world_size is {world_size!r}, expected a whole number from 1 to {MOST_RANKS}: correct it")
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed is already initialised in this process (or simulate was called inside a rank): call "
            "simulate outside ranks, after destroy_process_group() or in another process"
        )
    for name, value in options.items():
        _check_option(name, value)
    disks = tuple(options.get("private_disk", ()))
    args, preload, gpus = options.get("args", ()), options.get("preload", ()), options.get("gpus")
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise UsageError(f"args is {args!r}, expected a sequence of arguments: write args=(value,) for a single one")
    isolation, is_program = options.get("isolation"), isinstance(program, Script)
    if is_program:
        _check_program(program, args, isolation)
    _check_preload(program, preload)
    if gpus is not None:
        _check_gpus(gpus, program, isolation)
    _check_hosts(options, program, world_size)
    faults = options.get("faults", ())
    if not isinstance(faults, Sequence):
        raise UsageError(f"faults is {faults!r}, expected a list of Crash, Delay or EarlyReturn values: give a list")
    if any(isinstance(each, Strike) for each in faults) and not is_program:
        raise UsageError("faults has a Strike, which hits processes of programs, FILE.py or -m MODULE: leave it out")
    if budget is not None and not isinstance(budget, Budget):
        raise UsageError(f"budget is {budget!r}, expected a Budget: write Budget(seconds=...) for instance")
    has_reference = options.get("check") == REFERENCE
    options = {**options, "check": None if has_reference else options.get("check")}
    return program, RunPlan(
        **{**options, "args": tuple(args), "preload": tuple(preload), "private_disk": disks, "faults": tuple(faults)},
        has_reference=has_reference,
        identity=program_identity(_program_name(program, options.get("name")), world_size),
        has_processes=is_program if isolation is None else isolation == "process",
        start=_seeds_of_ranks(program, options, is_checked=is_checked),
    )


def _check_option(name: str, value: object) -> None:
    """Raise UsageError for an option of a run that is unknown, or whose value is not allowed."""
    if name not in OPTIONS:
        close = get_close_matches(name, OPTIONS, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "leave it out"
        raise UsageError(f"{name!r} is not an option of a run, expected one of {', '.join(OPTIONS)}: {remedy}")
    choices = OPTIONS[name].choices
    if choices and value not in (*choices, DEFAULTS[name]):
        expected = " or ".join(map(repr, choices)) if len(choices) == 2 else f"one of {', '.join(choices)}"
        raise UsageError(
            f"{name} is {value!r}, expected {expected}: give one of these"
            + ("; only run_scenario runs on real processes" if value == "processes" else "")
        )


def _check_program(program: Script, args: Sequence[Any], isolation: str | None) -> None:
    if isolation == "thread":
        raise UsageError(
            f"isolation is 'thread', but {program.name} runs as __main__, which needs a process: leave isolation out"
        )
    if args:
        raise UsageError(f"args is {args!r}, but a program takes its arguments from its command: put them there")
    program.check_source()


def _seeds_of_ranks(program: Any, options: Mapping[str, Any], *, is_checked: bool) -> RankSeeds | None:
    """Return the seeds and hosts with which the ranks of a run start. Ranks that run a function have different seeds
    only in a determinism check, but different clocks without `alike`."""
    alike = options.get("alike", False)
    if isinstance(program, Script):
        hosts = [options.get(name, DEFAULTS[name]) for name in ("nnodes", "launcher", "max_restarts")]
        return program_seeds(alike, *hosts)
    return RankSeeds(is_alike=alike) if is_checked or alike else None


def _check_preload(program: Any, preload: Any) -> None:
    if isinstance(preload, str) or not all(isinstance(name, str) and name for name in preload):
        raise UsageError(f'preload is {preload!r}, expected names of modules: write preload=("transformers",)')
    if preload and not isinstance(program, Script):
        raise UsageError(
            f"preload is {tuple(preload)}, but ranks of functions share the modules of this process: import it here"
        )


def _check_gpus(gpus: Any, program: Any, isolation: str | None) -> None:
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        raise UsageError(f"gpus is {gpus!r}, expected a whole number from 1: correct it")
    if isolation != "process" and not isinstance(program, Script):
        raise UsageError(
            f"gpus is {gpus}, but ranks are threads, which share torch.cuda: give isolation='process', too, or leave "
            "gpus out"
        )


def with_recorded_start(plan: RunPlan, start: RankSeeds | None) -> RunPlan:
    """Return the plan with the start of ranks in a recorded schedule. Raises UsageError if it names other hosts."""
    if start is None:
        return plan
    recorded_options = {"nnodes": start.nodes, "launcher": start.launcher, "max_restarts": start.max_restarts}
    for name, recorded in recorded_options.items():
        given = getattr(plan, name)
        if given not in (DEFAULTS[name], recorded):
            raise UsageError(f"{name} is {given!r}, but the schedule was recorded with {recorded!r}: leave it out")
    return replace(plan, start=start)


def _check_hosts(options: Mapping[str, Any], program: Any, world_size: int) -> None:
    for name in ("nnodes", "launcher", "max_restarts", "private_disk"):
        value = options.get(name, DEFAULTS[name])
        if value not in (DEFAULTS[name], []) and not isinstance(program, Script):
            raise UsageError(f"{name} is {value!r}, which only programs have, FILE.py or -m MODULE: leave it out")
    nodes, restarts = options.get("nnodes", 1), options.get("max_restarts", 0)
    for name, number, least in (("nnodes", nodes, 1), ("max_restarts", restarts, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise UsageError(f"{name} is {number!r}, expected a whole number from {least}: correct it")
    launcher, disks = options.get("launcher", DEFAULTS["launcher"]), options.get("private_disk", ())
    if restarts and launcher not in LAUNCHERS_THAT_RESTART:
        raise UsageError(f"max_restarts is {restarts}, but {launcher} starts no rank again: leave one of them out")
    if nodes > world_size or world_size % nodes:
        raise UsageError(
            f"{world_size} ranks do not fill {nodes} equal hosts, expected as many on each: give their number on one, "
            "--nproc-per-node, or a world size that is a multiple"
        )
    if isinstance(disks, str):
        raise UsageError(f"private_disk is {disks!r}, expected folders: write private_disk=[{disks!r}]")
    if disks and nodes == 1:
        raise UsageError("private_disk is given, but there is one host, which has the folder for itself: give nnodes")


def _program_name(program: Any, name: str | None) -> str:
    own = program.name if isinstance(program, Script) else getattr(program, "__qualname__", type(program).__qualname__)
    return str(name or own)


class _Executions:
    """Runs a program under policies: once each, or twice for a determinism check; held against one reference if the
    option `check` says so."""

    def __init__(
        self, program: Any, world_size: int, plan: RunPlan, options: Mapping[str, Any], *, is_checked: bool = False
    ) -> None:
        self._program, self._size, self._plan, self._is_checked = program, world_size, plan, is_checked
        self._reference: Reference | None = None
        if plan.has_reference:
            from ddpsim.simulator.comparing.runs import Reference

            _, own = make_plan(program, 1, {**options, "check": None, "faults": ()}, None)
            self._reference = Reference(_recorded(program, 1, own, named.DEFAULT, None), 20, "1 rank")

    def __call__(self, policy: Policy, budget: Budget | None) -> Result:
        def run(policy: Policy) -> Result:
            if self._reference is None:
                return run_once(self._program, self._size, self._plan, policy=policy, budget=budget)
            return self._reference.check(_recorded(self._program, self._size, self._plan, policy, budget))

        if not self._is_checked:
            return run(policy)
        from ddpsim.simulator.exploration.explorer import run_twice

        return run_twice(run, policy)


def _recorded(
    program: Any, size: int, plan: RunPlan, policy: str | Policy, budget: Budget | None
) -> Callable[[Recording], Result]:
    """Return a function that runs a program while its ranks record; it can be pickled if the program can."""
    return partial(_run_recorded, program, size, plan, policy, budget)


def _run_recorded(
    program: Any, size: int, plan: RunPlan, policy: str | Policy, budget: Budget | None, recording: Recording
) -> Result:
    own = replace(plan, recording=recording)
    return run_once(program, size, own, policy=_policy_by_name(policy, 0), budget=budget)


def _policy_by_name(policy: str | Policy, seed: int) -> Policy:
    if not isinstance(policy, str):
        if isinstance(policy, type) or not callable(getattr(policy, "choose", None)):
            raise UsageError(
                f"policy is {policy!r}, expected a name or an object with choose(point, options): give one of these"
            )
        return policy
    if policy not in named.RUNNING:
        raise UsageError(f"policy is {policy!r}, expected one of {', '.join(named.RUNNING)}: give one of these names")
    return named.POLICIES[policy].make_policy(seed)
