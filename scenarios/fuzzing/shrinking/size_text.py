"""Format the size of a scenario as text."""

from __future__ import annotations

from ddpsim.scenarios.files.value_scenarios import program_of_scenario, training_of_scenario
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.shrinking.greedy import Size


def size_text(scenario: Scenario, size: Size) -> str:
    """Return the known parts of a scenario's size as text. The iterations of a function are not known."""
    parts = [count_with_noun(size.ranks, "rank")]
    if training_of_scenario(scenario) is not None:
        parts.append(count_with_noun(size.steps, "iteration"))
    elif program_of_scenario(scenario) is not None:
        parts.append(count_with_noun(size.calls, "call"))
    return ", ".join([*parts, count_with_noun(size.switches, "switch", "switches")])


def count_with_noun(count: int, one: str, several: str = "") -> str:
    """Format a number with its noun, in the singular or plural."""
    return f"{count} {one if count == 1 else several or one + 's'}"
