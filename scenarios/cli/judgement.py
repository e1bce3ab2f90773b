"""Judge a run: compare its outcome with the scenario's expectation, as an exit status and one line."""

from __future__ import annotations

from typing import NamedTuple

from ddpsim import Result, Verdict
from ddpsim.scenarios.cli.status import Status
from ddpsim.scenarios.model import Expectation, found_location, found_on_processes, found_text
from ddpsim.scenarios.running.runner import PROCESSES
from ddpsim.simulator.policies.schedule_replay import Divergence

_SCHEDULES = 10
"""The number of random schedules in which `Expectation.shows` counts outcomes: those of seeds 0 to 9."""


class Judgement(NamedTuple):
    """The exit status for a run, and one line that says why."""

    status: Status
    line: str


def judge(expected: Expectation, result: Result, transport: str = "memory") -> Judgement:
    """Compare the outcome of a run with its expectation."""
    is_met = expected.is_met_on_processes if transport == PROCESSES else expected.is_met_by
    otherwise = Status.UNKNOWN if result.verdict is Verdict.UNKNOWN else Status.OTHERWISE
    return Judgement(Status.AS_EXPECTED if is_met(result) else otherwise, conclusion(expected, result, transport))


def conclusion(expected: Expectation, result: Result, transport: str = "memory") -> str:
    """Return one line: whether the run is as expected, what was found and what was expected."""
    if transport == PROCESSES:
        return _conclusion_on_processes(expected, result)
    found = found_text(result)
    if expected.is_met_by(result):
        return f"as expected: {found}{_otherwise(expected, result)}"
    word = "unknown" if result.verdict is Verdict.UNKNOWN else "not as expected"
    if misses_line(expected, result):
        locations = " or ".join(f"{expected.file}:{line}" for line in expected.lines)
        return f"{word}: found {found} at {found_location(result)}; expected it at {locations}"
    return f"{word}: found {found}; expected {_wanted(expected, result.world_size)}"


def _conclusion_on_processes(expected: Expectation, result: Result) -> str:
    is_met = expected.is_met_on_processes(result)
    found, wanted = found_on_processes(result), _strictly(expected, result.world_size)
    line = f"{'as expected' if is_met else 'not as expected'}: {found}"
    line += "" if found == wanted else f" (expected {wanted})"
    if is_met or result.verdict is not Verdict.PASS:
        return line
    why_silent = {
        "mismatch": "gloo compares no more than the number of bytes",
        "divergence": "nothing compares the replicas of real processes",
    }.get(str(expected.code).partition(".")[0], "real processes do not show it every time")
    return f"{line}; {why_silent}, simulate it to see it"


def divergence_line(divergence: Divergence) -> str:
    """Return one line on where a replay differs from its recording; the replay itself ran on to its end."""
    if not divergence.point:
        return divergence.summary
    return f"{divergence.summary}; the replay continued, and took each later choice modulo the number of options"


def misses_line(expected: Expectation, result: Result) -> bool:
    """Return True if the finding is the expected one but names another line."""
    is_it = expected.code is not None and expected.text(result.world_size) == found_text(result)
    return is_it and not expected.is_met_by(result)


def _otherwise(expected: Expectation, result: Result) -> str:
    """Return how often this expected outcome occurs, and the other outcome; "" if every interleaving has this one."""
    is_other = expected.otherwise is not None and expected.otherwise.is_met_by(result)
    other = expected if is_other else expected.otherwise
    parts = []
    if expected.shows is not None:
        times = _SCHEDULES - expected.shows if is_other else expected.shows
        parts.append(f"so in {times} of {_SCHEDULES} random schedules")
    if other is not None:
        parts.append(f"else {_strictly(other, result.world_size)}")
    return f" (it depends on the interleaving: {', '.join(parts)})" if parts else ""


def _wanted(expected: Expectation, world_size: int) -> str:
    """Return the expected outcome, and the other one that some interleavings may have."""
    text = _strictly(expected, world_size)
    if expected.shows is not None:
        text += f" in {expected.shows} of {_SCHEDULES} random schedules"
    if expected.otherwise is not None:
        text += f", else {_strictly(expected.otherwise, world_size)}"
    depends = expected.shows is not None or expected.otherwise is not None
    return text + (" (it depends on the interleaving)" if depends else "")


def _strictly(expected: Expectation, world_size: int) -> str:
    return expected.text(world_size) + (" without a finding" if expected.is_clean else "")
