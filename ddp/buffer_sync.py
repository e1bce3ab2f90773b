"""Buffers: what each of a module's buffers is made of before or after a forward, and in how few collectives.

A buffer is broadcast from one rank, reduced over the ranks, left alone, or given to a callable of the user's own. What
has one strategy, dtype and device travels in one flat collective; groups and flat tensors are made once: a model has
hundreds of small buffers and a forward comes every few milliseconds.

The buffers are those the module has at construction; one added later is not seen. The tensor of a buffer is looked up
at each call, so a reassigned one counts. When to synchronise, and what joined ranks do meanwhile, the caller decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ddp.broadcast import broadcast_coalesced
from ddp.errors import UsageError


class When(Enum):
    """On which side of a forward a buffer is synchronised."""

    BEFORE_FORWARD = "before"
    AFTER_FORWARD = "after"


class Strategy(Enum):
    """What a buffer is made of. Reductions are over the ranks with input; MEAN divides by their number."""

    BROADCAST = "broadcast"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    NONE = "none"


HookResult: TypeAlias = "Tensor | dist.Work | torch.futures.Future[Any] | None"

BufferHook: TypeAlias = Callable[[Tensor, ProcessGroup], HookResult]
"""Called with the buffer and the group, under no_grad. What it returns:

None, if it changed the buffer in place; a tensor, which is copied into the buffer; a work, which is waited for; or a
future, which is waited for, and whose value (a tensor or a list with one; None: in place) is copied into the buffer.
"""


class BufferSync:
    """The strategies of a module's buffers, and their synchronisation over `group`.

    A buffer under several names counts once, under its first; if that name is in `ignored`, it is none of ours. Every
    buffer begins with BROADCAST before the forward, or with NONE if not `broadcasts`.
    """

    def __init__(
        self, module: nn.Module, group: ProcessGroup, *, ignored: Container[str] = (), broadcasts: bool = True
    ) -> None:
        self._group = group
        self._first_names = _first_names(module)
        slots = [_slot(module, name) for name in dict.fromkeys(self._first_names.values())]
        self._ignored = {slot.name: slot for slot in slots if slot.name in ignored}
        self._slots = {slot.name: slot for slot in slots if slot.name not in ignored}
        for name, first in self._first_names.items():
            if name != first and first in self._slots:
                self._slots[first].aliases.append(_slot(module, name))
        rule = _Rule(Strategy.BROADCAST if broadcasts else Strategy.NONE, When.BEFORE_FORWARD)
        self._rules = dict.fromkeys(self._slots, rule)
        self._plans: dict[When, _Plan] = {}
        self.has_hooks = False
        """Whether a buffer is treated otherwise than by default."""

    def register(
        self,
        name_or_tensor: str | Tensor,
        hook: Strategy | str | BufferHook,
        *,
        when: When | str = When.BEFORE_FORWARD,
    ) -> None:
        """Give a buffer another strategy, in the place of the one it had; on all ranks alike, in the same order."""
        slot = self._find(name_or_tensor)
        rule = _Rule(_strategy(hook, slot), _when(when))
        # Callables run in order of registration, so a name that is registered again goes to the end.
        self.has_hooks = True
        self._rules.pop(slot.name)
        self._rules[slot.name] = rule
        self._plans.clear()

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The tensors that the buffers are now, by name, without the ignored ones."""
        current = {name: slot.owner.get(slot.key) for name, slot in self._slots.items()}
        return {name: buffer for name, buffer in current.items() if buffer is not None}

    def has_any(self, when: When) -> bool:
        """Whether `synchronize` has anything to do there."""
        return any(self._plan(when))

    def synchronize(self, when: When, *, source: int, present: int) -> None:
        """Bring the buffers of that side to what their strategies say, in place; `present` ranks have input.

        `source` is the rank in the group whose buffers are broadcast. Callables come last, one by one: each sees the
        others' buffers synchronised already. They wait together for what they began.
        """
        plan = self._plan(when)
        with torch.no_grad():
            # Every buffer is looked at before anything is sent: a wrong one must not leave the ranks half way.
            # `.data` has a version counter of its own: a forward that has saved a buffer, as batch norm does, may still
            # run backward after the next forward has synchronised it. torch's engine counts no such writes either.
            to_broadcast = [slot.tensor().data for slot in plan.broadcasts]
            to_reduce = [[slot.tensor().data for slot in reduction.slots] for reduction in plan.reductions]
            to_call = [slot.tensor() for slot, _ in plan.hooks]
            pending = [
                reduction.issue(buffers, self._group)
                for reduction, buffers in zip(plan.reductions, to_reduce, strict=True)
            ]
            if to_broadcast:
                broadcast_coalesced(to_broadcast, source, self._group)
            for reduction in pending:
                reduction.finish(present)
            results = [hook(buffer, self._group) for (_, hook), buffer in zip(plan.hooks, to_call, strict=True)]
            for (slot, hook), buffer, result in zip(plan.hooks, to_call, results, strict=True):
                _finish_hook(result, buffer, f"hook {_hook_name(hook)} of buffer {slot.name!r}")

    def _plan(self, when: When) -> _Plan:
        plan = self._plans.get(when)
        if plan is None:
            plan = self._plans[when] = _plan(self._slots, self._rules, when)
        return plan

    def _find(self, wanted: str | Tensor) -> _Slot:
        name: str | None = None
        if isinstance(wanted, Tensor):
            slots = (*self._slots.values(), *self._ignored.values())
            name = next((slot.name for slot in slots if slot.owner.get(slot.key) is wanted), None)
            found = f"name_or_tensor is a tensor {_text(_layout(wanted))}"
        else:
            name = self._first_names.get(wanted) if isinstance(wanted, str) else None
            found = f"name_or_tensor is {wanted!r}"
        if name in self._slots:
            return self._slots[name]
        if name in self._ignored:
            raise UsageError(f"{found}, a buffer that the engine was told to ignore: take {name!r} off that list")
        raise UsageError(f"{found}, which is no buffer of the module{_candidates(wanted, list(self._slots))}")


Tensors: TypeAlias = list[Tensor]

Layout: TypeAlias = "tuple[torch.Size, torch.dtype, torch.device]"


class _Slot(NamedTuple):
    """Where a buffer lives, whatever tensor it is at the moment, and the layout it must keep."""

    name: str
    owner: _Owner
    key: str
    layout: Layout
    aliases: list[_Slot]
    """Where the same tensor lives under other names."""

    def tensor(self) -> Tensor:
        """The tensor that the buffer is now."""
        buffer = self.owner.get(self.key)
        if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != self.layout:
            raise UsageError(
                f"buffer {self.name!r} is {buffer if buffer is None else _text(_layout(buffer))}, and was "
                f"{_text(self.layout)} when the model was wrapped: keep its shape, dtype and device, wrap the model "
                'again, or register "none" for it on all ranks'
            )
        for alias in self.aliases:
            if alias.owner.get(alias.key) is not buffer:
                raise UsageError(
                    f"buffers {self.name!r} and {alias.name!r} were one tensor when the model was wrapped, and are not "
                    "now: assign one tensor to both, or wrap the model again"
                )
        return buffer


class _Rule(NamedTuple):
    hook: Strategy | BufferHook
    when: When


class _Pending(NamedTuple):
    """A reduction under way: `wire` travels; what was packed into its `views` belongs to `buffers`."""

    work: dist.Work | None
    wire: Tensor
    views: Tensors
    buffers: Tensors
    is_mean: bool

    def finish(self, present: int) -> None:
        """Wait, divide a mean by `present`, and unpack."""
        if self.work is not None:
            self.work.wait()
        if self.is_mean:
            self.wire.div_(present)
        if self.buffers:
            _copy(self.buffers, self.views)


class _Reduction:
    """The buffers of one strategy, dtype and device: one all_reduce of a flat tensor that is kept for the next time."""

    def __init__(self, strategy: Strategy, slots: Sequence[_Slot]) -> None:
        self.slots = tuple(slots)
        self._operation = _OPERATIONS[strategy]
        self._is_mean = strategy is Strategy.MEAN
        self._flat: Tensor | None = None
        self._views: Tensors = []

    def issue(self, buffers: Tensors, group: ProcessGroup) -> _Pending:
        """Begin to reduce `buffers`, which are those of `slots`; a single one travels as it is, if it can."""
        packed = [] if len(buffers) == 1 and _is_plain(buffers[0]) else buffers
        wire = self._pack(packed) if packed else buffers[0]
        work = dist.all_reduce(wire, self._operation, group, async_op=True) if wire.numel() else None
        return _Pending(work, wire, self._views, packed, self._is_mean)

    def _pack(self, buffers: Tensors) -> Tensor:
        flat = self._flat
        if flat is None:
            shapes = [slot.layout[0] for slot in self.slots]
            sizes = [shape.numel() for shape in shapes]
            flat = self._flat = torch.empty(sum(sizes), dtype=buffers[0].dtype, device=buffers[0].device)
            self._views = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
        _copy(self._views, buffers)
        return flat


_OPERATIONS = {
    Strategy.SUM: dist.ReduceOp.SUM,
    Strategy.MEAN: dist.ReduceOp.SUM,
    Strategy.MAX: dist.ReduceOp.MAX,
    Strategy.MIN: dist.ReduceOp.MIN,
}


def _copy(targets: Tensors, sources: Tensors) -> None:
    """Copy in one call, which cannot write to a tensor that is conjugated or negated lazily."""
    if targets[0].is_complex() or any(map(Tensor.is_neg, targets)):
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    else:
        torch._foreach_copy_(targets, sources)


def _is_plain(buffer: Tensor) -> bool:
    return buffer.is_contiguous() and not buffer.is_conj() and not buffer.is_neg()


class _Plan(NamedTuple):
    """All that is done on one side of a forward."""

    broadcasts: tuple[_Slot, ...]
    reductions: tuple[_Reduction, ...]
    hooks: tuple[tuple[_Slot, BufferHook], ...]


def _plan(slots: dict[str, _Slot], rules: dict[str, _Rule], when: When) -> _Plan:
    """Group the buffers in the module's order, so that only callables depend on the order of registration."""
    groups: dict[tuple[Strategy, torch.dtype, torch.device], list[_Slot]] = {}
    broadcasts = []
    for name, slot in slots.items():
        hook, side = rules[name]
        if side is when and hook is Strategy.BROADCAST:
            broadcasts.append(slot)
        elif side is when and isinstance(hook, Strategy) and hook is not Strategy.NONE:
            groups.setdefault((hook, *slot.layout[1:]), []).append(slot)
    return _Plan(
        tuple(broadcasts),
        tuple(_Reduction(strategy, members) for (strategy, _, _), members in groups.items()),
        tuple(
            (slots[name], hook)
            for name, (hook, side) in rules.items()
            if side is when and not isinstance(hook, Strategy)
        ),
    )


def _finish_hook(result: object, buffer: Tensor, origin: str) -> None:
    """Wait for what a callable left under way, and copy what came of it into the buffer."""
    if isinstance(result, dist.Work):
        result.wait()
        return
    found = type(result).__name__
    if isinstance(result, torch._C.Future):
        result = result.wait()
        if isinstance(result, (list, tuple)) and len(result) == 1:
            (result,) = result
        found = f"a future of {type(result).__name__}"
    if result is None or result is buffer:
        return
    if isinstance(result, Tensor):
        if result.shape == buffer.shape and result.dtype == buffer.dtype:
            buffer.copy_(result)
            return
        found = f"a tensor {_text(_layout(result))}"
    raise UsageError(
        f"{origin} returned {found}, expected a tensor {_text(_layout(buffer))}, a future of one, a work, or None: "
        "change the buffer in place, or return a tensor like it"
    )


def _first_names(module: nn.Module) -> dict[str, str]:
    """From every name of a buffer to the first name of the same tensor."""
    first: dict[Tensor, str] = {}
    # Unbound, since modules of the C++ frontend override the method with fewer arguments.
    named = nn.Module.named_buffers(module, remove_duplicate=False)
    return {name: first.setdefault(buffer, name) for name, buffer in named}


class _Owner(Protocol):
    """A module's buffers, by name: a dictionary, if the module is written in Python."""

    def get(self, key: str, /) -> Tensor | None:
        """The buffer, if there is one."""


class _OwnerInCpp:
    """The buffers of a module of the C++ frontend, which gives out a copy of their dictionary on each request."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def get(self, key: str, /) -> Tensor | None:
        buffers = self._module._buffers
        if key not in buffers:
            return None
        return buffers[key]


def _owner(module: nn.Module, prefix: str) -> _Owner:
    for name in prefix.split(".") if prefix else ():
        submodule = module._modules[name]
        assert submodule is not None
        module = submodule
    return module._buffers if isinstance(module._buffers, dict) else _OwnerInCpp(module)


def _slot(module: nn.Module, name: str) -> _Slot:
    prefix, _, key = name.rpartition(".")
    owner = _owner(module, prefix)
    buffer = owner.get(key)
    assert buffer is not None
    if nn.parameter.is_lazy(buffer):
        raise UsageError(f"module has the uninitialised buffer {name!r}: run one forward before wrapping it")
    return _Slot(name, owner, key, _layout(buffer), [])


def _strategy(hook: Strategy | str | BufferHook, slot: _Slot) -> Strategy | BufferHook:
    # torch's reductions can be called, but are no hooks.
    if callable(hook) and not isinstance(hook, dist.ReduceOp.RedOpType):
        return hook
    names = ", ".join(repr(strategy.value) for strategy in Strategy)
    try:
        strategy = Strategy(hook)
    except ValueError:
        raise UsageError(f"hook is {hook!r}, expected one of {names}, or a callable of (buffer, group)") from None
    dtype = slot.layout[1]
    if unfit := _unfit(strategy, dtype):
        raise UsageError(f"hook is {strategy.value!r} for buffer {slot.name!r} of {_dtype_text(dtype)}: {unfit}")
    return strategy


def _unfit(strategy: Strategy, dtype: torch.dtype) -> str | None:
    """Why a dtype cannot have a strategy, and what to do; None if it can."""
    if strategy in (Strategy.SUM, Strategy.MEAN) and dtype is torch.bool:
        return 'truth values have no sum; take "max" for any, "min" for all, or count in an integer buffer'
    if strategy is Strategy.MEAN and not (dtype.is_floating_point or dtype.is_complex):
        return 'an integer cannot hold a mean; take "sum", or keep the buffer as a float'
    if strategy in (Strategy.MAX, Strategy.MIN) and dtype.is_complex:
        return 'complex numbers have no order; take "sum" or "mean", or a callable'
    return None


def _when(when: When | str) -> When:
    try:
        return When(when)
    except ValueError:
        names = " or ".join(repr(side.value) for side in When)
        raise UsageError(f"when is {when!r}, expected {names} (the forward)") from None


def _candidates(wanted: object, names: Sequence[str], limit: int = 8) -> str:
    """The end of a sentence on an unknown buffer: the names perhaps meant, and those there are."""
    if not names:
        return ", which has none to synchronise: register the buffer with the module before wrapping it"
    near: list[str] = []
    if isinstance(wanted, str):
        same_ending = [name for name in names if name.rpartition(".")[2] == wanted.rpartition(".")[2]]
        near = difflib.get_close_matches(wanted, names) or same_ending[:3]
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{meant} It has {', '.join(map(repr, names[:limit]))}{more}: give one of these, or its tensor"


def _hook_name(hook: BufferHook) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))


def _layout(tensor: Tensor) -> Layout:
    return tensor.shape, tensor.dtype, tensor.device


def _text(layout: Layout) -> str:
    shape, dtype, device = layout
    return f"{_dtype_text(dtype)}{list(shape)}" + ("" if device.type == "cpu" else f" on {device}")


def _dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
