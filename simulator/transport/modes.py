"""Modes of torch, by which a program watches or changes tensor operations: its own are meant, and not the transport's.

A rank that waits may move the data of others, on its own thread, where its modes are on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch.utils._python_dispatch import _disable_current_modes

_NOTHING: AbstractContextManager[None] = nullcontext()


def without_modes() -> AbstractContextManager[None]:
    """Take the modes of the calling thread off for a while: the program's, and fake tensors."""
    return _without() if _len_torch_dispatch_stack() or _len_torch_function_stack() else _NOTHING


@contextmanager
def _without() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield
