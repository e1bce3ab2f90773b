"""Replaces torch's DistributedDataParallel by this engine's, so that unmodified programs use it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any

from torch.nn.parallel import DistributedDataParallel as TorchsEngine

from ddpsim.ddp.engine import DistributedDataParallel
from ddpsim.ddp.errors import UsageError


@contextmanager
def patch_torch_ddp() -> Iterator[None]:
    """Return a context in which a new torch DistributedDataParallel is this engine's, however imported; no subclasses.

    The patch changes the whole process, so two threads must not use it at once.
    """
    original = TorchsEngine.__init__
    TorchsEngine.__init__ = _replaced_constructor(original)  # type: ignore[method-assign]
    try:
        yield
    finally:
        TorchsEngine.__init__ = original  # type: ignore[method-assign]


def _replaced_constructor(original: Callable[..., None]) -> Any:
    # Not by `__new__`, which cannot be removed from a class again: object.__new__ then rejects arguments.
    @wraps(original)
    def __init__(wrapper: Any, *arguments: Any, **options: Any) -> None:
        if type(wrapper) is not TorchsEngine:
            original(wrapper, *arguments, **options)
            return
        known = signature(DistributedDataParallel).parameters
        unknown = [name for name in options if name not in known]
        if unknown:
            raise UsageError(
                f"DistributedDataParallel got {', '.join(unknown)}, which this engine does not have: leave it out, or "
                "use torch's"
            )
        object.__setattr__(wrapper, "__class__", DistributedDataParallel)
        own: Any = DistributedDataParallel.__init__
        own(wrapper, *arguments, **options)

    return __init__
