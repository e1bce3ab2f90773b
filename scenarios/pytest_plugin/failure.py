"""What a run on ranks came to, in pytest's terms: nothing, a skip, the error of a rank, or a text.

The error of a rank comes out as it is, so pytest shows it as ever; which rank it was, what else was found, and the
command to see it again stand below it. Deadlocks, mismatches and what was not as expected are their own text.
"""

from __future__ import annotations

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
from ddpsim.scenarios.model import found_text
from ddpsim.scenarios.pytest_plugin.marker import MarkerError
from ddpsim.scenarios.pytest_plugin.output import Output
from ddpsim.scenarios.pytest_plugin.raised import SKIPS, Severity, severity
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.exploration.exploration import End
from ddpsim.simulator.runtime.outcome import one_line
from ddpsim.simulator.verdict import combine, replay_line
from ddpsim.simulator.wording import rank_list

_OWN_FOLDERS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(file)), "")
    for file in (__file__, Path(__file__).parents[2] / "simulator" / "__init__.py")
)


class RanksFailed(pytest.fail.Exception):  # type: ignore[name-defined, misc]
    """A run on ranks failed by no error of a rank's own. The text is all there is to know."""

    __module__ = "builtins"
    """As pytest's own has it: it stands before the name, in a group."""

    def __init__(self, text: str, line: str = "") -> None:
        super().__init__(text, pytrace=False)
        self.line = line or text.partition("\n")[0]
        """What stands in the summary of the session."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a test on ranks came to."""

    result: Result
    output: Output
    exploration: Exploration | None = None
    error: BaseException | None = None
    """What it raised."""

    def __str__(self) -> str:
        """The whole diagnosis."""
        return str(self.result if self.exploration is None else self.exploration)


def judge(run: Run, expect: str | None) -> BaseException | None:
    """What a test is to raise; None if it passes."""
    left = _way_out(run.result)
    if left is not None:
        return left
    findings = _beyond_skips(run.result)
    if expect is not None:
        is_met = has(dataclasses.replace(run.result, findings=findings), Code(expect))
        return None if is_met else RanksFailed(_not_as_expected(run, Code(expect)))
    if _passes(run):
        return None
    error = next((each for each in _errors(run).values() if not isinstance(each, SKIPS)), None)
    if isinstance(error, MarkerError):
        return RanksFailed(str(error))
    if error is not None:
        return error.with_traceback(_without_ours(error.__traceback__))
    leading = next(iter(findings), None)
    text = str(dataclasses.replace(run, result=_led_by(findings, run.result)))
    return RanksFailed(text, f"{leading.code}: {leading.summary}" if leading else "")


def _led_by(findings: tuple[Finding, ...], result: Result) -> Result:
    others = tuple(each for each in result.findings if each not in findings)
    return dataclasses.replace(result, findings=(*findings, *others))


def _errors(run: Run) -> dict[int, BaseException]:
    """By rank, those of the test before those behind the `yield` of a fixture."""
    by_tests = {rank: run.result.errors.get(rank, each) for rank, each in run.output.raised.by_tests.items()}
    return by_tests | run.result.errors


def _lost(run: Run) -> dict[int, BaseException]:
    """By rank, how the test failed on ranks that then, behind the `yield` of a fixture, waited in vain."""
    return {rank: each for rank, each in run.output.raised.by_tests.items() if rank not in run.result.errors}


def _passes(run: Run) -> bool:
    """True if nothing failed or was left open; an exploration has covered all that its bounds let it."""
    if run.exploration is None:
        return run.result.verdict is Verdict.PASS
    passed = all(outcome.startswith(Verdict.PASS.value) for outcome in run.exploration.outcomes)
    return passed and run.exploration.end is End.COVERED


def has(result: Result, code: Code) -> bool:
    """True if a run has a finding, and comes to what it stands for: a hazard is none of a run that failed."""
    return result.verdict is code.verdict and any(finding.code is code for finding in result.findings)


def _not_as_expected(run: Run, code: Code) -> str:
    found = found_text(run.result) if run.exploration is None else run.exploration.verdict.value
    return f"not as expected: found {found}; expected {code.verdict.value}, {code}\n\n{run}"


def _way_out(result: Result) -> BaseException | None:
    """The error that ends a test in another way than by failing.

    One rank that leaves the session, or gives a drawn example up, is enough. So is one that skips, unless something is
    wrong that does not follow from it: of the ranks that go on, those that wait for it do so in vain.
    """
    errors = result.errors.values()
    for error in errors:
        if severity(error) is Severity.LEAVES:
            return error
    skips = {rank: each for rank, each in result.errors.items() if isinstance(each, SKIPS)}
    if not skips or len(skips) < len(result.errors) or combine(_beyond_skips(result)) is not Verdict.PASS:
        return None
    first = next(iter(skips.values()))
    if len(skips) < result.world_size:
        first.msg = f"{first.msg} ({rank_list(skips)} of {result.world_size})"
    return first


def _beyond_skips(result: Result) -> tuple[Finding, ...]:
    """The findings that do not follow from ranks that skip. All of them, if any rank raised something else."""
    if not all(isinstance(each, SKIPS) for each in result.errors.values()):
        return result.findings
    return tuple(each for each in result.findings if each.code not in _FOLLOWS_FROM_ERRORS)


_FOLLOWS_FROM_ERRORS = (Code.RANK_ERROR, Code.DEADLOCK_DEAD_RANK)
"""The error of a rank itself, and who waits for that rank in vain."""


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame on that is no machinery of ours."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        traceback = traceback.tb_next
    return traceback


# --- the report of a test ---------------------------------------------------------------------------------------------

_BELOW = "_ddpsim_below"
"""Under this name an error says what stands below it if it is shown in a group."""


def tell_if_in_group(error: BaseException, run: Run) -> None:
    """For an error of one example of several; its run is not kept until the test is reported."""
    if not isinstance(error, RanksFailed):
        setattr(error, _BELOW, "\n".join(_below_the_error(run)))


def prepare_group(error: BaseException | None) -> None:
    """Make each error of a group that hypothesis raises say whose it was, and how to see it again."""
    for each in getattr(error, "exceptions", ()):
        if isinstance(each, RanksFailed):
            each.__traceback__ = None
        elif hasattr(each, _BELOW):
            each.add_note(getattr(each, _BELOW))


def annotate(
    item: pytest.Item,
    report: pytest.TestReport,
    error: BaseException | None,
    run: Run | None,
    *,
    location: Sequence[str] = (),
) -> None:
    """Say below the error of a rank whose it was, what else was found, and how to see it again.

    `location` says, before the replay line if there is one, where a report is.
    """
    shown: Any = report.longrepr
    is_one_line = item.config.option.tbstyle == "line"
    if isinstance(error, RanksFailed):
        crash = shown.reprcrash
        (crash.path, crash.lineno), crash.message = _location(item, run), error.line
        if is_one_line:
            shown.reprtraceback.reprentries = []
        elif run is not None:  # before the replay line, what hypothesis says of the example
            lines = shown.reprtraceback.reprentries[-1].lines
            end = len(lines) - lines[-1].startswith(replay_line(""))  # a replay that diverged has none
            lines[end:end] = [*_notes(error), *location]
    elif run is not None and hasattr(shown, "addsection"):
        if error is run.error:
            _name_ranks(shown, run)
        below = _below(error, run)
        below[-1:-1] = location
        if below and not is_one_line:
            shown.addsection("ddpsim", "\n".join(below))


def _location(item: pytest.Item, run: Run | None) -> tuple[str, int]:
    """A file and a line of it: that of the call to blame, unless it stands in an installed package; else the test's."""
    leading = next(iter(_beyond_skips(run.result)), None) if run is not None else None
    for site in leading.sites[:1] if leading else ():
        if _INSTALLED.isdisjoint(Path(site.path).parts):
            return site.path, site.line
    path, line, _ = item.reportinfo()
    return str(path), (line or 0) + 1


_INSTALLED = frozenset({"site-packages", "dist-packages"})


def _below(error: BaseException | None, run: Run) -> list[str]:
    """What stands below an error; nothing below a group, where hypothesis tells of each example."""
    if error is run.error:
        return _below_the_error(run)
    return [] if hasattr(error, "exceptions") else [replay_line(run.result.replay)]


def _notes(error: BaseException) -> list[str]:
    return [f"  {line}" for note in getattr(error, "__notes__", ()) for line in note.splitlines()]


def _name_ranks(shown: Any, run: Run) -> None:
    raisers = rank_list([rank for rank, each in _errors(run).items() if each is run.error])
    if shown.reprcrash is not None:
        shown.reprcrash.message = f"{raisers}: {shown.reprcrash.message}"


def _below_the_error(run: Run) -> list[str]:
    lines = []
    if run.exploration is not None:
        lines += [*str(dataclasses.replace(run.exploration, first_failure=None)).splitlines(), ""]
    findings = run.result.findings
    # A line will do for them: pytest has shown the traceback.
    lines += [f"  {each.summary}" for each in findings if each.code in _FOLLOWS_FROM_ERRORS]
    lines += [f"  rank {rank} raised {one_line(error)}" for rank, error in _lost(run).items()]
    lines += run.output.raised.others
    lines += _advice(findings[0]) if findings[0].code in _FOLLOWS_FROM_ERRORS else []
    told = [each for each in findings if each.code not in _FOLLOWS_FROM_ERRORS]
    lines += [line for each in told for line in ("", each.body)]
    return [*lines, replay_line(run.result.replay)]


def _advice(finding: Finding) -> list[str]:
    """The cause of an error that is known, and what to try."""
    unknown = Cause.RAISED.lines(who=rank_list(finding.ranks))
    advice = list(finding.labelled[-2:])
    return [] if advice == unknown else list(map(str, advice))


def program_name(item: pytest.Function) -> str:
    """What replay tokens call a test: the same from whatever folder pytest is started."""
    return "::".join([item.path.name, *_names_in_file(item)])


def replay_command(item: pytest.Function, token: str) -> str:
    """What to paste in the folder pytest was started from, to see a run again."""
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    seed = item.config.getoption("ddpsim_seed")
    again = [] if seed is None else ["--ddpsim-seed", str(seed)]
    return shlex.join(["pytest", "::".join([path, *_names_in_file(item)]), *again, "--ddpsim-replay", token])


def _names_in_file(item: pytest.Function) -> list[str]:
    """What a test is called within its file: its classes, and its own name with its parameters."""
    return [node.name for node in item.listchain() if isinstance(node, (pytest.Class, pytest.Function))]
