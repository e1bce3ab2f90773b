"""Reads of a call's outputs before the wait.

Until the wait an output is of a class of ours, so that torch passes its functions through here (`__torch_function__`);
a program without a call in flight pays nothing. While such a function runs, a dispatch mode sees which memory its
operators read. Not found: reads in native code (numpy, pickle, a backward), by `print` and `repr`, in functions that
are compiled or mapped (`vmap`), through a view that was made before the call, of outputs that are not contiguous, and
of tensors that the program does not hold itself. A program that asks for the exact type of an output sees our class.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.runtime.call_sites import current_user_site, is_simulator_file
from ddpsim.simulator.transport.payload import elements_spanned

_ASKING = frozenset({"aten::is_pinned", "aten::is_same_size", "aten::_has_compatible_shallow_copy_type"})
"""Operators that ask for properties of a tensor and read no data."""

Span = tuple[int, int]
"""The first address of a tensor's memory, and the address after its end."""


class EarlyReads:
    """The outputs of the calls in flight of all ranks of this process."""

    def __init__(self, ask: Callable[[Noticed], object]) -> None:
        """`ask` is a function that sends a request to the kernel."""
        self._ask = ask
        self.held: dict[int, tuple[Call, Tensor]] = {}
        """By id, the outputs in flight and their views."""
        self._of_calls: dict[int, list[Tensor]] = {}
        """The same tensors, by the id of their call."""

    def watch_outputs(self, call: Call, outputs: Sequence[Tensor]) -> None:
        """Watch the tensors that a call writes."""
        for tensor in outputs:
            if type(tensor) is Tensor and memory_span(tensor) != (0, 0):
                self._hold(call, tensor)

    def _hold(self, call: Call, tensor: Tensor) -> None:
        self._mark(tensor)
        self.held[id(tensor)] = call, tensor
        self._of_calls.setdefault(id(call), []).append(tensor)

    def forget_call(self, call: Call | None) -> None:
        """Watch the outputs of a call no longer, or, for None, those of all calls."""
        for key in list(self._of_calls) if call is None else [id(call)]:
            for tensor in self._of_calls.pop(key, ()):
                if id(self.held.get(id(tensor), (None,))[0]) == key:  # else a later call writes it, too
                    del self.held[id(tensor)]
                    _unmark(tensor)

    def _mark(self, tensor: Any) -> None:
        tensor.__class__, tensor.early_reads = TensorInFlight, self

    def call_function(self, func: Any, args: tuple[Any, ...], kwargs: Any, leaves: Sequence[Any]) -> Any:
        """Call a function of torch of which some arguments are outputs in flight."""
        is_own = is_simulator_file(sys._getframe(2).f_code.co_filename)
        held = [each for leaf in leaves if (each := self.held.get(id(leaf)))]
        for _, tensor in held:
            _unmark(tensor)
        reads = _ReadsOf([enclosing_span(tensor) for _, tensor in held])
        name = getattr(func, "__name__", "")
        try:
            if is_own or name == "__get__":
                result = func(*args, **kwargs or {})
            else:
                with reads:
                    result = func(*args, **kwargs or {})
        finally:
            for _, tensor in held:
                if id(tensor) in self.held:  # not if the function has waited for the call
                    self._mark(tensor)
        for (call, tensor), span in zip(held, reads.spans, strict=True):
            if id(tensor) not in self.held:
                continue
            if span in reads.found or (name == "tolist" and not is_own):
                self.forget_call(call)
                self._ask(Noticed(NoticedKind.READ, (call,), current_user_site()))
            elif type(result) is Tensor and not is_own and _lies_in(result, span):
                self._hold(call, result)
        return result


class TensorInFlight(Tensor):
    """The class of outputs in flight, but not while a function of torch uses them."""

    early_reads: EarlyReads

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Let the `EarlyReads` of the arguments see the call of a function of torch."""
        leaves = tree_leaves((args, kwargs))
        for leaf in leaves:
            if type(leaf) is cls:
                return leaf.early_reads.call_function(func, args, kwargs, leaves)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})


def _unmark(tensor: Any) -> None:
    if isinstance(tensor, TensorInFlight):  # not an argument that is there twice, of which this is the second time
        tensor.__class__ = Tensor  # type: ignore[assignment]
        del tensor.early_reads


class _ReadsOf(TorchDispatchMode):
    """Sees which of some parts of memory torch's operators read; a view and a copy of the shape only read none."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spans = spans
        self.found: set[Span] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        reads = not func.is_view and name not in _ASKING and not name.endswith("_like") and "::new_" not in name
        if func.namespace == "aten" and reads:
            inputs = [
                leaf
                for argument, value in zip(func._schema.arguments, args, strict=False)
                if argument.alias_info is None or not argument.alias_info.is_write
                for leaf in (value if isinstance(value, (list, tuple)) else [value])
                if isinstance(leaf, Tensor)
            ]
            self.found.update(span for span in self.spans if any(_lies_in(leaf, span) for leaf in inputs))
        return func(*args, **kwargs or {})


def _lies_in(tensor: Tensor, span: Span) -> bool:
    """Return whether a tensor has memory in a span; if it is not contiguous, whether all of it lies there."""
    if tensor.layout is torch.strided and not tensor.is_contiguous():
        start, end = enclosing_span(tensor)
        return span[0] <= start < end <= span[1]
    return overlap_in_memory([span], [memory_span(tensor)])


def overlap_in_memory(written: Sequence[Span], others: Sequence[Span]) -> bool:
    """Return whether one of some parts of memory has an address in common with one of the others."""
    return any(start < other_end and other_start < end for start, end in written for other_start, other_end in others)


def memory_span(tensor: Tensor) -> Span:
    """Return the memory of a tensor; an empty span if it is not contiguous: other tensors may lie in its gaps."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous() or not tensor.nbytes:
        return 0, 0
    start = tensor.data_ptr()
    return start, start + tensor.nbytes


def enclosing_span(tensor: Tensor) -> Span:
    """Return the memory from the first to the last element of a strided tensor."""
    start = tensor.data_ptr()
    return start, start + elements_spanned(tensor) * tensor.element_size()
