"""Engines: which DistributedDataParallel a program gets when it makes one.

Programs are written with torch's class, as everybody writes them; under our engine it becomes ours when it is made.
The engine is imported where it is used: what a scenario is needs no torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import Any

from ddpsim import UsageError
from ddpsim.simulator.launching.script import Script


class Engine(str, Enum):
    """Who synchronises the replicas."""

    TORCH = "torch"
    DDP = "ddp"

    @classmethod
    def named(cls, name: str | Engine) -> Engine:
        """The engine of that name. Raises UsageError if there is none."""
        try:
            return cls(name)
        except ValueError:
            names = " or ".join(repr(engine.value) for engine in cls)
            raise UsageError(f"engine is {name!r}, expected {names}: give one of these") from None


_ONE_AT_A_TIME = threading.Lock()
# torch's class belongs to the whole process.


def run_under(program: Callable[..., Any], engine: Engine) -> Callable[..., Any]:
    """The program as it runs under `engine`: what is installed here is not there where a `Script` runs."""
    if isinstance(program, Script) and engine is Engine.DDP:
        from ddpsim.ddp import patch_torch_ddp

        return replace(program, within=patch_torch_ddp)
    return program


@contextmanager
def installed(engine: Engine) -> Iterator[None]:
    """Let programs that wrap a model in torch's DistributedDataParallel get `engine`. Raises UsageError if nested."""
    if engine is Engine.TORCH:
        yield
        return
    from ddpsim.ddp import patch_torch_ddp

    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise UsageError(
            "a scenario was started on engine 'ddp' while another one runs on it in this process, expected one at a "
            "time: let the first one end, or use another process"
        )
    try:
        with patch_torch_ddp():
            yield
    finally:
        _ONE_AT_A_TIME.release()
