"""Drawing from hypothesis strategies by a seed alone: the same values in every process.

Hypothesis by itself also draws constants that it reads in the modules loaded so far, and those differ between the
process of the console and a worker, or from one version of a file to the next. So there is a provider of ours
that leaves them out.
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
AVAILABLE_PROVIDERS[_BACKEND] = ByTheSeed  # hypothesis's registry of backends, which is how one is named


def draw_each(strategy: SearchStrategy[Drawn], number: int, count: int, take: Callable[[Drawn], object]) -> None:
    """Hand `count` values to `take`, one after the other; which ones follows from the strategy and `number`."""
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
