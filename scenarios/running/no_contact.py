"""Report a program whose ranks never communicated, in the commands that need them to."""

from __future__ import annotations

from dataclasses import replace

from ddpsim import Result, UsageError
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.launching.script import Script


def check_meets(scenario: Scenario, result: Result) -> Result:
    """Raise UsageError if all ranks of a program finished without communicating with each other.

    A program that exits by sys.exit(0), as after --help, may do so on purpose. Its result has a note, and the error
    quotes it.
    """
    if not result.note:
        return result
    may_be = _where_it_may_be(scenario)
    if any(value == 0 for value in result.returns):
        return replace(result, note=result.note + may_be)
    raise UsageError(
        f"{result.note}; expected init_process_group on each: call it{may_be}, or run one rank (--world-size 1)"
    )


def _where_it_may_be(scenario: Scenario) -> str:
    """Return the advice to give --gpus, for a program that makes its group only when it finds a GPU."""
    assert isinstance(scenario.program, Script)
    text = scenario.program.text()
    is_for_gpus = scenario.gpus is None and ("cuda" in text or "accelerator" in text)
    return ", give --gpus N if it does so only with GPUs" if is_for_gpus else ""
