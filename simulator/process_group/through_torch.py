"""Calls that pass through torch's dispatcher, because a dispatch mode or profiler is active, or because of their
arguments, or of hooks that the program has registered.

With a backend of torch's own, every method of a process group resolves its overloads and calls an operator
(`c10d::allreduce_` and so on, torch/csrc/distributed/c10d/Ops.cpp); the operator's kernel calls the backend. So
dispatch modes, profilers and tensors that stand for others (fake, meta, subclasses) see the call on its way. A backend
written in Python is not possible: `SimulatedBackend` has no constructor and no trampoline (torch 2.11 to 2.13).
Therefore:

- a call that no mode or profiler sees, with the arguments that torch.distributed gives, is made directly (`operator`);
- any other call goes through a plain C++ group (`NamedGroup.torch_group`), which resolves the overloads, and through
the operator. From the first such call of a run to its end, the kernels for tensors with data are ours
(`TorchDispatch`); the kernels for fake and meta tensors are torch's, and move nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch._C._distributed_c10d as _c10d
from torch import Tensor
from torch._C import _len_torch_dispatch_stack as _dispatch_modes
from torch._C import _len_torch_function_stack as _function_modes
from torch._C._autograd import _profiler_enabled
from torch._C._distributed_c10d import ProcessGroup, ReduceOp

from ddpsim.simulator.transport.modes import suspend_modes

_OLD_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
"""The names that methods of a process group had before torch 2.13."""

_OPTIONS = {"reduce_op": "reduceOp", "root_rank": "rootRank", "root_tensor": "rootTensor", "async_op": "asyncOp"}
"""Arguments of torch's operators, and the fields of option objects from which torch takes them."""

_OF_METHODS = ("dst", "src", "tag", "output_split_sizes", "input_split_sizes")
"""Arguments of torch's operators that follow the tensors and are also arguments of the group's methods."""

_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
"""The `__torch_dispatch__` method of tensor classes that define none of their own: Tensor, Parameter."""


class _DispatchedCall:
    """One communication call on its way through torch's dispatcher."""

    __slots__ = ("frame", "group", "has_arrived", "method", "reduction", "work")

    def __init__(self, group: Any, method: Callable[..., Any], reduction: Any, frame: FrameType) -> None:
        self.group = group
        self.method = method
        self.reduction = reduction
        """The reduction that the caller gave. Python cannot read the operator's own reduction argument."""
        self.frame = frame
        """The stack frame that made the call. Frames of dispatch modes, which are the user's too, are inside of it."""
        self.has_arrived = False
        self.work: Any = None
        """The work of the call, kept alive because C++ keeps only the C++ half of it."""


class TorchDispatch:
    """Passes the communication calls of one run through torch's dispatcher."""

    def __init__(self) -> None:
        self._library: Any = None
        self._is_over = False
        self.under_way: dict[int, _DispatchedCall] = {}
        """By thread, the innermost call on its way through torch's dispatcher."""

    def call_operator(
        self, group: Any, method: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        """Make a call of a group by way of torch's dispatcher, and return its work."""
        if self._is_over:  # a group was kept after the run: the operators have torch's kernels again
            return method(group, *arguments, **options)
        self._install_kernels()
        call = _DispatchedCall(group, method, _reduction_of(arguments, options), sys._getframe(1))
        me = get_ident()
        outer = self.under_way.get(me)
        self.under_way[me] = call
        try:
            answer = getattr(group.torch_group, _torch_method_name(method))(*arguments, **options)
        finally:
            if outer is None:
                del self.under_way[me]
            else:
                self.under_way[me] = outer
        return answer if call.work is None else call.work

    def calling_frame(self) -> FrameType | None:
        """Return the frame that made the call now passing through torch's dispatcher on this thread; or None."""
        call = self.under_way.get(get_ident())
        if call is None or not call.has_arrived:
            return None
        call.has_arrived = False
        return call.frame

    def restore_kernels(self) -> None:
        """Restore the kernels of torch's operators."""
        self._is_over = True
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _install_kernels(self) -> None:
        if self._library is not None:
            return
        self._library = torch.library.Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of exactly this
            for name, row in _OPERATORS.items():
                for key in row.keys:
                    self._library.impl(name, self._kernel_of(name, row), key, allow_override=True)

    def _kernel_of(self, name: str, row: _OperatorRow) -> Callable[..., Any]:
        schema = getattr(torch.ops.c10d, name).default._schema
        names = [argument.name for argument in schema.arguments]
        count = names.index("process_group")
        returns_tensors = len(schema.returns) > 1

        def kernel(*arguments: Any) -> Any:
            call = self.under_way.get(get_ident())
            if call is None or ProcessGroup.unbox(arguments[count]) is not call.group.torch_group:
                raise RuntimeError(f"c10d::{name} is not of a group of this simulation, expected one of the rank's own")
            values = dict(zip(names, arguments, strict=False))
            tensors = () if name == "barrier" else arguments[:count]
            given = [values[key] for key in names if key in _OF_METHODS]
            if row.options is not int:
                given.append(_options_of(row.options, values, call.reduction))
            hooks = call.group.hooks
            has_hooks = hooks.before or hooks.after  # which may make calls of their own
            before = hooks.call_ahead(name, tensors, values) if has_hooks else {}
            call.has_arrived = True
            with _recorded_by_profiler(row.title, tensors[-1] if tensors else []), suspend_modes():
                call.work = call.method(call.group, *tensors, *given)
            if before:
                hooks.call_afterwards(before, call.work)
            work = call.work.boxed()
            return (arguments[0], work) if returns_tensors else work

        return kernel


def dispatches_as(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for a method that issues calls: it passes them through torch's operator `name` where a mode, a
    profiler or the arguments need that.

    The method takes its arguments by position, and torch's options last.
    """
    kind = _OPERATORS[name].options

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        count = len(inspect.signature(method).parameters) - 1
        with_tensors = min(count - 1, 2)  # the arguments that may be tensors come first

        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            if options and len(options) == 1 and "opts" in options:
                arguments, options = (*arguments, options["opts"]), {}
            elif (
                self.is_backend
                and not options
                and arguments
                and len(arguments) == count - 1
                and type(arguments[-1]) is list
            ):
                arguments = (*arguments, kind())  # torch's dispatcher would refuse an empty list
            if (
                options
                or len(arguments) != count
                or type(arguments[-1]) is not kind
                or self.hooks.before
                or self.hooks.after
                or _dispatch_modes()
                or _profiler_enabled()
            ):
                return self.through_torch.call_operator(self, method, arguments, options)
            if _function_modes():
                with torch._C.DisableTorchFunction():
                    if _have_own_memory(arguments[:with_tensors]):
                        return method(self, *arguments)
            elif not with_tensors or _have_own_memory(arguments[:with_tensors]):
                return method(self, *arguments)
            return self.through_torch.call_operator(self, method, arguments, options)

        return call

    return decorate


def _have_own_memory(arguments: Sequence[Any]) -> bool:
    """True for tensors with memory of their own, not fake or meta ones. Of a list, only the first tensor is checked."""
    for argument in arguments:
        while type(argument) is list and argument:
            argument = argument[0]
        if type(argument) is Tensor:
            if argument.is_meta:
                return False
        elif isinstance(argument, Tensor) and (
            argument.is_meta or type(argument).__torch_dispatch__ is not _NO_DISPATCH
        ):
            return False
    return True


def _torch_method_name(method: Callable[..., Any]) -> str:
    name = method.__name__
    return name if hasattr(ProcessGroup, name) else _OLD_NAMES[name]


def _reduction_of(arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """Return the reduction in a method's arguments, where it may be a field of an options object; SUM by default."""
    for argument in (*arguments, *options.values()):
        if isinstance(argument, (ReduceOp, ReduceOp.RedOpType)):
            return argument
        if (found := getattr(argument, "reduceOp", None)) is not None:
            return found
    return ReduceOp.SUM


def _options_of(kind: Any, values: dict[str, Any], reduction: Any) -> Any:
    """Rebuild the options object from which torch took the arguments of an operator."""
    options = kind()
    for name, field in _OPTIONS.items():
        if name in values and hasattr(options, field):
            setattr(options, field, reduction if name == "reduce_op" else values[name])
    if "timeout" in values:
        options.timeout = timedelta(milliseconds=values["timeout"])
    return options


@contextmanager
def _recorded_by_profiler(title: str, tensors: Any) -> Iterator[None]:
    """Record the call for torch's profiler, under the title that gloo gives such a call."""
    if not _profiler_enabled():
        yield
        return
    while isinstance(tensors, (list, tuple)) and tensors and isinstance(tensors[0], (list, tuple)):
        tensors = tensors[0]
    shown = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    handle = torch._C._autograd._record_function_with_args_enter(f"gloo:{title}", *shown)
    try:
        yield
    finally:
        torch._C._autograd._record_function_with_args_exit(handle)


class _OperatorRow(NamedTuple):
    options: Any
    """The class of the method's options argument; `int` if the last argument is a number."""
    title: str
    """gloo's title of the call in profiles."""
    keys: Sequence[str] = ("CPU", "CUDA")
    """The dispatch keys for which the operator's kernel is replaced."""


_OPERATORS = {
    "allreduce_": _OperatorRow(_c10d.AllreduceOptions, "all_reduce", ("CPU", "CUDA", "SparseCPU", "SparseCUDA")),
    "allreduce_coalesced_": _OperatorRow(_c10d.AllreduceCoalescedOptions, "all_reduce"),
    "reduce_": _OperatorRow(_c10d.ReduceOptions, "reduce"),
    "reduce_scatter_": _OperatorRow(_c10d.ReduceScatterOptions, "reduce_scatter"),
    "_reduce_scatter_base_": _OperatorRow(_c10d.ReduceScatterOptions, "reduce_scatter"),
    "reduce_scatter_tensor_coalesced_": _OperatorRow(_c10d.ReduceScatterOptions, "reduce_scatter"),
    "broadcast_": _OperatorRow(_c10d.BroadcastOptions, "broadcast"),
    "allgather_": _OperatorRow(_c10d.AllgatherOptions, "all_gather"),
    "allgather_coalesced_": _OperatorRow(_c10d.AllgatherOptions, "all_gather"),
    "_allgather_base_": _OperatorRow(_c10d.AllgatherOptions, "all_gather"),
    "allgather_into_tensor_coalesced_": _OperatorRow(_c10d.AllgatherOptions, "all_gather"),
    "gather_": _OperatorRow(_c10d.GatherOptions, "gather"),
    "scatter_": _OperatorRow(_c10d.ScatterOptions, "scatter"),
    "alltoall_": _OperatorRow(_c10d.AllToAllOptions, "all_to_all"),
    "alltoall_base_": _OperatorRow(_c10d.AllToAllOptions, "all_to_all"),
    "barrier": _OperatorRow(_c10d.BarrierOptions, "barrier"),
    "send": _OperatorRow(int, "send"),
    "recv_": _OperatorRow(int, "recv"),
    "recv_any_source_": _OperatorRow(int, "recvAnySource"),
}
"""torch's operators that issue calls."""
if hasattr(ProcessGroup, "gather_single"):  # since torch 2.14
    _OPERATORS["gather_into_tensor_"] = _OperatorRow(_c10d.GatherOptions, "gather")
