"""Replacements for methods that DDP's C++ Reducer calls. It waits in C++, where no context switch is possible.

Each function takes the original, most often a method of `torch.distributed.Reducer`, and returns the replacement. Waits
inside an ordinary backward are handled elsewhere, see Note [Waiting inside backward].
"""

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from ddpsim.simulator.process_group.group import SimulatedGroup
from ddpsim.simulator.runtime.host import Host

_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "TORCH_DISTRIBUTED_DEBUG", "CUDA_VISIBLE_DEVICES")
"""Environment variables that DDP's logging data contain."""


def keep_forward_work_alive(original: Callable[..., None]) -> Callable[..., None]:
    """Note [Works that only C++ holds], for `_set_forward_pass_work_handle`.

    The Reducer keeps the C++ half of the work with which a forward told the others that this rank has not joined, and
    waits for it in the backward if gradients are divided by the ranks present (Reducer::set_divide_factor). Nobody in
    Python keeps the other half, and without it the C++ half waits for ever. So it lives as long as the Reducer here.
    """
    works: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def set_forward_pass_work_handle(reducer: Any, work: Any, use_static_world_size: bool) -> None:
        works[reducer] = work
        original(reducer, work, use_static_world_size)

    return set_forward_pass_work_handle


def wait_for_delayed_reduce(host: Host, original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Note [Static graphs], for `_delay_all_reduce`.

    In the first backward of a static graph one autograd callback issues all the Reducer's calls and waits for them, in
    C++ (Reducer::delay_all_reduce). No other callback runs in between. So each of these calls is waited for as soon as
    it is issued.
    """

    def delay_all_reduce(reducer: Any) -> None:
        if not host.is_rank_thread():
            return original(reducer)
        me = host.running_thread
        me.is_reducing_at_once = True
        try:
            original(reducer)
        finally:
            me.is_reducing_at_once = False

    return delay_all_reduce


def python_builtin_hook(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Note [Built-in hooks], for `DistributedDataParallel._register_builtin_comm_hook`.

    DDP's C++ hook for fp16 (default_comm_hooks.cpp) takes its tensors from the future of a call. It needs a typed
    future, which Python cannot make. So torch's Python hook, which does the same arithmetic, replaces it.
    """

    def register_builtin_comm_hook(model: Any, kind: Any) -> None:
        if kind == BuiltinCommHookType.FP16_COMPRESS and isinstance(model.process_group, SimulatedGroup):
            model.register_comm_hook(model.process_group, fp16_compress_hook)
            model.logger._set_comm_hook_name(str(kind))
        else:
            original(model, kind)

    return register_builtin_comm_hook


def extract_tensors_fast(original: Callable[[Any], list[Tensor]]) -> Callable[[Any], list[Tensor]]:
    """Note [Tensors of a bucket], for `torch._jit_internal._extract_tensors`.

    The Reducer asks it for the tensors in the value of each bucket's future, and it pickles the value to find them. The
    value is a list of tensors, and among many ranks the pickler is cold each time: 2 % of a training of 512 ranks.
    C++ keeps the function that it finds first, for good; what this one says is right outside of runs, too.
    """

    def extract_tensors(value: Any) -> list[Tensor]:
        if type(value) is list and all(isinstance(each, Tensor) for each in value):
            return value.copy()
        return original(value)

    return extract_tensors


def backend_logging_data(original: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """Return a replacement of `DistributedDataParallel._get_ddp_logging_data`: it adds the data on the backend that C++
    (Logger::set_env_variables) would add."""

    def get_ddp_logging_data(model: Any) -> dict[str, Any]:
        data = original(model)
        if isinstance(model.process_group, SimulatedGroup):
            name = data["backend_name"] = model.process_group.name()
            for variable in _VARIABLES:  # the rank's environment; C++ has read the process's
                data[variable.lower()] = os.environ.get(variable, "N/A")
            if name == "gloo":
                data["gloo_num_threads"] = model.process_group.options._threads
                for variable in ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"):
                    data[variable.lower()] = os.environ.get(variable, "N/A")
        return data

    return get_ddp_logging_data
