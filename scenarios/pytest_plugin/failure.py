"""Turn the result of a run on ranks into a pytest outcome: a pass, a skip, the error of a rank, or a text.

A rank's error is raised unchanged, so pytest shows its traceback. Below the traceback, the report of the test names the
rank, other findings, and the replay command. Deadlocks, mismatches and unmet expectations are shown as ddpsim's text.
"""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ddpsim import Code, Exploration, Finding, Result, Verdict
from ddpsim.scenarios.model import outcome_text
from ddpsim.scenarios.pytest_plugin.marker import MarkerError
from ddpsim.scenarios.pytest_plugin.rank_output import SKIPS, RankOutput, Severity, severity_of_error
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.errors import error_line
from ddpsim.simulator.exploration.exploration import ExplorationEnd
from ddpsim.simulator.verdict import format_replay_line, worst_verdict_of_findings
from ddpsim.simulator.wording import rank_list

_OWN_FOLDERS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(file)), "")
    for file in (__file__, Path(__file__).parents[2] / "simulator" / "__init__.py")
)


class RanksFailed(pytest.fail.Exception):  # type: ignore[name-defined, misc]
    """A test on ranks failed without an error of a rank's program. The text is the whole diagnosis."""

    __module__ = "builtins"
    """pytest's own module name, so that an exception group shows this exception without a module name."""

    def __init__(self, text: str, line: str = "") -> None:
        super().__init__(text, pytrace=False)
        self.line = line or text.partition("\n")[0]
        """The line for pytest's short test summary."""


@dataclass(frozen=True, slots=True)
class RunOfTest:
    """The outcome of a test on ranks."""

    result: Result
    output: RankOutput
    exploration: Exploration | None = None
    error: BaseException | None = None
    """The exception with which the test fails; None if it passes."""

    def __str__(self) -> str:
        """Return the whole diagnosis of the run."""
        return str(self.result if self.exploration is None else self.exploration)


def failure_of_run(run: RunOfTest, expect: str | None) -> BaseException | None:
    """Return the exception that a test should raise for the result of its run; None if the test passes."""
    left = _exit_or_skip(run.result)
    if left is not None:
        return left
    findings = _findings_not_caused_by_skips(run.result)
    if expect is not None:
        is_met = has_finding(dataclasses.replace(run.result, findings=findings), Code(expect))
        found = outcome_text(run.result) if run.exploration is None else run.exploration.verdict.value
        wanted = f"{Code(expect).verdict.value}, {expect}"
        return None if is_met else RanksFailed(f"not as expected: found {found}; expected {wanted}\n\n{run}")
    if _has_run_passed(run):
        return None
    error = next((each for each in _errors_by_rank(run).values() if not isinstance(each, SKIPS)), None)
    if isinstance(error, MarkerError):
        return RanksFailed(str(error))
    if error is not None:
        return error.with_traceback(_without_ddpsim_frames(error.__traceback__))
    leading = next(iter(findings), None)
    others = tuple(each for each in run.result.findings if each not in findings)
    shown = dataclasses.replace(run.result, findings=(*findings, *others))
    text = str(dataclasses.replace(run, result=shown))
    return RanksFailed(text, f"{leading.code}: {leading.summary}" if leading else "")


def _errors_by_rank(run: RunOfTest) -> dict[int, BaseException]:
    """Return the ranks' errors by rank: errors of the test function before those of fixture teardowns."""
    by_tests = {rank: run.result.errors.get(rank, each) for rank, each in run.output.errors_of_tests.items()}
    return by_tests | run.result.errors


def _has_run_passed(run: RunOfTest) -> bool:
    """Return True if the run passed; for an exploration, if it covered all schedules and every run passed."""
    if run.exploration is None:
        return run.result.verdict is Verdict.PASS
    passed = all(outcome.startswith(Verdict.PASS.value) for outcome in run.exploration.outcomes)
    return passed and run.exploration.end is ExplorationEnd.COVERED


def has_finding(result: Result, code: Code) -> bool:
    """Return True if a run has a finding with this code and the verdict that belongs to it. A failed run therefore
    never counts as having a hazard (a finding that lets a run pass)."""
    return result.verdict is code.verdict and any(finding.code is code for finding in result.findings)


def _exit_or_skip(result: Result) -> BaseException | None:
    """Return the error that ends a test without failing it: an exit, an interrupt, a rejected example, a skip; or None.

    A skip counts only if it can explain all findings: other ranks may hang because they wait for the rank that skipped.
    """
    for error in result.errors.values():
        if severity_of_error(error) is Severity.LEAVES:
            return error
    skips = {rank: each for rank, each in result.errors.items() if isinstance(each, SKIPS)}
    verdict = worst_verdict_of_findings(_findings_not_caused_by_skips(result))
    if not skips or len(skips) < len(result.errors) or verdict is not Verdict.PASS:
        return None
    first = next(iter(skips.values()))
    if len(skips) < result.world_size:
        first.msg = f"{first.msg} ({rank_list(skips)} of {result.world_size})"
    return first


def _findings_not_caused_by_skips(result: Result) -> tuple[Finding, ...]:
    """Return the findings that are not caused by ranks that skip; return all findings if a rank raised an error."""
    if not all(isinstance(each, SKIPS) for each in result.errors.values()):
        return result.findings
    return tuple(each for each in result.findings if each.code not in _FOLLOWS_FROM_ERRORS)


_FOLLOWS_FROM_ERRORS = (Code.RANK_ERROR, Code.DEADLOCK_DEAD_RANK)
"""The codes of findings that errors in ranks explain: the error itself, and ranks that wait for such a rank."""


def _without_ddpsim_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Remove the leading frames, which belong to ddpsim, from a traceback."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        traceback = traceback.tb_next
    return traceback


_TEXT_BELOW_ATTRIBUTE = "_ddpsim_below"
"""The attribute in which an error keeps the text that an exception group shows below it."""


def store_text_below_error(error: BaseException, run: RunOfTest) -> None:
    """Store on an error the text to show below it. At once, because hypothesis' runs are not kept."""
    if not isinstance(error, RanksFailed):
        setattr(error, _TEXT_BELOW_ATTRIBUTE, "\n".join(_lines_below_rank_error(run)))


def annotate_group(error: BaseException | None) -> None:
    """Add to each error of hypothesis' exception group which rank raised it, and the replay command."""
    for each in getattr(error, "exceptions", ()):
        if isinstance(each, RanksFailed):
            each.__traceback__ = None
        elif hasattr(each, _TEXT_BELOW_ATTRIBUTE):
            each.add_note(getattr(each, _TEXT_BELOW_ATTRIBUTE))


def annotate_report(
    item: pytest.Item,
    report: pytest.TestReport,
    error: BaseException | None,
    run: RunOfTest | None,
    *,
    location: Sequence[str] = (),
) -> None:
    """Add below a rank's error which rank raised it, other findings, and the replay line.

    `location` has the line with the path of the report; it is shown before the replay line.
    """
    shown: Any = report.longrepr
    is_one_line = item.config.option.tbstyle == "line"
    if isinstance(error, RanksFailed):
        crash = shown.reprcrash
        (crash.path, crash.lineno), crash.message = _location_of_failure(item, run), error.line
        if is_one_line:
            shown.reprtraceback.reprentries = []
        elif run is not None:  # hypothesis' notes on the example go before the replay line
            lines = shown.reprtraceback.reprentries[-1].lines
            end = len(lines) - lines[-1].startswith(format_replay_line(""))  # a diverged replay has no replay line
            notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
            lines[end:end] = [*(f"  {line}" for line in notes), *location]
    elif run is not None and hasattr(shown, "addsection"):
        if error is run.error and shown.reprcrash is not None:
            raisers = rank_list([rank for rank, each in _errors_by_rank(run).items() if each is run.error])
            shown.reprcrash.message = f"{raisers}: {shown.reprcrash.message}"
        # An exception group has no lines of its own, because its errors have theirs.
        below = [] if hasattr(error, "exceptions") else [format_replay_line(run.result.replay)]
        if error is run.error:
            below = _lines_below_rank_error(run)
        elif below and run.error is not None and str(run.error) not in str(error):  # the test fails for what it led to
            below[:0] = [line for each in run.result.findings for line in (*each.body.splitlines(), "")]
        below[-1:-1] = location
        if below and not is_one_line:
            shown.addsection("ddpsim", "\n".join(below))


def _location_of_failure(item: pytest.Item, run: RunOfTest | None) -> tuple[str, int]:
    """Return the file and line of the failure: the blamed rank's call, or the test if that is in a package."""
    leading = next(iter(_findings_not_caused_by_skips(run.result)), None) if run is not None else None
    for site in leading.sites[:1] if leading else ():
        if not site.is_foreign:
            return site.path, site.line
    path, line, _ = item.reportinfo()
    return str(path), (line or 0) + 1


def _lines_below_rank_error(run: RunOfTest) -> list[str]:
    """Return the lines to show below a rank's error: the exploration's summary, the errors of ranks, other findings
    with their texts, and the replay line."""
    lines = []
    if run.exploration is not None:
        lines += [*str(dataclasses.replace(run.exploration, first_failure=None)).splitlines(), ""]
    findings = run.result.findings
    # One line for each, because pytest has shown the traceback.
    lines += [f"  {each.summary}" for each in findings if each.code in _FOLLOWS_FROM_ERRORS]
    # A rank that hung in a fixture teardown has an error of its test that the result lacks.
    tests_only = {rank: error for rank, error in run.output.errors_of_tests.items() if rank not in run.result.errors}
    lines += [f"  rank {rank} raised {error_line(error)}" for rank, error in tests_only.items()]
    lines += run.output.further_errors
    if findings[0].code in _FOLLOWS_FROM_ERRORS:
        lines += _advice_lines(findings[0])
    others = [each for each in findings if each.code not in _FOLLOWS_FROM_ERRORS]
    lines += [line for each in others for line in ("", each.body)]
    return [*lines, format_replay_line(run.result.replay)]


def _advice_lines(finding: Finding) -> list[str]:
    """Return lines on a known cause of an error and what to try; no lines if the cause is not known."""
    unknown = Cause.RAISED.lines(who=rank_list(finding.ranks))
    advice = list(finding.labelled[-2:])
    return [] if advice == unknown else list(map(str, advice))


def test_name_in_tokens(item: pytest.Function) -> str:
    """Return the name of a test for replay tokens; the name does not depend on the working folder."""
    return "::".join([item.path.name, *_names_in_file(item)])


def replay_command(item: pytest.Function, token: str) -> str:
    """Return the pytest command that replays a run. Its paths start from the folder in which pytest was started."""
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    seed = item.config.getoption("ddpsim_seed")
    again = [] if seed is None else ["--ddpsim-seed", str(seed)]
    return shlex.join(["pytest", "::".join([path, *_names_in_file(item)]), *again, "--ddpsim-replay", token])


def _names_in_file(item: pytest.Function) -> list[str]:
    """Return the names of a test within its file: the names of its classes, and its own name with its parameters."""
    return [node.name for node in item.listchain() if isinstance(node, (pytest.Class, pytest.Function))]
