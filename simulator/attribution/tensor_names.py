"""What a program calls the tensors that it brings to a call of its own, so that those that meet can be compared.

Looked for in the locals of the user's function that makes the call, and of up to two that called it, in what `self` has
there, and in nothing else: a parameter of a module or its gradient, an entry of an optimizer's state, and an entry of a
dictionary, by its key. Where the tensor was made of an entry, the loop's variable may tell: a string that is a key of
such a dictionary, or in such a list or set. At a line where this finds nothing a few times over, or has found a name
often enough, it is not looked for any more.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType, NoneType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from ddpsim.simulator.diagnosis.tensor_names import MOST_NAMED, TensorName
from ddpsim.simulator.operations import OPERATIONS, Movement, Shapes
from ddpsim.simulator.runtime.call_sites import is_simulators_file

_MEETING = frozenset(
    row.name
    for row in OPERATIONS.values()
    if (row.reduces or row.movement is Movement.BROADCAST) and row.shapes is not Shapes.PER_MEMBER
)
"""Operations that make one tensor of those that meet: another name is another meaning."""
_GATHERING = frozenset(row.name for row in OPERATIONS.values() if row.gathers)
"""Those that lay them side by side, so that a program may bring others on purpose. What objects become is in these."""
NAMED = _MEETING | _GATHERING
"""Operations whose tensors are named. Not messages: an exchange of borders sends `left` where it receives `right`. Not
the lists that have a tensor for each rank: their order is that of the ranks."""

_MAPPINGS = (dict, OrderedDict, defaultdict)
_PLAIN = (Tensor, Parameter)
_TELLS_NOTHING = frozenset({*_PLAIN, bool, int, float, str, NoneType, FunctionType, ModuleType})
"""Types of values in a scope that no name is found by: neither parts of a program nor containers."""
_FRAMES = 3
_MISSES = 8
_MOST_TENSORS = 64
"""Those of a call that brings more are not named."""
_MOST_ENTRIES = 1000
"""Larger containers are not looked through."""
_OPTIMIZED = 0x1
"""Of a function, whose locals are copied for who asks; see CO_OPTIMIZED in Python's `inspect`."""


class TensorNames:
    """Looks for the names of one rank's tensors."""

    def __init__(self) -> None:
        self._misses: dict[tuple[int, int], int] = defaultdict(int)
        self._found: dict[tuple[int, int], int] = defaultdict(int)
        self._codes: dict[int, CodeType] = {}
        """By id, as the hash of a code takes longer than all else here; kept, so that an id means one code."""
        self._parameters: WeakKeyDictionary[Module, list[tuple[str, Tensor]]] = WeakKeyDictionary()

    def of(self, operation: str, tensors: Sequence[Tensor], frame: FrameType) -> tuple[TensorName, ...]:
        """The names of the tensors that the function of a frame brings to a call; () if one has none."""
        line = id(frame.f_code), frame.f_lineno
        if (
            self._misses.get(line, 0) >= _MISSES
            or self._found.get(line, 0) >= MOST_NAMED
            or len(tensors) > _MOST_TENSORS
        ):
            return ()
        names = []
        for tensor in tensors:
            name = self._name(tensor, frame)
            if name is None:
                self._misses[line] += 1
                return ()
            names.append(name if operation in _MEETING else name._replace(is_sure=False))
        self._found[line] += len(names)
        self._misses[line] = 0
        return tuple(names)

    def _name(self, tensor: Tensor, frame: FrameType) -> TensorName | None:
        try:
            with torch._C.DisableTorchFunction():
                return self._look(tensor, frame)
        except Exception:  # of the program's own objects, which may do what they like when they are looked at
            return None

    def _look(self, tensor: Tensor, frame: FrameType) -> TensorName | None:
        outer: FrameType | None = frame
        for _ in range(_FRAMES):
            if outer is None or is_simulators_file(outer.f_code.co_filename):
                return None
            own = outer.f_locals
            values = dict(own)
            if outer.f_code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
                own.clear()  # a copy, which would keep everything in it alive
            if (found := self._in_scope(tensor, values)) is not None:
                return found
            outer = outer.f_back if outer.f_code.co_filename == frame.f_code.co_filename else None
        return None

    def _in_scope(self, tensor: Tensor, values: Mapping[str, Any]) -> TensorName | None:
        telling = [named for named in values.items() if type(named[1]) not in _TELLS_NOTHING]
        if not telling:  # as in most scopes, and this is asked at each call
            return None
        if "self" in values:
            telling += _attributes_that_tell(values["self"])
        for _, value in telling:
            if issubclass(type(value), Module) and (name := self._in_module(tensor, value)):
                return TensorName(name, is_sure=True)
            if issubclass(type(value), Optimizer) and (name := _in_optimizer(tensor, value)):
                return TensorName(name, is_sure=True)
        for owner, value in telling:
            if type(value) in _MAPPINGS and len(value) <= _MOST_ENTRIES:
                for key, item in value.items():
                    if item is tensor and isinstance(key, str):
                        return TensorName(f"{owner}[{key!r}]", is_sure=False)
        words = [named for named in values.items() if type(named[1]) is str]
        return _by_loop_variable(words, telling) if words else None

    def _in_module(self, tensor: Tensor, module: Module) -> str | None:
        known = self._parameters.get(module)
        if known is not None and (name := _among(tensor, known)) is not None:
            return name
        known = self._parameters[module] = [*module.named_parameters(), *module.named_buffers()]
        return _among(tensor, known)


def _among(tensor: Tensor, named: list[tuple[str, Tensor]]) -> str | None:
    if type(tensor) not in _PLAIN:
        return None
    for name, each in named:
        if type(each) not in _PLAIN:
            continue  # a part of a tensor on a mesh, or one that is not there yet
        if each is tensor or _is_at(each, tensor):
            return name
        gradient = each.grad if each.is_leaf else None
        if gradient is not None and (gradient is tensor or _is_at(gradient, tensor)):
            return f"gradient of {name}"
    return None


def _is_at(one: Tensor, other: Tensor) -> bool:
    """True for two tensors of the same memory, such as a parameter and its `.data`."""
    is_plain = type(one) in _PLAIN and one.layout is other.layout is torch.strided
    return is_plain and one.shape == other.shape and one.numel() > 0 and one.data_ptr() == other.data_ptr() != 0


def _in_optimizer(tensor: Tensor, optimizer: Optimizer) -> str | None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is tensor:
                return f"{key} of parameter {number}"
    return None


def _attributes_that_tell(owner: object) -> list[tuple[str, Any]]:
    attributes = getattr(owner, "__dict__", None)
    if type(attributes) is not dict:
        return []
    return [(f"self.{name}", value) for name, value in attributes.items() if type(value) not in _TELLS_NOTHING]


def _by_loop_variable(words: list[tuple[str, str]], telling: list[tuple[str, Any]]) -> TensorName | None:
    for name, word in words:
        if any(_has(container, word) for _, container in telling):
            return TensorName(f"{name} {word!r}", is_sure=False)
    return None


def _has(container: object, word: str) -> bool:
    if type(container) in (*_MAPPINGS, set, frozenset) and isinstance(container, Collection):
        return word in container
    if type(container) not in (list, tuple) or not isinstance(container, (list, tuple)):
        return False
    return len(container) <= _MOST_ENTRIES and any(type(item) is str and item == word for item in container)
