"""Engines: the implementation of DistributedDataParallel that a program gets, torch's or ddpsim's.

Programs use torch's class; with engine "ddp", creating it creates ddpsim's class instead. The engine is imported when a
program runs, because describing a scenario needs no torch.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import Any

from ddpsim import UsageError
from ddpsim.simulator.launching.script import Script


class Engine(str, Enum):
    """The implementation of DistributedDataParallel that synchronises the replicas."""

    TORCH = "torch"
    DDP = "ddp"

    @classmethod
    def parse_name(cls, name: "str | Engine") -> "Engine":
        """Return the engine of that name. Raises UsageError for an unknown name."""
        try:
            return cls(name)
        except ValueError:
            names = " or ".join(repr(engine.value) for engine in cls)
            raise UsageError(f"engine is {name!r}, expected {names}: give one of these") from None


_PATCH_LOCK = threading.Lock()
# torch's class is patched in the whole process.


def program_for_engine(program: Callable[..., Any], engine: Engine) -> Callable[..., Any]:
    """Return the program changed to use `engine`. A `Script` runs in separate processes. They install the engine
    themselves, because `install_engine` affects only its own process."""
    if isinstance(program, Script) and engine is Engine.DDP:
        from ddpsim.ddp import patch_torch_ddp

        return replace(program, within=patch_torch_ddp)
    return program


@contextmanager
def install_engine(engine: Engine) -> Iterator[None]:
    """In this block, creating torch's DistributedDataParallel creates the class of `engine`.

    Raises UsageError if nested.
    """
    if engine is Engine.TORCH:
        yield
        return
    from ddpsim.ddp import patch_torch_ddp

    if not _PATCH_LOCK.acquire(blocking=False):
        raise UsageError(
            "a scenario was started on engine 'ddp' while another one runs on it in this process, expected one at a "
            "time: let the first one end, or use another process"
        )
    try:
        with patch_torch_ddp():
            yield
    finally:
        _PATCH_LOCK.release()
