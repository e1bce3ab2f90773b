"""Replaces functions outside torch.cuda that read a device before any mode of torch can intercept them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddpsim.simulator.process_group.gpu_labels import (
    gpu_number_of,
    is_surely_on_cpu,
    put_all_on_gpu,
    put_on_cpu,
    put_on_gpu,
)
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.virtual_gpus.gpus import CPU, VirtualDevices


def replace_moves(gpus: VirtualDevices) -> None:
    """Make `to` accept numbers as devices, give parameters the GPU label of their data, make pinning do nothing."""
    native: Any = torch._C._nn
    parse, move, make = native._parse_to, Tensor.to, nn.Parameter.__new__

    def parse_to(*arguments: Any, **options: Any) -> Any:
        arguments, options = _name_device(arguments, options)
        with torch._C.DisableTorchFunction():  # the mode would take `device=` for the place of a new tensor
            return parse(*arguments, **options)

    @functools.wraps(move)
    def to(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        arguments, options = _name_device(arguments, options)
        moved: Tensor = move(self, *arguments, **options)
        return moved

    @functools.wraps(make)
    def make_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        made = make(cls, data, requires_grad)
        if data is not None and (label := gpu_number_of(data)) is not None:
            put_on_gpu(made, label)
        elif data is not None and is_surely_on_cpu(data):
            put_on_cpu(made)
        return made

    replaced = ReplacedAttributes()
    replaced.set_attribute(native, "_parse_to", parse_to)
    replaced.set_attribute(Tensor, "to", to)
    replaced.set_attribute(nn.Parameter, "__new__", make_parameter)
    # The pinning thread of a DataLoader runs without the mode.
    replaced.set_attribute(Tensor, "pin_memory", lambda self, device=None: self)
    replaced.set_attribute(Tensor, "record_stream", lambda self, stream: None)
    replaced.set_attribute(Tensor, "is_pinned", lambda self, device=None: gpu_number_of(self) is None)


def _name_device(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments; a device that is given by its number becomes a GPU."""
    if arguments and type(arguments[0]) is int:
        arguments = (torch.device("cuda", arguments[0]), *arguments[1:])
    if type(number := options.get("device")) is int:
        options = {**options, "device": torch.device("cuda", number)}
    return arguments, options


def replace_generator() -> None:
    """Make torch.Generator return a CPU generator if a program asks for a GPU's."""
    original = torch.Generator

    class Kind(type):
        def __call__(cls, device: Any = None) -> Any:
            is_cuda = device is not None and torch.device(device).type == "cuda"
            return original() if device is None or is_cuda else original(device)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, original)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, original)

    kind = Kind("Generator", (), {"__module__": "torch", "__doc__": original.__doc__})
    ReplacedAttributes().set_attribute(torch, "Generator", kind)


def replace_load(gpus: VirtualDevices) -> None:
    """Make torch.load read tensors to the CPU, and label them with the GPU that `map_location` names."""
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        wanted = map_location
        if isinstance(map_location, dict):  # it maps GPUs to GPUs
            wanted = next((to for to in map_location.values() if gpus.label_for(to) is not None), None)
        label = gpus.label_for(wanted)
        elsewhere = callable(map_location) or wanted is not None
        value = original(f, map_location if label is None and elsewhere else CPU, *arguments, **options)
        if label is not None:
            put_all_on_gpu(value, label)
        return value

    for owner in (torch, torch.serialization):
        ReplacedAttributes().set_attribute(owner, "load", load)


def replace_autocast() -> None:
    """Make autocast("cuda") also enter autocast("cpu"), because the CPU computes."""
    kind: Any = torch.amp.autocast_mode.autocast
    enter, leave = kind.__enter__, kind.__exit__

    def enter_both(self: Any) -> Any:
        if self.device == "cuda":
            companion = kind("cpu", dtype=self.fast_dtype, enabled=self._enabled, cache_enabled=self._cache_enabled)
            self.__dict__.setdefault("_on_cpu", []).append(companion)
            enter(companion)
        return enter(self)

    def leave_both(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if self.device == "cuda":
            leave(self._on_cpu.pop(), *error)
        return result

    ReplacedAttributes().set_attribute(kind, "__enter__", enter_both)
    ReplacedAttributes().set_attribute(kind, "__exit__", leave_both)


def replace_profiler() -> None:
    """Make the profiler ignore GPUs, because virtual GPUs run no kernels."""
    kind: Any = torch.autograd.profiler.profile
    begin = kind.__init__

    @functools.wraps(begin)
    def init_profiler_without_gpu(self: Any, *arguments: Any, **options: Any) -> None:
        options = {name: value for name, value in options.items() if name != "use_cuda"}
        begin(self, *arguments, **options | ({"use_device": None} if options.get("use_device") == "cuda" else {}))

    ReplacedAttributes().set_attribute(kind, "__init__", init_profiler_without_gpu)


def replace_compile(say: Callable[[], None]) -> None:
    """Make torch.compile return its function unchanged, because compiled code sees no labels."""

    def compile(model: Any = None, **options: Any) -> Any:
        say()
        return model if model is not None else lambda function: function

    ReplacedAttributes().set_attribute(torch, "compile", compile)
