"""External threads: ranks start them, but they are not simulated, as they work with other processes or real time."""

from __future__ import annotations

import asyncio
from typing import Any

from ddpsim.simulator.runtime.threads.event_loops import is_of_rank

_LOKY = ("loky", "joblib.externals.loky")
OUTSIDE = ("multiprocessing", "concurrent.futures.process", "torch.utils.data", "tqdm", *_LOKY)
"""The modules whose threads are external."""

_SILENT = (
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "torch.utils.data",
    "tqdm",
    *[f"{package}.backend.queues" for package in _LOKY],
)
"""The modules among them whose threads never release a lock that a rank waits for."""


def is_outside(thread: Any) -> bool:
    """True for a thread of one of those modules, and for one that an asyncio loop outside the ranks starts."""
    loop = asyncio._get_running_loop()
    return _module(thread).startswith(OUTSIDE) or (loop is not None and not is_of_rank(loop))


def may_wake_ranks(thread: Any) -> bool:
    """False for an external thread that never releases a lock that a rank waits for."""
    return not _module(thread).startswith(_SILENT)


def _module(thread: Any) -> str:
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", None) or type(thread).__module__
