"""Draw values from hypothesis strategies by a seed alone: the same values in every process.

By default hypothesis also draws constants that it finds in the loaded modules. These differ between the console's
process and a worker, and between versions of a file. So this module registers a provider without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.strategies import SearchStrategy

Drawn = TypeVar("Drawn")


class ByTheSeed(HypothesisProvider):
    """Hypothesis's own draws, without constants of loaded modules."""

    def _maybe_draw_constant(self, *_: Any, **__: Any) -> None:
        return None


_BACKEND = "ddpsim-by-the-seed"
AVAILABLE_PROVIDERS[_BACKEND] = ByTheSeed  # hypothesis selects a backend by its name in this registry


def draw_each(strategy: SearchStrategy[Drawn], number: int, count: int, take: Callable[[Drawn], object]) -> None:
    """Pass `count` drawn values to `take`, one after another; strategy and `number` determine them."""
    decorate = settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        backend=_BACKEND,
    )

    def take_one(value: Drawn) -> None:
        take(value)

    seed(number)(decorate(given(strategy)(take_one)))()
