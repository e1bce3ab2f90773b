"""Suspends torch's modes, with which a program observes or changes tensor operations, while the simulator's code runs.

Data moves inside the call that comes last, on a thread where the modes of its program may be active. They are off from
where the call enters the simulator, so a transport need not ask: `dispatches_as` makes a call directly only if no mode
sees it, and the kernels of torch's operators suspend the modes (through_torch.py).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._ops import _len_torch_dispatch_stack_pre_dispatch, _pop_mode_from_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode, _push_mode

_TAKEN_OFF: ContextVar[tuple[Any, ...] | None] = ContextVar("_TAKEN_OFF", default=None)
"""The suspended dispatch modes of the running thread, the outermost last; None if no mode is suspended."""

_NOTHING: AbstractContextManager[None] = nullcontext()


def suspend_modes() -> AbstractContextManager[None]:
    """Suspend the modes of the calling thread, fake tensors included."""
    return _modes_suspended() if _len_torch_dispatch_stack() or _len_torch_function_stack() else _NOTHING


def restore_modes() -> AbstractContextManager[None]:
    """Activate the suspended modes again, for a callback of the program."""
    return _NOTHING if (modes := _TAKEN_OFF.get()) is None else _modes_active(modes)


@contextmanager
def _modes_suspended() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes() as modes:
        before = _TAKEN_OFF.set((*modes, *(_TAKEN_OFF.get() or ())))
        try:
            yield
        finally:
            _TAKEN_OFF.reset(before)


@contextmanager
def _modes_active(modes: tuple[Any, ...]) -> Iterator[None]:
    torch_c: Any = torch._C
    before = _TAKEN_OFF.set(None)
    with torch_c._EnableTorchFunction():
        for mode in reversed(modes):  # as `_disable_current_modes` does at its end
            _push_mode(mode)
        try:
            yield
        finally:
            while _len_torch_dispatch_stack_pre_dispatch():
                _pop_mode_from_pre_dispatch()
            while _len_torch_dispatch_stack():
                _pop_mode()
            _TAKEN_OFF.reset(before)
