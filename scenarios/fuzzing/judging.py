"""Run a scenario and compare the result with what is expected.

A training or a named scenario is compared with its expectation and the oracle, on each engine that should run it, and
the engines are compared with each other. A program under round robin has to give what `check` finds. Under its own
schedule it has to give the same verdict, and the same trace when it runs again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from ddpsim import Budget, Code, Finding, Result, UsageError, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.saving import text_of
from ddpsim.scenarios.files.value_scenarios import program_in, training_in
from ddpsim.scenarios.fuzzing.campaign_report import NO_CODE, Execution, Failure, FailureGroup
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from ddpsim.scenarios.model import Scenario, found_text
from ddpsim.scenarios.ranks.interpreter import site_of
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.scenarios.running.silence import silent
from ddpsim.scenarios.training.reference import Reference, first_differences
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.programs.check import check
from ddpsim.simulator.programs.program import Issue, Program

BY_NAME = "scenario"
"""The kind of a scenario that is a function."""
REFUSED = "refused"
"""The outcome of a scenario that refuses the world size or options it was given."""
COMPARED = "compare-engines"
"""The tag of a scenario whose numbers differ between two engines, although each is within the oracle's tolerance."""


def kind_of(scenario: Scenario) -> str:
    """Return the kind of a scenario, such as "training"."""
    training = training_in(scenario)
    if training is not None:
        return str((Kind.PARALLEL_TRAINING if training.needs_mesh else Kind.TRAINING).value)
    if isinstance(scenario.program, Script):
        return Kind.PROGRAM.value
    if program_in(scenario) is None:
        return BY_NAME
    kind = Kind.PROGRAM if scenario.expected.verdict is Verdict.PASS else Kind.BROKEN_PROGRAM
    return str(kind.value)


class TimeIsUpError(Exception):
    """The time for a run is used up before its end, so it has no result."""


def judged(scenario: Scenario, engines: Sequence[Engine], deadline: float = inf) -> Iterator[Execution]:
    """Run a scenario on each of the engines, and yield the executions. A program of plain calls uses no engine.

    Raises TimeIsUpError at the deadline, by `time.perf_counter`.
    """
    program = program_in(scenario)
    if program is not None:
        yield from _program_judged(scenario, program, deadline)
        return
    expected = None if scenario.reference is None else scenario.reference(scenario.world_size)
    known = scenario if expected is None else replace(scenario, reference=lambda world_size: expected)
    passed: list[Result] = []
    for engine in engines:
        result = _attempt(known, engine, deadline)
        execution = _judged(known, engine, result)
        yield execution
        if isinstance(result, Result) and result.verdict is Verdict.PASS and execution.failure is None:
            passed.append(result)
    if isinstance(expected, Reference):
        yield from _disagreements(known, expected, passed)


# --- one execution ----------------------------------------------------------------------------------------------------


def _attempt(scenario: Scenario, engine: Engine, deadline: float) -> Result | Exception:
    """Return the result of a run, or the exception that ddpsim raised, which counts as a failure of the scenario."""
    left = deadline - time.perf_counter()
    if left <= 0:
        raise TimeIsUpError
    try:
        with silent(scenario):
            poisoned = replace(scenario, poison=scenario.poison is not False)
            result = run_scenario(poisoned, engine, budget=Budget(seconds=min(left, Budget().seconds)))
    except Exception as error:
        return error
    if result.verdict is Verdict.UNKNOWN and time.perf_counter() >= deadline:
        raise TimeIsUpError
    return result


def _judged(scenario: Scenario, engine: Engine, result: Result | Exception) -> Execution:
    if isinstance(result, UsageError) and isinstance(scenario.program, Script):
        return Execution(kind_of(scenario), engine, REFUSED)  # the scenario needs another world size, for instance
    if isinstance(result, Exception):
        return _raised(scenario, engine, result)
    is_met = scenario.expected_by(engine).is_met_by(result)
    return _execution(scenario, engine, result, found="" if is_met else found_text(result))


def _raised(scenario: Scenario, engine: Engine, error: Exception) -> Execution:
    name = type(error).__name__
    first, *_ = str(error).splitlines() or [""]
    failure = _failure(scenario, engine, name, f"{name}: {first}")
    return Execution(kind_of(scenario), engine, name, failure)


def _execution(scenario: Scenario, engine: Engine, result: Result, *, found: str) -> Execution:
    """Return an execution, with a failure if `found` is not empty."""
    code = str(result.findings[0].code) if result.findings else NO_CODE
    outcome = f"{result.verdict.value}  {code}" if result.findings else result.verdict.value
    taken = replace(scenario, choices=result.schedule.choices)
    return Execution(kind_of(scenario), engine, outcome, _failure(taken, engine, code, found) if found else None)


def _failure(scenario: Scenario, engine: Engine, code: str, found: str) -> Failure:
    expected = scenario.expected_by(engine).text(scenario.world_size)
    summary = f"found {found}, expected {expected}"
    text = text_of(replace(scenario, engine=engine), summary=summary)
    return Failure(FailureGroup(engine, code, kind_of(scenario)), found, expected, text)


# --- comparing the engines --------------------------------------------------------------------------------------------


def _disagreements(scenario: Scenario, expected: Reference, passed: Sequence[Result]) -> Iterator[Execution]:
    """Compare the engines. Each is within the oracle's tolerance, and they have to be within it of each other."""
    for one, other in itertools.pairwise(passed):
        histories = tuple(one.returns)
        found = first_differences(replace(expected, histories=histories), other.returns)
        if found:
            tagged = replace(scenario, tags=(COMPARED,))
            text = f"{found[0].name} is {found[0].found} on one engine, {found[0].expected} on the other"
            failure = _failure(tagged, Engine.DDP, str(found[0].code), text)
            yield Execution(kind_of(scenario), Engine.DDP, "engines differ", failure)


# --- programs ---------------------------------------------------------------------------------------------------------


def _program_judged(scenario: Scenario, program: Program, deadline: float) -> Iterator[Execution]:
    engine, wanted = scenario.engine, check(program, site_of=site_of).findings
    in_turn = replace(scenario, choices=())
    result = _attempt(in_turn, engine, deadline)
    if isinstance(result, Exception):
        yield _raised(in_turn, engine, result)
        return
    is_same = _brief(result.findings) == _brief(wanted)
    yield _execution(in_turn, engine, result, found="" if is_same else f"findings {_text(result.findings)}")
    if scenario.choices:
        yield from _under_its_schedule(scenario, program, wanted, deadline)


def _under_its_schedule(
    scenario: Scenario, program: Program, wanted: Sequence[Finding], deadline: float
) -> Iterator[Execution]:
    """Run a program twice under its own schedule, compare the findings with the wanted ones, and the traces."""
    engine = scenario.engine
    results = [_attempt(scenario, engine, deadline) for _ in range(2)]
    for result in results:
        if isinstance(result, Exception):
            yield _raised(scenario, engine, result)
            return
    first, again = (each for each in results if isinstance(each, Result))
    found = "" if _is_explained(first.findings, program, wanted) else f"findings {_text(first.findings)}"
    yield _execution(scenario, engine, first, found=found)
    execution = _execution(scenario, engine, again, found="")
    if first.trace.digest() != again.trace.digest():
        failure = _failure(scenario, engine, str(Code.NONDETERMINISM), "another trace when it is run again")
        execution = replace(execution, failure=failure)
    yield execution


def _is_explained(found: Sequence[Finding], program: Program, wanted: Sequence[Finding]) -> bool:
    """Return True if a finding under another schedule is consistent with the expected ones.

    If a program passes, it passes under every schedule. If it fails, another of its findings may come first. A receive
    from any source may let the program pass in one order and fail in another.
    """
    verdicts = {"fail" if any(each.code.verdict is Verdict.FAIL for each in side) else "" for side in (found, wanted)}
    if verdicts == {""}:
        return sorted(_brief(found)) == sorted(_brief(wanted))
    if verdicts == {"fail"}:
        return True
    return any(isinstance(step, Issue) and step.peer == ANY_SOURCE for steps in program.ranks for step in steps)


def _brief(findings: Sequence[Finding]) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(each.code), each.ranks) for each in findings]


def _text(findings: Sequence[Finding]) -> str:
    return ", ".join(f"{code} of {list(ranks)}" for code, ranks in _brief(findings)) or "none"
