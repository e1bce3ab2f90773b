"""The program's names for the tensors of its calls, so that the tensors of matched calls can be compared by name.

Names come from the locals of the user's function that makes the call, of up to two functions that called it, and from
the attributes of their `self`: a parameter of a module or its gradient, an entry of an optimizer's state, or an entry
of a dictionary. Otherwise the variable of a loop that runs may name the tensor: a string that is a key of such a
dictionary, or in such a list or set. A value that a function reduces may have its name beside it, as in
`log("loss", value)`: the function's first argument that is a string. At a line where no name was found a few times, or
often enough, the search stops.
"""

import ast
import linecache
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import FrameType, FunctionType, ModuleType, NoneType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from ddpsim.simulator.diagnosis.hazards import MOST_NAMED, TensorName
from ddpsim.simulator.operations import OPERATIONS, ShapeCount
from ddpsim.simulator.runtime.call_sites import is_simulator_file

_COMBINING = frozenset(
    row.name
    for row in OPERATIONS.values()
    if (row.reduces or row.name == "broadcast") and row.shapes is not ShapeCount.PER_MEMBER
)
"""Operations that combine the tensors of all ranks into one: a tensor with another name on some rank is an error."""
_GATHERING = frozenset(row.name for row in OPERATIONS.values() if row.gathers)
"""Operations that collect the tensors of all ranks side by side: a program may pass different ones on purpose."""
NAMED = _COMBINING | _GATHERING
"""The operations whose tensors are named. Not messages: an exchange of borders sends `left` and receives `right`. Not
operations with one tensor for each rank: these tensors are in rank order."""

_MAPPINGS = (dict, OrderedDict, defaultdict)
_PLAIN = (Tensor, Parameter)
_UNSEARCHED_TYPES = frozenset({*_PLAIN, bool, int, float, str, NoneType, FunctionType, ModuleType})
"""Types of local variables that contain no named tensors: neither modules and optimizers nor containers."""
_FRAMES = 3
_MISSES = 8
_MOST_TENSORS = 64
"""A call with more tensors than this gets no tensor names."""
_MOST_ENTRIES = 1000
"""Containers with more entries than this are not searched for names."""
_OPTIMIZED = 0x1
"""The flag of a function whose `f_locals` are a copy; see CO_OPTIMIZED in Python's `inspect`."""


class TensorNameFinder:
    """Finds the names of one rank's tensors."""

    def __init__(self) -> None:
        self._misses: dict[tuple[int, int], int] = defaultdict(int)
        self._found: dict[tuple[int, int], int] = defaultdict(int)
        self._parameters: WeakKeyDictionary[Module, list[tuple[str, Tensor]]] = WeakKeyDictionary()
        self._versions = WeakTensorKeyDictionary()
        """Of tensors with several names in a dictionary, the version when they were named last."""

    def names_of_tensors(self, operation: str, tensors: Sequence[Tensor], frame: FrameType) -> tuple[TensorName, ...]:
        """Return the names of the tensors that a frame's function passes to a call; () if some tensor has no name."""
        line = id(frame.f_code), frame.f_lineno
        is_searched = self._misses.get(line, 0) >= _MISSES or self._found.get(line, 0) >= MOST_NAMED
        if is_searched or len(tensors) > _MOST_TENSORS:
            return ()
        names = []
        for tensor in tensors:
            name = self._find_name_safely(tensor, frame)
            if name is None and OPERATIONS[operation].reduces:
                name = _name_by_argument(frame)
            if name is None:
                self._misses[line] += 1
                return ()
            names.append(name if operation in _COMBINING else name._replace(is_sure=False))
        self._found[line] += len(names)
        self._misses[line] = 0
        return tuple(names)

    def _find_name_safely(self, tensor: Tensor, frame: FrameType) -> TensorName | None:
        try:
            with torch._C.DisableTorchFunction():
                return self._find_name_in_frames(tensor, frame)
        except Exception:  # an object of the program may raise when its attributes are read
            return None

    def _find_name_in_frames(self, tensor: Tensor, frame: FrameType) -> TensorName | None:
        outer: FrameType | None = frame
        for _ in range(_FRAMES):
            if outer is None or is_simulator_file(outer.f_code.co_filename):
                return None
            if (found := self._find_name_in_scope(tensor, _locals_of(outer), outer)) is not None:
                return found
            outer = outer.f_back if outer.f_code.co_filename == frame.f_code.co_filename else None
        return None

    def _find_name_in_scope(self, tensor: Tensor, values: Mapping[str, Any], frame: FrameType) -> TensorName | None:
        telling = [named for named in values.items() if type(named[1]) not in _UNSEARCHED_TYPES]
        if not telling:  # the fast path: most scopes have none, and every call asks
            return None
        if "self" in values:
            telling += _searchable_attributes(values["self"])
        for _, value in telling:
            if issubclass(type(value), Module) and (name := self._find_name_in_module(tensor, value)):
                return TensorName(name, is_sure=True)
            if issubclass(type(value), Optimizer) and (name := _find_name_in_optimizer(tensor, value)):
                return TensorName(name, is_sure=True)
        for owner, value in telling:
            if type(value) in _MAPPINGS and len(value) <= _MOST_ENTRIES:
                for key, item in value.items():
                    if item is tensor and isinstance(key, str):
                        others = [other for other, each in value.items() if each is tensor and other != key]
                        alias = f"{owner}[{others[0]!r}]" if others and self._is_named_again(tensor) else ""
                        return TensorName(f"{owner}[{key!r}]", is_sure=False, alias=alias)
        words = [named for named in values.items() if type(named[1]) is str]
        return _name_by_loop_variable(words, telling, frame) if words else None

    def _is_named_again(self, tensor: Tensor) -> bool:
        """Return whether a tensor was named before, and the rank has not changed it since."""
        if tensor.is_inference():  # it has no version
            return False
        before: int | None = self._versions.get(tensor)
        self._versions[tensor] = tensor._version
        return before == tensor._version

    def _find_name_in_module(self, tensor: Tensor, module: Module) -> str | None:
        known = self._parameters.get(module)
        if known is not None and (name := _name_of_parameter_or_gradient(tensor, known)) is not None:
            return name
        known = self._parameters[module] = [*module.named_parameters(), *module.named_buffers()]
        return _name_of_parameter_or_gradient(tensor, known)


def _name_of_parameter_or_gradient(tensor: Tensor, named: list[tuple[str, Tensor]]) -> str | None:
    if type(tensor) not in _PLAIN:
        return None
    for name, each in named:
        if type(each) not in _PLAIN:
            continue  # a DTensor, or an uninitialized parameter
        if each is tensor or _has_same_memory(each, tensor):
            return name
        gradient = each.grad if each.is_leaf else None
        if gradient is not None and (gradient is tensor or _has_same_memory(gradient, tensor)):
            return f"gradient of {name}"
    return None


def _has_same_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors use the same memory, such as a parameter and its `.data`."""
    is_plain = type(one) in _PLAIN and one.layout is other.layout is torch.strided
    return is_plain and one.shape == other.shape and one.numel() > 0 and one.data_ptr() == other.data_ptr() != 0


def _find_name_in_optimizer(tensor: Tensor, optimizer: Optimizer) -> str | None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is tensor:
                return f"{key} of parameter {number}"
    return None


def _searchable_attributes(owner: object) -> list[tuple[str, Any]]:
    attributes = getattr(owner, "__dict__", None)
    if type(attributes) is not dict:
        return []
    return [(f"self.{name}", value) for name, value in attributes.items() if type(value) not in _UNSEARCHED_TYPES]


def _name_by_loop_variable(
    words: list[tuple[str, str]], telling: list[tuple[str, Any]], frame: FrameType
) -> TensorName | None:
    for name, word in words:
        if any(_contains_word(container, word) for _, container in telling) and not _has_loop_ended(name, frame):
            return TensorName(f"{name} {word!r}", is_sure=False, is_word=True)
    return None


def _has_loop_ended(name: str, frame: FrameType) -> bool:
    """Return True if only loops that went through all of something bind a name, and none of them runs now."""
    ended = _lines_of_loops(frame.f_code.co_filename).get((frame.f_code.co_name, frame.f_code.co_firstlineno), {})
    return name in ended and all(frame.f_lineno not in lines for lines in ended[name])


@lru_cache(maxsize=64)
def _lines_of_loops(path: str) -> Mapping[tuple[str, int], Mapping[str, list[range]]]:
    """Return, by the name and first line of a function, the lines of the `for` loops without a `break` that bind a
    name, for names that nothing else binds there."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return {}
    found = {}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = list(ast.walk(function))
            hidden = [each.target for each in inside if isinstance(each, ast.comprehension)]  # in a scope of its own
            names = (each for each in inside if isinstance(each, ast.Name) and type(each.ctx) is ast.Store)
            bound = Counter(each.id for each in names) - Counter(_names_in(hidden))
            bound += Counter(each.arg for each in inside if isinstance(each, ast.arg))
            lines: dict[str, list[range]] = defaultdict(list)
            for loop in inside:
                if isinstance(loop, (ast.For, ast.AsyncFor)) and not _can_break(loop):
                    for name in _names_in([loop.target]):
                        lines[name].append(range(loop.lineno, (loop.body[-1].end_lineno or 0) + 1))
            first = min(each.lineno for each in (function, *function.decorator_list))
            found[function.name, first] = {name: own for name, own in lines.items() if bound[name] == len(own)}
    return found


def _names_in(targets: Sequence[ast.AST]) -> list[str]:
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _can_break(loop: ast.AST) -> bool:
    return any(isinstance(each, ast.Break) for each in ast.walk(loop))


def _name_by_argument(frame: FrameType) -> TensorName | None:
    values = _locals_of(frame)
    words = ((name, values.get(name)) for name in frame.f_code.co_varnames[: frame.f_code.co_argcount])
    texts = (f"{name} {word!r}" for name, word in words if type(word) is str)
    return next((TensorName(text, is_sure=False, is_word=True) for text in texts), None)


def _locals_of(frame: FrameType) -> dict[str, Any]:
    own = frame.f_locals
    values = dict(own)
    if frame.f_code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
        own.clear()  # the copy would keep its values alive
    return values


def _contains_word(container: Any, word: str) -> bool:
    if type(container) in (*_MAPPINGS, set, frozenset):
        return word in container
    is_short = type(container) in (list, tuple) and len(container) <= _MOST_ENTRIES
    return is_short and any(type(item) is str and item == word for item in container)
