"""The plan of a fuzzing campaign. A worker process needs only the plan and a batch number to run a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.fuzzing.strategies.whole import Kind

EXECUTIONS = 40
"""The number of executions in one batch, which takes about a second."""


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """The plan of a campaign. Batch `i` draws from the seed `seed + i`."""

    seed: int = 0
    engines: tuple[Engine, ...] = tuple(Engine)
    executions: int | None = None
    """The number of executions of the whole campaign; None if only the time is limited."""
    name: str = ""
    """The name of the one scenario to fuzz, whose schedules and world sizes are drawn; "" to draw scenarios, too."""
    saved_as: str = ""
    """The name by which corpus files refer to the scenario `name`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    world_sizes: tuple[int, int] = (1, 1)
    """The smallest and the largest world size to draw for the scenario `name`."""
    kinds: tuple[Kind, ...] = tuple(Kind)
    """The kinds of scenarios to draw if no scenario is named."""
    for_torch: Literal[True, "documented"] = True
    """Whether trainings keep to limits of torch's engine: all, documented or none; see `strategies/trainings.py`."""

    def executions_of_batch(self, number: int) -> int:
        """Return the number of executions in a batch.

        A few more may run, because a started scenario is always finished.
        """
        left = EXECUTIONS if self.executions is None else self.executions - number * EXECUTIONS
        return max(0, min(EXECUTIONS, left))
