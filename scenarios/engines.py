"""Engines: which DistributedDataParallel a program gets when it makes one.

Programs are written with torch's class, as everybody writes them. For our engine the class is told to become ours:
while it is installed, `DistributedDataParallel(module, ...)` makes a `ddp.DistributedDataParallel`, under whatever name
the program has imported torch's. A subclass of torch's class stays torch's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from inspect import signature
from typing import Any

from torch.nn.parallel import DistributedDataParallel

import ddp
from simulator import UsageError


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


@contextmanager
def installed(engine: Engine) -> Iterator[None]:
    """Let programs that wrap a model in torch's DistributedDataParallel get `engine`. Raises UsageError if nested."""
    if engine is Engine.TORCH:
        yield
        return
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise UsageError(
            "a scenario was started on engine 'ddp' while another one runs on it in this process, expected one at a "
            "time: let the first one end, or use another process"
        )
    original = DistributedDataParallel.__init__
    try:
        DistributedDataParallel.__init__ = _becomes_ours(original)  # type: ignore[method-assign]
        yield
    finally:
        DistributedDataParallel.__init__ = original  # type: ignore[method-assign]
        _ONE_AT_A_TIME.release()


def _becomes_ours(original: Any) -> Any:
    # Not by `__new__`: Python cannot take that off a class again (object.__new__ then refuses arguments).
    @wraps(original)
    def __init__(wrapper: Any, *arguments: Any, **options: Any) -> None:
        if type(wrapper) is not DistributedDataParallel:
            original(wrapper, *arguments, **options)
            return
        unknown = [name for name in options if name not in signature(ddp.DistributedDataParallel).parameters]
        if unknown:
            raise UsageError(
                f"engine 'ddp' has no option {', '.join(unknown)}: leave it out, or use engine {Engine.TORCH.value!r}"
            )
        object.__setattr__(wrapper, "__class__", ddp.DistributedDataParallel)
        own: Any = ddp.DistributedDataParallel.__init__
        own(wrapper, *arguments, **options)

    return __init__
