"""Run a scenario and compare the result with what is expected.

A training or a named scenario is compared with its expectation and with the oracle, which is training on one process.
This is done on each engine that should run the scenario, and the results of the engines are compared with each other. A
program (a list of communication calls per rank), run under round robin, has to have the findings that the static
analysis `check` predicts. Under its own schedule it has to give the same verdict, and the same trace when it runs
again.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from ddpsim import Budget, Code, Finding, Result, UsageError, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.saving import scenario_as_toml
from ddpsim.scenarios.files.value_scenarios import program_of_scenario, training_of_scenario
from ddpsim.scenarios.fuzzing.campaign_report import NO_CODE, FailureGroup, FuzzExecution, FuzzFailure
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from ddpsim.scenarios.model import Scenario, outcome_text
from ddpsim.scenarios.ranks.interpreter import site_of_step
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import hide_program_output
from ddpsim.scenarios.training.reference import TrainingReference, find_first_differences
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.programs.check import check_program
from ddpsim.simulator.programs.program import Issue, Program

FUNCTION_KIND = "scenario"
"""The kind of a scenario whose program is a Python function."""
REFUSED = "refused"
"""The outcome of a scenario that refuses the world size or the options of the run."""
COMPARED = "compare-engines"
"""The tag of a scenario whose numbers differ between two engines, although both are within the oracle's tolerance."""


def scenario_kind(scenario: Scenario) -> str:
    """Return the kind of a scenario, such as "training"."""
    training = training_of_scenario(scenario)
    if training is not None:
        return str((Kind.PARALLEL_TRAINING if training.needs_mesh else Kind.TRAINING).value)
    if isinstance(scenario.program, Script):
        return Kind.PROGRAM.value
    if program_of_scenario(scenario) is None:
        return FUNCTION_KIND
    kind = Kind.PROGRAM if scenario.expected.verdict is Verdict.PASS else Kind.BROKEN_PROGRAM
    return str(kind.value)


class TimeIsUpError(Exception):
    """The time for a run was used up before the run ended, so there is no result."""


def run_and_judge(scenario: Scenario, engines: Sequence[Engine], deadline: float = inf) -> Iterator[FuzzExecution]:
    """Run a scenario on each of the engines, and yield the executions. A program of communication calls uses no engine
    and runs once. Raises TimeIsUpError at the deadline, a time of `time.perf_counter`."""
    program = program_of_scenario(scenario)
    if program is not None:
        yield from _judge_program(scenario, program, deadline)
        return
    expected = None if scenario.reference is None else scenario.reference(scenario.world_size)
    known = scenario if expected is None else replace(scenario, reference=lambda world_size: expected)
    passed: list[Result] = []
    for engine in engines:
        result = _run_within_deadline(known, engine, deadline)
        execution = _judge_result(known, engine, result)
        yield execution
        if isinstance(result, Result) and result.verdict is Verdict.PASS and execution.failure is None:
            passed.append(result)
    if isinstance(expected, TrainingReference):
        yield from _compare_engines(known, expected, passed)


def _run_within_deadline(scenario: Scenario, engine: Engine, deadline: float) -> Result | Exception:
    """Return the result of a run. If ddpsim raised an exception, return it: the exception counts as a failure."""
    left = deadline - time.perf_counter()
    if left <= 0:
        raise TimeIsUpError
    try:
        with hide_program_output(scenario):
            poisoned = replace(scenario, poison=scenario.poison is not False)
            result = run_scenario(poisoned, engine, budget=Budget(seconds=min(left, Budget().seconds)))
    except Exception as error:
        return error
    if result.verdict is Verdict.UNKNOWN and time.perf_counter() >= deadline:
        raise TimeIsUpError
    return result


def _judge_result(scenario: Scenario, engine: Engine, result: Result | Exception) -> FuzzExecution:
    if isinstance(result, UsageError) and isinstance(scenario.program, Script):
        # The scenario needs another world size, for instance.
        return FuzzExecution(scenario_kind(scenario), engine, REFUSED)
    if isinstance(result, Exception):
        return _execution_with_exception(scenario, engine, result)
    is_met = scenario.expected_by(engine).is_met_by(result)
    return _make_execution(scenario, engine, result, found="" if is_met else outcome_text(result))


def _execution_with_exception(scenario: Scenario, engine: Engine, error: Exception) -> FuzzExecution:
    name = type(error).__name__
    first, *_ = str(error).splitlines() or [""]
    failure = _make_failure(scenario, engine, name, f"{name}: {first}")
    return FuzzExecution(scenario_kind(scenario), engine, name, failure)


def _make_execution(scenario: Scenario, engine: Engine, result: Result, *, found: str) -> FuzzExecution:
    """Return the record of an execution. If the text `found` is not empty, the execution is a failure."""
    code = str(result.findings[0].code) if result.findings else NO_CODE
    outcome = f"{result.verdict.value}  {code}" if result.findings else result.verdict.value
    taken = replace(scenario, choices=result.schedule.choices)
    failure = _make_failure(taken, engine, code, found) if found else None
    return FuzzExecution(scenario_kind(scenario), engine, outcome, failure)


def _make_failure(scenario: Scenario, engine: Engine, code: str, found: str) -> FuzzFailure:
    expected = scenario.expected_by(engine).text(scenario.world_size)
    summary = f"found {found}, expected {expected}"
    text = scenario_as_toml(replace(scenario, engine=engine), summary=summary)
    return FuzzFailure(FailureGroup(engine, code, scenario_kind(scenario)), found, expected, text)


def _compare_engines(
    scenario: Scenario, expected: TrainingReference, passed: Sequence[Result]
) -> Iterator[FuzzExecution]:
    """Compare the numbers of the engines.

    Each engine is within the oracle's tolerance of the correct numbers, and the engines have to be within this
    tolerance of each other.
    """
    for one, other in itertools.pairwise(passed):
        found = find_first_differences(replace(expected, histories=tuple(one.returns)), other.returns)
        if found:
            tagged = replace(scenario, tags=(COMPARED,))
            text = f"{found[0].name} is {found[0].found} on one engine, {found[0].expected} on the other"
            failure = _make_failure(tagged, Engine.DDP, str(found[0].code), text)
            yield FuzzExecution(scenario_kind(scenario), Engine.DDP, "engines differ", failure)


def _judge_program(scenario: Scenario, program: Program, deadline: float) -> Iterator[FuzzExecution]:
    engine, wanted = scenario.engine, check_program(program, site_of=site_of_step).findings
    in_turn = replace(scenario, choices=())
    result = _run_within_deadline(in_turn, engine, deadline)
    if isinstance(result, Exception):
        yield _execution_with_exception(in_turn, engine, result)
        return
    is_same = _codes_and_ranks(result.findings) == _codes_and_ranks(wanted)
    yield _make_execution(in_turn, engine, result, found="" if is_same else _findings_text(result.findings))
    if scenario.choices:
        yield from _judge_program_under_schedule(scenario, program, wanted, deadline)


def _judge_program_under_schedule(
    scenario: Scenario, program: Program, wanted: Sequence[Finding], deadline: float
) -> Iterator[FuzzExecution]:
    """Run a program twice under its own schedule. Compare findings with the predicted ones, and the two traces."""
    engine = scenario.engine
    results = [_run_within_deadline(scenario, engine, deadline) for _ in range(2)]
    for result in results:
        if isinstance(result, Exception):
            yield _execution_with_exception(scenario, engine, result)
            return
    first, again = (each for each in results if isinstance(each, Result))
    is_consistent = _are_findings_consistent(first.findings, program, wanted)
    yield _make_execution(scenario, engine, first, found="" if is_consistent else _findings_text(first.findings))
    execution = _make_execution(scenario, engine, again, found="")
    if first.trace.digest() != again.trace.digest():
        failure = _make_failure(scenario, engine, str(Code.NONDETERMINISM), "another trace when it is run again")
        execution = replace(execution, failure=failure)
    yield execution


def _are_findings_consistent(found: Sequence[Finding], program: Program, wanted: Sequence[Finding]) -> bool:
    """Return True if the findings under another schedule are consistent with the predicted findings.

    If a program passes, it passes under every schedule. If it fails, the first finding depends on the schedule. A
    receive from any source may let a program pass in one order of messages and fail in another.
    """
    verdicts = {"fail" if any(each.code.verdict is Verdict.FAIL for each in side) else "" for side in (found, wanted)}
    if verdicts == {""}:
        return sorted(_codes_and_ranks(found)) == sorted(_codes_and_ranks(wanted))
    if verdicts == {"fail"}:
        return True
    return any(isinstance(step, Issue) and step.peer == ANY_SOURCE for steps in program.ranks for step in steps)


def _codes_and_ranks(findings: Sequence[Finding]) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(each.code), each.ranks) for each in findings]


def _findings_text(findings: Sequence[Finding]) -> str:
    found = [f"{code} of {list(ranks)}" for code, ranks in _codes_and_ranks(findings)]
    return f"findings {', '.join(found) or 'none'}"
