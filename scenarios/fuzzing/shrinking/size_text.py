"""Format the size of a scenario."""

from __future__ import annotations

from ddpsim.scenarios.files.value_scenarios import program_in, training_in
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.shrinking.greedy import Size


def size_text(scenario: Scenario, size: Size) -> str:
    """Return the parts of a size that are known; a function, for instance, has no known iterations."""
    parts = [counted(size.ranks, "rank")]
    if training_in(scenario) is not None:
        parts.append(counted(size.steps, "iteration"))
    elif program_in(scenario) is not None:
        parts.append(counted(size.calls, "call"))
    return ", ".join([*parts, counted(size.switches, "switch", "switches")])


def counted(count: int, one: str, several: str = "") -> str:
    """Format a number with its noun, in the singular or plural."""
    return f"{count} {one if count == 1 else several or one + 's'}"
