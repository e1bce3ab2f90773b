"""A program whose ranks never met, where somebody wants to see them meet."""

from __future__ import annotations

from ddpsim import Result, UsageError
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.rank_processes.program import Program


def check_meets(scenario: Scenario, result: Result) -> None:
    """Raise UsageError for a program whose ranks ran to their ends and had nothing to do with each other.

    One that has left by sys.exit(0), as after --help, may be meant so: its result has a note.
    """
    if result.note and not any(value == 0 for value in result.returns):
        raise UsageError(
            f"{result.note}; expected init_process_group on each: call it{_where_it_may_be(scenario)}, or run one rank "
            "(--world-size 1)"
        )


def _where_it_may_be(scenario: Scenario) -> str:
    """Many programs look whether there are GPUs before they make a group."""
    assert isinstance(scenario.program, Program)
    is_for_gpus = scenario.gpus is None and "cuda" in scenario.program.text()
    return ", give --gpus N if it does so only with GPUs" if is_for_gpus else ""
