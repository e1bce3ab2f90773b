"""Did the ranks of a program meet at all? One that makes no group runs once for each rank, and shows nothing."""

from __future__ import annotations

from ddpsim import EventKind, Result, UsageError, Verdict
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.rank_processes.program import Program
from ddpsim.simulator.wording import rank_list

_MEETING = (EventKind.ISSUE, EventKind.STORE)


def check_meets(scenario: Scenario, result: Result) -> None:
    """Raise UsageError for a program whose ranks ran to their ends and had nothing to do with each other."""
    if _is_apart(scenario, result) and not any(value == 0 for value in result.returns):
        raise UsageError(
            f"{_made_none(scenario)}: all {result.world_size} ranks ran to their ends, each for itself; expected "
            f"init_process_group on each: call it{_where_it_may_be(scenario)}, or run one rank (--world-size 1)"
        )


def note_of(scenario: Scenario, result: Result) -> str:
    """The same of a program that has left by sys.exit(0), as after --help, where it may be meant so; "" of others."""
    if not _is_apart(scenario, result):
        return ""
    left = rank_list([rank for rank, value in enumerate(result.returns) if value == 0])
    return f"{_made_none(scenario)}: {left} left by sys.exit(0)"


def _is_apart(scenario: Scenario, result: Result) -> bool:
    return (
        isinstance(scenario.program, Program)
        and result.world_size > 1
        and result.verdict is Verdict.PASS
        and not any(event.kind in _MEETING for event in result.trace.events)
    )


def _made_none(scenario: Scenario) -> str:
    return f"{scenario.name} made no process group and used no store"


def _where_it_may_be(scenario: Scenario) -> str:
    """Many programs look whether there are GPUs before they make a group."""
    assert isinstance(scenario.program, Program)
    is_for_gpus = scenario.gpus is None and "cuda" in scenario.program.text()
    return ", give --gpus N if it does so only with GPUs" if is_for_gpus else ""
