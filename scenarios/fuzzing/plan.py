"""What a campaign does, as a value: with the number of a batch, all that a worker has to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.fuzzing.strategies.whole import Kind

EXECUTIONS = 40
"""Of one batch, a second or so."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Batch `i` draws from the seed `seed + i`."""

    seed: int = 0
    engines: tuple[Engine, ...] = tuple(Engine)
    executions: int | None = None
    """Of the whole campaign; the last batch has what is left. None if only time ends it."""
    name: str = ""
    """The scenario whose schedules and world sizes are drawn; "" if scenarios are drawn themselves."""
    saved_as: str = ""
    """What a file in the corpus calls it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of its runs that the console was given."""
    world_sizes: tuple[int, int] = (1, 1)
    """The smallest and the largest that are drawn for it."""
    kinds: tuple[Kind, ...] = tuple(Kind)
    """What is drawn where nothing is named."""
    for_torch: Literal[True, "documented"] = True
    """Within what of torch's engine; see `ddpsim.scenarios.fuzzing.strategies.trainings`."""

    def share(self, number: int) -> int:
        """How many executions a batch makes: so many or a few more, as a scenario that was begun is ended."""
        left = EXECUTIONS if self.executions is None else self.executions - number * EXECUTIONS
        return max(0, min(EXECUTIONS, left))
