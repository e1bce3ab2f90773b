"""Make findings from the reports of ranks that are real processes.

The reports show less than a simulation: which rank raised an error, which rank died, and where each rank hangs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from ddpsim import Code, Finding
from ddpsim.scenarios.jobs.rank_report import ErrorReport, RankEnding, RankPosition, RankReport
from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import shorten_text
from ddpsim.simulator.diagnosis.rank_errors import error_kind, rank_error_finding, ranks_out_of_input
from ddpsim.simulator.wording import LabelledLine, rank_list

_CONNECTION_LOST_ERRORS = re.compile(
    r"[Cc]onnection (?:closed|reset)|Broken pipe|Socket closed|failed to (?:write|read|recv|send)"
)
"""The errors that gloo raises on the other ranks when the process of a rank has ended."""
_CAUSES = {"signal SIGABRT": Cause.PROCESS_ABORTED, "signal SIGKILL": Cause.PROCESS_KILLED}


def findings_of_reports(reports: Sequence[RankReport], *, command: str) -> tuple[Finding, ...]:
    """Return all findings, causes before consequences. `command` is a command line that simulates the program."""
    died = [report for report in reports if report.ending is RankEnding.DIED]
    raised = sorted((each for each in reports if each.error is not None), key=lambda report: report.seconds)
    lost = [report for report in raised if report.error and _CONNECTION_LOST_ERRORS.search(report.error.line)]
    is_clear = bool(died) or len(lost) < len(raised)
    victims = lost if is_clear else []
    found = _death_findings(died, victims, command)
    found += _error_findings(each for each in raised if each not in victims)
    if any(report.ending is RankEnding.HUNG for report in reports):
        found.append(_hang_finding(reports, command))
    if victims and not died:
        found += _error_findings(victims)
    return tuple(found)


def _death_findings(died: Sequence[RankReport], victims: Sequence[RankReport], command: str) -> list[Finding]:
    by_death = sorted(died, key=lambda report: (report.death, report.rank))
    groups = groupby(by_death, key=lambda report: report.death)
    return [_death_finding(list(alike), victims, command) for _, alike in groups]


def _death_finding(died: Sequence[RankReport], victims: Sequence[RankReport], command: str) -> Finding:
    ranks = tuple(report.rank for report in died)
    process = "process" if len(ranks) == 1 else "processes"
    summary = f"the {process} of {rank_list(ranks)} ended with {died[0].death}"
    lines: list[str | LabelledLine] = [f"ERROR  {Code.RANK_ERROR}", f"  {summary}"]
    for report in died:
        lines += _last_position_lines(report)
    if victims:
        lines.append(f"  {rank_list(report.rank for report in victims)} lost the connection then, and raised")
    lines += _CAUSES.get(died[0].death, Cause.PROCESS_CRASHED).lines(command)
    return Finding(Code.RANK_ERROR, ranks, summary, tuple(lines))


def _last_position_lines(died: RankReport) -> list[str]:
    """Return where the dead rank was in its program, and its last lines on stderr."""
    position = died.position
    where = f" at {position.site} in {position.site.function}" if position and position.site else ""
    lines = [f"  rank {died.rank} died{where}"] if where or died.last_words else []
    lines += [f"    {line}" for line in died.last_words]
    return lines + (_stack_lines(position) if position else [])


def _error_findings(raised: Iterable[RankReport]) -> list[Finding]:
    """Return a finding for each distinct error and source line, in order of time."""
    alike: dict[tuple[str, Site | None], dict[int, ErrorReport]] = {}
    for report in raised:
        if report.error is not None:
            alike.setdefault((error_kind(report.error.line), report.error.site), {})[report.rank] = report.error
    lines = {rank: error.line for errors in alike.values() for rank, error in errors.items()}
    return [
        rank_error_finding(
            {rank: error.line for rank, error in errors.items()},
            site,
            next(iter(errors.values())).traceback,
            {rank: error.unused for rank, error in errors.items() if error.unused},
            ranks_out_of_input(lines),
        )
        for (_, site), errors in alike.items()
    ]


# --- hangs ------------------------------------------------------------------------------------------------------------


def _hang_finding(reports: Sequence[RankReport], command: str) -> Finding:
    positions = {each.rank: each.position for each in reports if each.ending is RankEnding.HUNG and each.position}
    stuck = tuple(rank for rank, each in positions.items() if each.is_idle) or tuple(positions)
    idle = [positions[rank].idle_seconds for rank in stuck]
    seconds = max((each for each in idle if each < _IDLE_SECONDS_OF_SILENT_RANK), default=0.0)
    summary = f"{rank_list(stuck)} made no progress" + (f" for {seconds:.1f} s" if seconds else "")
    lines: list[str | LabelledLine] = [f"STUCK  {Code.STUCK}", f"  {summary}"]
    for report in reports:
        lines += _rank_lines(report)
    lines += Cause.PROCESSES_HANG.lines(fact=command)
    sites = tuple(each.site for each in positions.values() if each.site is not None)
    return Finding(Code.STUCK, stuck, summary, tuple(lines), tuple(dict.fromkeys(sites)))


_IDLE_SECONDS_OF_SILENT_RANK = 1e9
"""The seconds without progress that count for a rank that does not answer: more than those of any other rank."""


def _rank_lines(report: RankReport) -> list[str]:
    """Return lines that say where a rank is, its line in the user's program first."""
    position = report.position
    if report.ending is not RankEnding.HUNG or position is None:
        return [f"  rank {report.rank}  {_ending_text(report)}"]
    if position.idle_seconds > _IDLE_SECONDS_OF_SILENT_RANK:
        return [f"  rank {report.rank}  {position.stack}"]
    site = position.site
    where = "outside the program's lines" if site is None else f"at {site} in {site.function}"
    head = f"  rank {report.rank}  {where}, for {position.idle_seconds:.1f} s"
    return [head, *_call_lines(position), *_stack_lines(position)]


def _ending_text(report: RankReport) -> str:
    if report.ending is RankEnding.DIED:
        return f"died: {report.death}"
    return f"raised {shorten_text(report.error.line, 90)}" if report.error else "returned"


def _call_lines(position: RankPosition) -> list[str]:
    if not position.calls:
        return ["    last calls  none recorded (messages between two ranks are not)"]
    first, *others = position.calls
    return [f"    last calls  {first}", *(f"                {call}" for call in others)]


def _stack_lines(position: RankPosition) -> list[str]:
    lines = [f"    {line}" for line in position.stack.rstrip().splitlines()]
    return ["    stack", *lines] if lines else []
