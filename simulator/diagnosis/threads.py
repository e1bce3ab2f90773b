"""Threads of a rank, as findings: those that raised, and why those of one rank wait for each other."""

from __future__ import annotations

from simulator.calls import Site
from simulator.diagnosis.advice import Cause
from simulator.diagnosis.explain import rank_list, shortened
from simulator.verdict import Code, Finding


def thread_error(rank: int, thread: str, error: str, site: Site | None, traceback_text: str) -> Finding:
    """The finding for a thread that ended by an exception; `error` is its type and message in one line."""
    where = f" at {site}" if site else ""
    summary = f'thread "{thread}" of rank {rank} raised {shortened(error, 200)}{where}'
    lines = [f"HAZARD  {Code.HAZARD_THREAD_ERROR}", f"  {summary}"]
    lines += ["  " + line for line in traceback_text.rstrip().splitlines()]
    lines += Cause.THREAD_RAISED.lines(culprits=rank_list([rank]))
    return Finding(Code.HAZARD_THREAD_ERROR, (rank,), summary, "\n".join(lines), (site,) if site else ())
