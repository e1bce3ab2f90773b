"""The finding for ranks (as threads) that change state of the process that they share."""

from __future__ import annotations

from enum import Enum

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import of_many
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, rank_list


class Shared(Enum):
    """Uses of state that belongs to a process, not to a rank."""

    FOLDER = "changes the working folder"
    SIGNALS = "sets a signal handler, which Python allows the main thread of a process alone"
    PROCESSES = "starts processes, which make ranks where a rank is a process"
    ENVIRONMENT = "reads {of} while a module is imported, once for all ranks"
    LIBRARY = "{of} keeps the state of a rank in its modules"


def shared_process(what: Shared, ranks: tuple[int, ...], site: Site, of: str = "") -> Finding:
    """Return the finding for one use at one line; `of` is the environment variable or the library."""
    deed = what.value.format(of=of)
    summary = f"{rank_list(ranks)} {of_many(deed) if len(ranks) > 1 else deed} at {site}" if ranks else deed
    lines: tuple[str | Line, ...] = (
        f"HAZARD  {Code.HAZARD_SHARED_PROCESS}",
        f"  {summary}",
        *Cause.PROCESS_SHARED.lines(),
    )
    return Finding(Code.HAZARD_SHARED_PROCESS, ranks, summary, lines, (site,) if ranks else ())
