"""What a test asks of a run most often: what its ranks returned, and what was found on which ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddpsim import Result, simulate


def returned(program: Callable[..., Any], world_size: int = 2, **options: Any) -> tuple[Any, ...]:
    """What the ranks of a run return; it must pass."""
    result = simulate(program, world_size, **options)
    result.raise_for_verdict()
    return result.returns


def codes(result: Result) -> list[tuple[str, tuple[int, ...]]]:
    """The code and the ranks of each finding."""
    return [(finding.code.value, finding.ranks) for finding in result.findings]
