"""An exploration strategy that ends at the first run with a wanted result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ddpsim.simulator.choices import Policy
from ddpsim.simulator.exploration.strategy import Wrapped, strategy_of
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Finding


class Search(Wrapped):
    """Wraps an exploration strategy, and ends it at the first wanted result."""

    def __init__(
        self,
        explore: Mapping[str, Any],
        world_size: int,
        seed: int,
        is_wanted: Callable[[Result], bool] | None,
        *,
        on_next: Callable[[], None],
    ) -> None:
        """`explore` has the policy and its options; `on_next` is called before each run."""
        super().__init__(strategy_of(world_size=world_size, seed=seed, **explore))
        self._is_wanted = is_wanted
        self._on_next = on_next
        self.found: Result | None = None
        self.last: Result | None = None

    def next_policy(self) -> Policy | None:
        """Return the next policy of the wrapped strategy; None after a wanted result."""
        policy = None if self.found else super().next_policy()
        if policy is not None:
            self._on_next()
        return policy

    def take(self, result: Result) -> Finding | None:
        """Check whether a result is wanted, and pass it on to the wrapped strategy."""
        finding = super().take(result)
        self.last = result
        if self._is_wanted is not None and self._is_wanted(result):
            self.found = result
        return finding
