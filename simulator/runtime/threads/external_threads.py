"""Threads that stay outside of the simulation: their business is with other processes or with real time."""

from __future__ import annotations

import asyncio
from typing import Any

from ddpsim.simulator.runtime.threads.event_loops import is_of_rank

_LOKY = ("loky", "joblib.externals.loky")
OUTSIDE = ("multiprocessing", "concurrent.futures.process", "torch.utils.data", "tqdm", *_LOKY)
"""The modules whose threads are left outside."""

_SILENT = (
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "torch.utils.data",
    "tqdm",
    *[f"{package}.backend.queues" for package in _LOKY],
)
"""Those of them for which no rank waits at a lock."""


def is_outside(thread: Any) -> bool:
    """True for one of those modules, and for what a loop of asyncio starts that is none of a rank's."""
    loop = asyncio._get_running_loop()
    return _module(thread).startswith(OUTSIDE) or (loop is not None and not is_of_rank(loop))


def may_wake_ranks(thread: Any) -> bool:
    """False for one outside for which no rank waits at a lock."""
    return not _module(thread).startswith(_SILENT)


def _module(thread: Any) -> str:
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", None) or type(thread).__module__
