"""Keeps the mode (function mode) of virtual GPUs active in Python code in a backward, where autograd suspends modes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

from ddpsim.simulator.runtime.replaced import ReplacedAttributes


def keep_mode_in_backward(mode: Any) -> None:
    """Run all Python code inside a backward under the mode of virtual GPUs: functions, hooks and callbacks."""
    function: Any = BackwardCFunction
    ReplacedAttributes().set_attribute(function, "apply", _wrap_to_run_under_mode(mode, function.apply))
    _wrap_function_argument(mode, Tensor, "register_hook", 0)
    _wrap_function_argument(mode, Tensor, "register_post_accumulate_grad_hook", 0)
    _wrap_function_argument(mode, nn.Module, "register_full_backward_hook", 0)
    _wrap_function_argument(mode, nn.Module, "register_full_backward_pre_hook", 0)
    _wrap_function_argument(mode, DistributedDataParallel, "register_comm_hook", 1)
    _wrap_function_argument(mode, saved_tensors_hooks, "__init__", 1)  # a checkpoint recomputes in these hooks
    engine = "_execution_engine"
    ReplacedAttributes().replace_attribute(Variable, engine, lambda original: _ModeKeepingEngine(mode, original))
    _ignore_devices_in_checkpoints()


class _ModeKeepingEngine:
    """Replaces autograd's engine; callbacks for the end of a backward run under the mode of virtual GPUs."""

    def __init__(self, mode: Any, engine: Any) -> None:
        self._mode = mode
        self._engine = engine
        self.run_backward = engine.run_backward  # unchanged, because ddpsim recognises its frame on the stack

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Let a function be called at the end of the current backward, under the mode of virtual GPUs."""
        self._engine.queue_callback(_wrap_to_run_under_mode(self._mode, callback))


def _ignore_devices_in_checkpoints() -> None:
    """Make checkpoints compare tensors without devices, which they record differently under the virtual GPUs' mode."""
    checks = checkpoint._allowed_determinism_checks_to_fns
    look = checks[checkpoint._DEFAULT_DETERMINISM_MODE]

    def record_without_modes(tensor: Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            return look(tensor)

    checks[checkpoint._DEFAULT_DETERMINISM_MODE] = record_without_modes


def _wrap_to_run_under_mode(mode: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call_under_mode(*arguments: Any, **options: Any) -> Any:
        if torch._C._len_torch_function_stack():
            return function(*arguments, **options)
        with mode:
            return function(*arguments, **options)

    return call_under_mode


def _wrap_function_argument(mode: Any, owner: Any, name: str, position: int) -> None:
    """Make a method run the function in its argument at `position` (after `self`) under the mode of virtual GPUs."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        if len(arguments) > position and callable(arguments[position]):
            wrapped = _wrap_to_run_under_mode(mode, arguments[position])
            arguments = (*arguments[:position], wrapped, *arguments[position + 1 :])
        elif callable(hook := options.get("hook")):
            options = {**options, "hook": _wrap_to_run_under_mode(mode, hook)}
        return original(self, *arguments, **options)

    ReplacedAttributes().set_attribute(owner, name, method)
