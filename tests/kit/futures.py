"""Futures of calls, in the ways in which a program gets hold of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

FUTURES = ("of the call", "chained", "collected")


def done(value: Any) -> torch.futures.Future[Any]:
    """One that is done."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


def future_of(work: dist.Work, kind: str) -> Any:
    """One that is done when a call is."""
    future = work.get_future()
    if kind == "chained":
        return future.then(lambda done: done.value()).then(lambda done: None)
    return torch.futures.collect_all([future]) if kind == "collected" else future
