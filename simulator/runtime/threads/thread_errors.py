"""Exceptions in threads that ranks started: such a thread ends alone, and its rank continues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.thread_findings import thread_error
from ddpsim.simulator.runtime.call_sites import site_of_error, traceback_text
from ddpsim.simulator.runtime.outcome import one_line
from ddpsim.simulator.runtime.rank_thread import RankThread
from ddpsim.simulator.verdict import Finding


class ThreadError(NamedTuple):
    """An exception that a rank's thread raised."""

    rank: int
    thread: str
    line: str
    """Type and message."""
    site: Site | None
    traceback: str


def thread_findings(errors: Iterable[ThreadError]) -> list[Finding]:
    """Return the findings: one for all ranks that raised the same error at the same line."""
    alike: dict[tuple[str, str, Site | None], list[ThreadError]] = {}
    for error in errors:
        alike.setdefault((error.thread, error.line, error.site), []).append(error)
    return [
        thread_error(tuple(sorted({error.rank for error in each})), *kind, each[0].traceback)
        for kind, each in alike.items()
    ]


def thread_error_of(thread: RankThread, error: BaseException) -> ThreadError:
    """Describe an exception that a thread raised."""
    return ThreadError(thread.rank, thread.name, one_line(error), site_of_error(error), traceback_text(error))
