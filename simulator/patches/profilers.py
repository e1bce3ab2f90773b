"""torch's profiler.

A process has one. Two ranks that are threads cannot use it at once: torch does not refuse it, and the process ends by a
segmentation fault. So the second rank ends the run with a line.

What gloo tells it of a call besides the operator is asynchronous. Python cannot tell it so, but events can be made so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch.autograd import profiler

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import Replacement

STARTS = ("_prepare_profiler", "_enable_profiler")
ENDS = "_disable_profiler"
"""Functions that every profiler of torch's (torch.profiler, torch.autograd.profiler) finds in this module."""


GLOO = "gloo:"
"""What the names of its events begin with."""


class OneProfiler:
    """Lets one rank at a time profile."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._owner: int | None = None

    def replacements(self) -> list[Replacement]:
        """What is replaced."""
        return [
            *((profiler, name, self._starts) for name in STARTS),
            (profiler, ENDS, self._ends),
            (profiler, "FunctionEvent", _asynchronous_if_of_gloo),
        ]

    def _starts(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*arguments: Any, **options: Any) -> Any:
            if self._host.is_rank_thread():
                self._take(self._host.me.rank)
            return original(*arguments, **options)

        return start

    def _take(self, rank: int) -> None:
        if self._owner not in (None, rank):
            error = UsageError(
                f"rank {rank} starts torch's profiler while rank {self._owner} profiles, expected one rank at a time: "
                "ranks are threads here, and a process has one profiler: run with isolation='process'"
            )
            self._host.break_off(error)
            raise error
        self._owner = rank

    def _ends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(*arguments: Any, **options: Any) -> Any:
            try:
                return original(*arguments, **options)
            finally:
                self._owner = None

        return end


@cache
def _asynchronous_if_of_gloo(original: type[Any]) -> type[Any]:
    class FunctionEvent(original):  # type: ignore[misc]
        """As torch's."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            if str(options.get("name")).startswith(GLOO):
                options["is_async"] = True
            super().__init__(*arguments, **options)

    return FunctionEvent
