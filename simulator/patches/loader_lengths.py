"""Reports how many batches the data loaders of each rank have: ranks that have fewer leave their loops first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from ddpsim.simulator.kernel.requests import LoaderBegun
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import Replacement


def replacements(host: Host) -> list[Replacement]:
    """What is replaced."""

    def telling(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def begin(loader: Any) -> Any:
            if host.is_rank_thread() and (batches := _length(loader)) is not None:
                host.ask(LoaderBegun(batches, site_here()))
            return original(loader)

        return begin

    return [(DataLoader, "__iter__", telling)]


def _length(loader: Any) -> int | None:
    """None if it does not know: that of a stream shows as it goes."""
    try:
        return len(loader)
    except Exception:  # a sampler is the program's
        return None
