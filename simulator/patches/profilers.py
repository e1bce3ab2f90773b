"""torch's profiler inside ranks. A process has one profiler.

If two ranks in one process used it at once, torch would crash the process with a segmentation fault. So the second rank
ends the run with an error. Events of a call of gloo are asynchronous; Python cannot report such events, so they are
marked as asynchronous when torch reads them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch.autograd import profiler

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import Replacement, on_ranks

STARTS = ("_prepare_profiler", "_enable_profiler")
ENDS = "_disable_profiler"
"""Functions for the end of a profiler, which all of torch's profiler classes look up in this module."""

GLOO = "gloo:"
"""The prefix of the names of gloo's events."""


class ProfilerGuard:
    """Lets only one rank at a time use torch's profiler."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._owner: int | None = None

    def replacements(self) -> list[Replacement]:
        """Return the replacements of torch's functions that start and end a profiler."""
        return [
            *((profiler, name, on_ranks(self._host, self._start)) for name in STARTS),
            (profiler, ENDS, self._wrap_end),
            (profiler, "FunctionEvent", _mark_gloo_events_asynchronous),
        ]

    def _start(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        rank = self._host.running_thread.rank
        if self._owner not in (None, rank):
            error = UsageError(
                f"rank {rank} starts torch's profiler while rank {self._owner} profiles, expected one rank at a time: "
                "ranks are threads here, and a process has one profiler: run with isolation='process'"
            )
            self._host.abort_run(error)
            raise error
        self._owner = rank
        return original(*arguments, **options)

    def _wrap_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(*arguments: Any, **options: Any) -> Any:
            try:
                return original(*arguments, **options)
            finally:
                self._owner = None

        return end


@cache
def _mark_gloo_events_asynchronous(original: type[Any]) -> type[Any]:
    class FunctionEvent(original):  # type: ignore[misc]
        """An event of torch's profiler that marks gloo's events as asynchronous."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            if str(options.get("name")).startswith(GLOO):
                options["is_async"] = True
            super().__init__(*arguments, **options)

    return FunctionEvent
