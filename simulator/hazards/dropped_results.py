"""Results that are lost: a call writes into a copy that its own line makes, as `all_reduce(x.contiguous())` does.

A result is reported if the copy is made of something that has a name in the program, the call changed the copy, and
its memory is free when the rank makes its next call. Not reported: `x.clone()`, which keeps the original on purpose;
and tensors of constants or of the rank's number, as in `all_reduce(torch.ones(1))`, which programs use as barriers.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.hazards.poison import written_tensors
from ddpsim.simulator.runtime.call_sites import user_frame
from ddpsim.simulator.runtime.leaving import parse_file
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.payload import Payload

_WRITING = frozenset({"all_reduce", "broadcast", "reduce", "scatter", "recv"})
"""Operations whose first argument is the tensor that they write."""
_MAY_COPY = frozenset(
    [
        *("bfloat16", "bool", "contiguous", "cpu", "cuda", "double", "flatten"),
        *("float", "half", "int", "long", "reshape", "to", "type"),
    ]
)
_MAY_VIEW = frozenset({"detach", "view", "unsqueeze", "squeeze", "ravel"})
_NAMED = ast.Name, ast.Attribute, ast.Subscript


class Copy(NamedTuple):
    """A copy that a line makes for a call."""

    operation: str
    source: ast.expr
    """Of what it is a copy."""
    may_be_none: bool
    """True if the method returns the tensor itself, or a view, where no copy is needed."""


class DroppedResults:
    """Watches the copies that one run's ranks make for a call and then drop."""

    def __init__(self, world_size: int, ask: Callable[[Noticed], object]) -> None:
        """`ask` is a function that sends a request to the kernel."""
        self._ask = ask
        self.changed: list[list[tuple[Call, str, StorageWeakRef]]] = [[] for _ in range(world_size)]
        """By rank, the copies that its latest calls have changed."""

    def call_issued(self, pending: PendingCall, brought: Payload, found: Copy) -> None:
        """Note that a rank makes a synchronous call at a line that makes this copy."""
        call = pending.call
        if found.operation != call.operation:
            return
        tensor = next(iter(written_tensors(call.signature, brought, call.rank)), None)
        if tensor is None or tensor.layout is not torch.strided:
            return
        if found.may_be_none:
            source = _value_of(found.source, user_frame(sys._getframe(1)))
            if not isinstance(source, Tensor) or _memory_of(source) == _memory_of(tensor):
                return
        if tensor.numel() != 1 or tensor.item() != call.rank:
            before = _as_bytes(tensor).clone()
            pending.when_delivered.append(partial(self._note_change, call, ast.unparse(found.source), tensor, before))

    def _note_change(self, call: Call, source: str, tensor: Tensor, before: Tensor) -> None:
        if not torch.equal(_as_bytes(tensor), before):
            self.changed[call.rank].append((call, source, StorageWeakRef(tensor.untyped_storage())))

    def report(self, rank: int) -> None:
        """Report the results of a rank's earlier calls that nobody holds any more."""
        if changed := self.changed[rank]:
            self.changed[rank] = []
            for call, source, memory in changed:
                if memory.expired():
                    self._ask(Noticed(NoticedKind.DROPPED, (call,), source))


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _value_of(node: ast.expr, frame: FrameType | None) -> Any:
    """Return the value of a name, attribute or entry, of a tensor's entry the tensor; None if only the program's own
    code knows it."""
    if isinstance(node, ast.Name) and frame is not None:
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value, frame)
        if isinstance(owner, (Tensor, Module)):
            return getattr(owner, node.attr, None)
        return getattr(owner, "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript):
        owner = _value_of(node.value, frame)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else _value_of(node.slice, frame)
        with suppress(LookupError, TypeError):
            return owner[key] if type(owner) in (list, tuple, dict) else owner
    return None


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


@lru_cache(maxsize=4096)
def copy_of_line(site: Site) -> Copy | None:
    """Return the copy that a line makes for a call; None for most lines."""
    return _copies_of_file(site.path).get(site.line)


@lru_cache(maxsize=64)
def _copies_of_file(path: str) -> Mapping[int, Copy]:
    """Return, by the line of a file, the copy that is made for a call whose result is not used, if it is one."""
    found: dict[int, list[Copy]] = {}
    for node in ast.walk(parse_file(path)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            continue
        called, function = node.value, node.value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in _WRITING and called.args and all(each.arg != "async_op" for each in called.keywords):
            found.setdefault(called.lineno, []).extend(_copies_in(name, called.args[0]))
    return {line: copies[0] for line, copies in found.items() if len(copies) == 1}


def _copies_in(operation: str, node: ast.expr) -> Iterator[Copy]:
    """Yield the copy that an argument is, if it is one of something that the program names."""
    may_copy = False
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "tensor" and getattr(node.func.value, "id", "") == "torch":
            data = node.args[0] if node.args else None
            values = data.elts if isinstance(data, (ast.List, ast.Tuple)) else [data]
            if data is not None and values and all(isinstance(each, _NAMED) for each in values):
                yield Copy(operation, data, may_be_none=False)
            return
        if node.func.attr not in _MAY_COPY | _MAY_VIEW:
            return
        may_copy = may_copy or node.func.attr in _MAY_COPY
        node = node.func.value
    if may_copy and isinstance(node, _NAMED):
        yield Copy(operation, node, may_be_none=True)
