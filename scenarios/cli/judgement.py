"""Judge a run: compare its outcome with the scenario's expectation, as an exit status and one line."""

from typing import NamedTuple

from ddpsim import Code, Result, Verdict
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.model import Expectation, location_of_first_finding, outcome_text, outcome_text_on_processes
from ddpsim.scenarios.running.runner import PROCESSES
from ddpsim.simulator.policies.schedule_replay import ReplayDivergence

_SCHEDULES = 10
"""The number of random schedules (seeds 0 to 9) out of which `Expectation.shows` have the expected outcome."""


class Judgement(NamedTuple):
    """The exit status for a run, and one line that says why it has this status."""

    status: ExitStatus
    line: str


def judge_interrupted(expected: Expectation, result: Result) -> Judgement:
    """Return the exit status of a run that Ctrl-C ended, and a line with what was found until then."""
    found = [str(each.code) for each in result.findings if each.code is not Code.BUDGET]
    wanted = _expected_text(expected, result.world_size)
    return Judgement(
        ExitStatus.INTERRUPTED, f"interrupted: found {', '.join(found) or 'nothing'} so far; expected {wanted}"
    )


def judge_result(expected: Expectation, result: Result, transport: str = "memory") -> Judgement:
    """Return the exit status for a run, and a line with the found and the expected outcome."""
    if transport == PROCESSES:
        is_met, line_of = expected.is_met_on_processes(result), _conclusion_on_processes
    else:
        is_met, line_of = expected.is_met_by(result), _conclusion_line
    otherwise = ExitStatus.UNKNOWN if result.verdict is Verdict.UNKNOWN else ExitStatus.OTHERWISE
    return Judgement(ExitStatus.AS_EXPECTED if is_met else otherwise, line_of(expected, result, is_met))


def _conclusion_line(expected: Expectation, result: Result, is_met: bool) -> str:
    found = outcome_text(result)
    if is_met:
        return f"as expected: {found}{_other_outcome_text(expected, result)}"
    word = "unknown" if result.verdict is Verdict.UNKNOWN else "not as expected"
    if is_found_at_wrong_line(expected, result):
        locations = " or ".join(f"{expected.file}:{line}" for line in expected.lines)
        return f"{word}: found {found} at {location_of_first_finding(result)}; expected it at {locations}"
    return f"{word}: found {found}; expected {_expected_text(expected, result.world_size)}"


def _conclusion_on_processes(expected: Expectation, result: Result, is_met: bool) -> str:
    found, wanted = outcome_text_on_processes(result), _outcome_text(expected, result.world_size)
    line = f"{'as expected' if is_met else 'not as expected'}: {found}"
    line += "" if found == wanted else f" (expected {wanted})"
    if is_met or result.verdict is not Verdict.PASS:
        return line
    why_silent = {
        "mismatch": "gloo compares no more than the number of bytes",
        "divergence": "nothing compares the replicas of real processes",
    }.get(str(expected.code).partition(".")[0], "real processes do not show it every time")
    return f"{line}; {why_silent}, simulate it to see it"


def divergence_line(divergence: ReplayDivergence) -> str:
    """Return one line on where a replay differs from its recording. The replay itself continued to its end."""
    if not divergence.point:
        return divergence.summary_text
    return f"{divergence.summary_text}; the replay continued, and took each later choice modulo the number of options"


def is_found_at_wrong_line(expected: Expectation, result: Result) -> bool:
    """Return True if the finding is the expected finding, but names another line of the program."""
    is_it = expected.code is not None and expected.text(result.world_size) == outcome_text(result)
    return is_it and not expected.is_met_by(result)


def _other_outcome_text(expected: Expectation, result: Result) -> str:
    """Return how often this expected outcome occurs, and the other expected outcome; "" if only one is expected."""
    is_other = expected.otherwise is not None and expected.otherwise.is_met_by(result)
    other = expected if is_other else expected.otherwise
    parts = []
    if expected.shows is not None:
        times = _SCHEDULES - expected.shows if is_other else expected.shows
        parts.append(f"so in {times} of {_SCHEDULES} random schedules")
    if other is not None:
        parts.append(f"else {_outcome_text(other, result.world_size)}")
    return f" (it depends on the interleaving: {', '.join(parts)})" if parts else ""


def _expected_text(expected: Expectation, world_size: int) -> str:
    """Return the expected outcome in words, and the second one that other interleavings of the ranks may have."""
    text = _outcome_text(expected, world_size)
    if expected.shows is not None:
        text += f" in {expected.shows} of {_SCHEDULES} random schedules"
    if expected.otherwise is not None:
        text += f", else {_outcome_text(expected.otherwise, world_size)}"
    depends = expected.shows is not None or expected.otherwise is not None
    return text + (" (it depends on the interleaving)" if depends else "")


def _outcome_text(expected: Expectation, world_size: int) -> str:
    return expected.text(world_size) + (" without a finding" if expected.is_clean else "")
