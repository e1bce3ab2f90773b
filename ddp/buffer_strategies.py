"""The buffers of a module, and for each buffer a strategy: how and when it is synchronized across ranks.

The buffers are those of the module at construction. Their tensors are read at each call, so a buffer may be reassigned.
Nothing here communicates.
"""

import difflib
from collections.abc import Callable, Container, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ddpsim.ddp.errors import UsageError
from ddpsim.ddp.text_formats import dtype_text, tensor_text


class When(Enum):
    """Whether a buffer is synchronized before or after a forward."""

    BEFORE_FORWARD = "before"
    AFTER_FORWARD = "after"


class Strategy(Enum):
    """How a buffer is combined across the ranks with input; MEAN divides by their number."""

    BROADCAST = "broadcast"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    NONE = "none"


HookResult: TypeAlias = "Tensor | dist.Work | torch.futures.Future[Any] | None"

BufferHook: TypeAlias = Callable[[Tensor, ProcessGroup], HookResult]
"""A function of the buffer and the group, called under no_grad. It returns None if it changed the buffer in place, a
tensor to copy into the buffer, a work to wait for, or a future of a tensor, of a list with one, or of None."""


class BufferStrategies:
    """The buffers of a module, and the strategy of each.

    A buffer with several names counts once, under its first; if that name is in `ignored`, it is left out. At first
    every buffer is broadcast before the forward, or has the strategy NONE if not `broadcasts`.
    """

    def __init__(self, module: nn.Module, *, ignored: Container[str], broadcasts: bool) -> None:
        self._first_names = _first_names(module)
        slots = [_buffer_place(module, name) for name in dict.fromkeys(self._first_names.values())]
        self._ignored = {slot.name: slot for slot in slots if slot.name in ignored}
        self._slots = {slot.name: slot for slot in slots if slot.name not in ignored}
        for name, first in self._first_names.items():
            if name != first and first in self._slots:
                self._slots[first].aliases.append(_buffer_place(module, name))
        rule = _BufferRule(Strategy.BROADCAST if broadcasts else Strategy.NONE, When.BEFORE_FORWARD)
        self._default = rule
        self._rules = dict.fromkeys(self._slots, rule)

    def set_strategy(
        self, name_or_tensor: str | Tensor, hook: Strategy | str | BufferHook, *, when: When | str
    ) -> None:
        """Replace the strategy of a buffer."""
        slot = self._find_buffer(name_or_tensor)
        rule = _BufferRule(_checked_strategy(hook, slot), _checked_side(when))
        # Callables run in order of registration, so a name that is registered again goes to the end.
        self._rules.pop(slot.name)
        self._rules[slot.name] = rule

    @property
    def sides_of_custom_buffers(self) -> dict[str, str]:
        """For each buffer with a strategy other than the default: "before" or "after" a forward, or "never"."""
        return {
            name: "never" if rule.hook is Strategy.NONE else rule.when.value
            for name, rule in self._rules.items()
            if rule is not self._default
        }

    def buffers_with_strategy(self, when: When) -> "Iterator[tuple[BufferPlace, Strategy]]":
        """Yield the buffers with a named strategy for this side (before or after a forward), in the module's order."""
        for name, slot in self._slots.items():
            hook, side = self._rules[name]
            if side is when and isinstance(hook, Strategy):
                yield slot, hook

    def buffers_with_callable(self, when: When) -> "Iterator[tuple[BufferPlace, BufferHook]]":
        """Yield the buffers with a callable for this side (before or after a forward), in order of registration."""
        for name, (hook, side) in self._rules.items():
            if side is when and not isinstance(hook, Strategy):
                yield self._slots[name], hook

    def _find_buffer(self, wanted: str | Tensor) -> "BufferPlace":
        name: str | None = None
        if isinstance(wanted, Tensor):
            slots = (*self._slots.values(), *self._ignored.values())
            name = next((slot.name for slot in slots if slot.current_tensor is wanted), None)
            found = f"name_or_tensor is a tensor {BufferLayout.of_tensor(wanted)}"
        else:
            name = self._first_names.get(wanted) if isinstance(wanted, str) else None
            found = f"name_or_tensor is {wanted!r}"
        if name in self._slots:
            return self._slots[name]
        if name in self._ignored:
            raise UsageError(f"{found}, a buffer that the engine ignores: remove {name!r} from the ignored names")
        raise UsageError(f"{found}, which is no buffer of the module{_suggest_buffers(wanted, list(self._slots))}")


class BufferLayout(NamedTuple):
    """The properties that a buffer must keep after construction, such as its dtype and shape."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> "BufferLayout":
        """Return the layout (such as dtype and shape) of a tensor."""
        return cls(tensor.shape, tensor.dtype, tensor.device)

    def __str__(self) -> str:
        text = tensor_text(self.dtype, self.shape)
        return text if self.device.type == "cpu" else f"{text} on {self.device}"


class BufferPlace(NamedTuple):
    """Where a module holds a buffer, and the layout that the buffer must keep."""

    name: str
    owner: nn.Module
    key: str
    layout: BufferLayout
    aliases: "list[BufferPlace]"
    """Other places in the module that hold the same tensor."""

    @property
    def current_tensor(self) -> Tensor | None:
        """The buffer's current tensor; None if there is none."""
        buffers = self.owner._buffers
        if self.key not in buffers:  # a module of the C++ frontend gives out a copy, which has no `get`
            return None
        return buffers[self.key]

    def checked_tensor(self) -> Tensor:
        """Return the buffer's current tensor; raise UsageError if its layout or its aliases changed."""
        buffer = self.current_tensor
        if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != self.layout:
            raise UsageError(
                f"buffer {self.name!r} is {buffer if buffer is None else BufferLayout.of_tensor(buffer)}, and was "
                f"{self.layout} when the model was wrapped: keep its shape, dtype and device, wrap the model "
                'again, or register "none" for it on all ranks'
            )
        for alias in self.aliases:
            if alias.current_tensor is not buffer:
                raise UsageError(
                    f"buffers {self.name!r} and {alias.name!r} were one tensor when the model was wrapped, and are not "
                    "now: assign one tensor to both, or wrap the model again"
                )
        return buffer


class _BufferRule(NamedTuple):
    hook: Strategy | BufferHook
    when: When


def _first_names(module: nn.Module) -> dict[str, str]:
    """Return, for every name of a buffer, the first name of the same tensor."""
    first: dict[Tensor, str] = {}
    # Unbound, since modules of the C++ frontend override the method with fewer arguments.
    named = nn.Module.named_buffers(module, remove_duplicate=False)
    return {name: first.setdefault(buffer, name) for name, buffer in named}


def _buffer_place(module: nn.Module, name: str) -> BufferPlace:
    prefix, _, key = name.rpartition(".")
    owner = nn.Module.get_submodule(module, prefix)  # unbound, as above
    buffer = owner._buffers[key]
    assert buffer is not None
    if nn.parameter.is_lazy(buffer):
        raise UsageError(f"module has the uninitialised buffer {name!r}: run one forward before wrapping it")
    return BufferPlace(name, owner, key, BufferLayout.of_tensor(buffer), [])


def _checked_strategy(hook: Strategy | str | BufferHook, slot: BufferPlace) -> Strategy | BufferHook:
    # torch's reductions are callable, but no hooks.
    if callable(hook) and not isinstance(hook, dist.ReduceOp.RedOpType):
        return hook
    names = ", ".join(repr(strategy.value) for strategy in Strategy)
    try:
        strategy = Strategy(hook)
    except ValueError:
        raise UsageError(f"hook is {hook!r}, expected one of {names}, or a callable of (buffer, group)") from None
    dtype = slot.layout.dtype
    if unfit := _why_strategy_is_impossible(strategy, dtype):
        raise UsageError(f"hook is {strategy.value!r} for buffer {slot.name!r} of {dtype_text(dtype)}: {unfit}")
    return strategy


def _why_strategy_is_impossible(strategy: Strategy, dtype: torch.dtype) -> str | None:
    """Return why buffers of a dtype cannot use a strategy, and what to do; None if they can."""
    if strategy in (Strategy.SUM, Strategy.MEAN) and dtype is torch.bool:
        return 'truth values have no sum; take "max" for any, "min" for all, or count in an integer buffer'
    if strategy is Strategy.MEAN and not (dtype.is_floating_point or dtype.is_complex):
        return 'an integer cannot hold a mean; take "sum", or keep the buffer as a float'
    if strategy in (Strategy.MAX, Strategy.MIN) and dtype.is_complex:
        return 'complex numbers have no order; take "sum" or "mean", or a callable'
    return None


def _checked_side(when: When | str) -> When:
    try:
        return When(when)
    except ValueError:
        names = " or ".join(repr(side.value) for side in When)
        raise UsageError(f"when is {when!r}, expected {names} (the forward)") from None


def _suggest_buffers(wanted: object, names: Sequence[str], limit: int = 8) -> str:
    """Return the end of a message about an unknown buffer: similar names, and all names."""
    if not names:
        return ", which has none to synchronise: register the buffer with the module before wrapping it"
    near: list[str] = []
    if isinstance(wanted, str):
        same_ending = [name for name in names if name.rpartition(".")[2] == wanted.rpartition(".")[2]]
        near = difflib.get_close_matches(wanted, names) or same_ending[:3]
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{meant} It has {', '.join(map(repr, names[:limit]))}{more}: give one of these, or its tensor"
