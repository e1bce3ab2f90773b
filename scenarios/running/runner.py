"""Run a scenario in the simulator or on real processes, and compare it with the oracle if it has one."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from inspect import signature

from ddpsim import Budget, Policy, Result, Schedule, UsageError, Verdict, replay, simulate
from ddpsim.ddp import DistributedDataParallel
from ddpsim.scenarios import engines
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.program_line import quote_for_command_line, split_program_line
from ddpsim.scenarios.jobs.job_result import TIMEOUT_SECONDS, run_on_processes
from ddpsim.scenarios.jobs.scenario_job import check_timeout, use_own_compiler_cache
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.run_as import command_line_options_of, run_keywords
from ddpsim.scenarios.training.reference import find_divergence
from ddpsim.scenarios.training.training import Training
from ddpsim.simulator.api import name_parting
from ddpsim.simulator.backend_semantics import GLOO
from ddpsim.simulator.events import NOT_CHECKED, EventKind
from ddpsim.simulator.launching.script import Script, with_hash_seed
from ddpsim.simulator.policies.named import DEFAULT
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.result import RunInterrupted
from ddpsim.simulator.run_options import REFERENCE

PROCESSES = "processes"
TRANSPORTS = ("memory", "gloo", PROCESSES)
"""How bytes move between ranks. The first two transports are simulated."""


def run_scenario(
    scenario: Scenario | str,
    engine: str | Engine | None = None,
    *,
    transport: str = "memory",
    world_size: int | None = None,
    policy: str | Policy | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    timeout_seconds: float | None = None,
    names_parting: bool = False,
) -> Result:
    """Run a scenario, or the one of that name; `scenario.expected_by(engine).is_met_by(result)` judges the result.

    `engine`, `policy` and `world_size` replace the scenario's own. Transports "memory" and "gloo" simulate within
    `budget`. "processes" runs one process per rank on real gloo, without policy and budget. There a rank that makes no
    progress for `timeout_seconds`, by default 10, is reported as stuck, and `is_met_on_processes` judges the result.
    `names_parting`: a failed run is repeated, to find where the paths of its ranks part, and a pass of a program that
    trains says what it does not judge.
    Return values are compared with the scenario's reference, if it has one. Raises UsageError for what cannot be run.
    """
    check_transport_options(transport, policy, seed, timeout_seconds)
    if budget is not None and transport == PROCESSES:
        raise UsageError(
            f"budget is {budget}, but real processes are no simulation: leave it out, and give timeout_seconds instead"
        )

    def run(chosen: Scenario) -> Result:
        if transport == PROCESSES:
            _check_runs_on_processes(chosen)
            return run_on_processes(
                chosen, chosen.engine, TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
            )
        own = GuidedPolicy(chosen.choices) if chosen.choices else DEFAULT
        keywords = run_keywords(chosen, transport)
        result = simulate(
            chosen.program,
            chosen.world_size,
            policy=own if policy is None else policy,
            seed=seed,
            budget=budget,
            alike=chosen.alike,
            **keywords,
        )
        if names_parting:
            result = name_parting(result, chosen.program, chosen.world_size, budget=budget, **keywords)
            result = _with_note_on_numbers(result, chosen)
        return result

    return _run_and_compare(scenario, engine, transport, world_size, run, timeout_seconds)


def _with_note_on_numbers(result: Result, scenario: Scenario) -> Result:
    """Add to the pass of a training the note that its numbers were not held against one rank."""
    training = {event.rank for event in result.trace if event.kind is EventKind.STEP}
    if result.verdict is not Verdict.PASS or not isinstance(scenario.program, Script) or len(training) < 2:
        return result
    if scenario.check == REFERENCE:
        return result
    what = "whether the ranks train as one rank would (scale of losses and gradients, clipping, samples, metrics)"
    return dataclasses.replace(result, notes=(*result.notes, f"{NOT_CHECKED}{what}: ddpsim compare looks at that"))


def _check_runs_on_processes(scenario: Scenario) -> None:
    """Raise UsageError for a scenario that only a simulation can run."""
    if scenario.gpus is not None:
        raise UsageError(
            f"gpus is {scenario.gpus}, but real processes are no simulation and have no virtual GPUs: leave it out, or "
            "use transport 'memory'"
        )
    if isinstance(scenario.program, Script):
        raise UsageError(
            f"transport is 'processes', but {scenario.program.name} is a program, which torchrun runs on real "
            f"processes: use `torchrun --nproc-per-node {scenario.world_size} ...`, or transport 'memory' or 'gloo'"
        )
    if scenario.backend_semantics != GLOO.name:
        raise UsageError(
            f"backend semantics are {scenario.backend_semantics!r}, but real processes run on real gloo: leave them "
            "out, or use transport 'memory'"
        )


def check_transport_options(
    transport: str, policy: str | Policy | None, seed: int, timeout_seconds: float | None
) -> None:
    """Raise UsageError for options that cannot be combined with a transport."""
    if transport not in TRANSPORTS:
        names = ", ".join(map(repr, TRANSPORTS))
        raise UsageError(f"transport is {transport!r}, expected {names}: give one of these names")
    if transport == PROCESSES and (policy not in (None, DEFAULT) or seed != 0):
        raise UsageError(
            f"policy is {policy or DEFAULT!r} and seed {seed}, but real processes run freely, without a "
            "schedule: leave both out, or use transport 'memory' or 'gloo'"
        )
    if timeout_seconds is not None and transport == PROCESSES:
        check_timeout(timeout_seconds)
    elif timeout_seconds is not None:
        raise UsageError(
            f"timeout is {timeout_seconds!r}, but transport {transport!r} finds a deadlock at once and waits for none: "
            "leave it out, or use transport 'processes'"
        )


def check_is_simulated(transport: str, but: str) -> None:
    """Raise UsageError for a transport that is no simulation; `but` says why a simulation is needed."""
    check_transport_options(transport, None, 0, None)
    if transport == PROCESSES:
        raise UsageError(f"transport is 'processes', but {but}: use 'memory' or 'gloo'")


NO_REPLAY = "real processes run freely and cannot be replayed"


def replay_scenario(
    scenario: Scenario | str,
    schedule: str | Schedule,
    engine: str | Engine | None = None,
    *,
    transport: str = "memory",
    world_size: int | None = None,
) -> Result:
    """Run a scenario again under a recorded schedule, or its token. Raises ReplayError if it is another scenario's."""
    check_is_simulated(transport, NO_REPLAY)

    def run(chosen: Scenario) -> Result:
        return replay(chosen.program, chosen.world_size, schedule, **run_keywords(chosen, transport))

    result = _run_and_compare(scenario, engine, transport, world_size, run)
    program = result.schedule.program
    return result.compared_with(Schedule.parse(str(schedule), program=program))  # with what the reference shows


def _run_and_compare(
    scenario: Scenario | str,
    engine: str | Engine | None,
    transport: str,
    world_size: int | None,
    run: Callable[[Scenario], Result],
    timeout_seconds: float | None = None,
) -> Result:
    """Load a scenario, run it by `run`, and compare its result with the scenario's reference, the correct result."""
    own = load(scenario) if isinstance(scenario, str) else scenario
    engine = own.engine_named(engine)
    chosen = own.with_world_size(world_size)
    chosen = dataclasses.replace(chosen, engine=engine, program=engines.program_for_engine(chosen.program, engine))
    check_engine_options(chosen, engine)
    with use_own_compiler_cache() if transport == PROCESSES else nullcontext():
        with engines.install_engine(engine), with_hash_seed(chosen.hash_seed):
            try:
                result = run(chosen)
            except RunInterrupted as cut:
                with_command = replay_command(cut.result, own, engine, transport, timeout_seconds)
                raise RunInterrupted(cut.result.with_replay(with_command)) from None
        compared = compare_with_reference(check_ranks_communicated(chosen, result), chosen)
    return compared.with_replay(replay_command(result, own, engine, transport, timeout_seconds))


def check_ranks_communicated(scenario: Scenario, result: Result) -> Result:
    """Raise UsageError if all ranks of a program finished without communicating with each other.

    A program that exits by sys.exit(0), as after --help, may do so on purpose: then the note of its result says it.
    """
    if not result.note:
        return result
    assert isinstance(scenario.program, Script)
    text = scenario.program.source_text()
    may_need_gpus = scenario.gpus is None and ("cuda" in text or "accelerator" in text)
    advice = ", give --gpus N if it does so only with GPUs" if may_need_gpus else ""
    if any(value == 0 for value in result.returns):
        return dataclasses.replace(result, note=result.note + advice)
    raise UsageError(
        f"{result.note}; expected init_process_group on each: call it{advice}, or run one rank (--world-size 1)"
    )


def check_engine_options(scenario: Scenario, engine: Engine) -> None:
    """Raise UsageError if a declared training gives our engine an argument that only torch's has."""
    if engine is Engine.TORCH:
        return
    known = signature(DistributedDataParallel).parameters
    declared = [each for each in scenario.args if isinstance(each, Training)]
    for name in [name for training in declared for name in training.engine_options if name not in known]:
        raise UsageError(
            f"{scenario.name} has [engine] {name}, which engine 'ddp' does not have: leave it out, or use 'torch'"
        )


def compare_with_reference(result: Result, scenario: Scenario) -> Result:
    """Return the result, with a finding added if ranks returned other values than training on one process gives."""
    if scenario.reference is None or result.verdict is not Verdict.PASS:
        return result
    finding = find_divergence(scenario.reference(result.world_size), result)
    return result if finding is None else dataclasses.replace(result, findings=(finding, *result.findings))


def replay_command(
    result: Result, scenario: Scenario, engine: Engine, transport: str, timeout_seconds: float | None = None
) -> str:
    """Return the command that runs a scenario again. On real processes the command does not repeat the schedule."""
    is_free = transport == PROCESSES
    is_program = bool(split_program_line(scenario.name))  # False if a file names the program
    name = quote_for_command_line(scenario.name)
    words = ["ddpsim", "run" if is_free else "replay", *([] if is_program else [name])]
    words += [] if is_free else [str(result.schedule)]
    words += command_line_options_of(dataclasses.replace(scenario, poison=result.has_poisoned or None))
    words += [] if result.world_size == scenario.world_size else ["--world-size", str(result.world_size)]
    words += [] if transport == "memory" else ["--transport", transport]
    words += ["--alike"] if is_free and scenario.alike else []  # a token includes it
    words += [] if timeout_seconds is None else ["--timeout", f"{timeout_seconds:g}"]
    words += [] if engine is scenario.engine else ["--engine", engine.value]
    words += [name] if is_program else []  # words after the program are its own arguments
    return " ".join(words)
