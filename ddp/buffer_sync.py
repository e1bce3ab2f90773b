"""Synchronizes the buffers of a module before or after a forward, in few collectives.

Buffers with one strategy, dtype and device are reduced as one flat tensor. Groups and flat tensors are made once, since
a model may have hundreds of small buffers and a forward every few milliseconds. The caller decides when to synchronize,
and what joined ranks do.
"""

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ddpsim.ddp.broadcast import broadcast_coalesced, has_elements_in_order
from ddpsim.ddp.buffer_strategies import BufferHook, BufferLayout, BufferPlace, BufferStrategies, Strategy, When
from ddpsim.ddp.errors import UsageError
from ddpsim.ddp.text_formats import callable_name


class BufferSync:
    """Synchronizes a module's buffers over `group`; `BufferStrategies` explains the other arguments."""

    def __init__(
        self, module: nn.Module, group: ProcessGroup, *, ignored: Container[str] = (), broadcasts: bool = True
    ) -> None:
        self._group = group
        self.strategies = BufferStrategies(module, ignored=ignored, broadcasts=broadcasts)
        self._plans: dict[When, _SyncPlan] = {}

    def set_strategy(
        self, name_or_tensor: str | Tensor, hook: Strategy | str | BufferHook, *, when: When | str = When.BEFORE_FORWARD
    ) -> None:
        """Replace the strategy of a buffer; all ranks must replace strategies in the same order."""
        self.strategies.set_strategy(name_or_tensor, hook, when=when)
        self._plans.clear()

    def has_work(self, when: When) -> bool:
        """Return whether any buffer is synchronized on this side (before or after a forward)."""
        return any(self._plan_before_or_after_forward(when))

    def synchronize(self, when: When, *, source: int, present: int) -> None:
        """Synchronize the buffers of one side of a forward (before or after).

        Group rank `source` broadcasts; ranks in `present` have input. Callables run last, in order of registration;
        then this function waits for all their results.
        """
        plan = self._plan_before_or_after_forward(when)
        with torch.no_grad():
            # All buffers are checked before anything is sent, so an error does not leave ranks in different states.
            # `.data` has its own version counter: the backward of a forward that saved a buffer, as batch norm does,
            # may run after the next forward has synchronized it. torch's engine does not count such writes either.
            to_broadcast = [slot.checked_tensor().data for slot in plan.broadcasts]
            to_reduce = [[slot.checked_tensor().data for slot in reduction.slots] for reduction in plan.reductions]
            to_call = [slot.checked_tensor() for slot, _ in plan.hooks]
            pending = [
                reduction.start_reduction(buffers, self._group)
                for reduction, buffers in zip(plan.reductions, to_reduce, strict=True)
            ]
            if to_broadcast:
                broadcast_coalesced(to_broadcast, source, self._group)
            for finish in pending:
                finish(present)
            results = [hook(buffer, self._group) for (_, hook), buffer in zip(plan.hooks, to_call, strict=True)]
            for (slot, hook), buffer, result in zip(plan.hooks, to_call, results, strict=True):
                _finish_buffer_hook(result, buffer, f"hook {callable_name(hook)} of buffer {slot.name!r}")

    def _plan_before_or_after_forward(self, when: When) -> "_SyncPlan":
        if when not in self._plans:
            self._plans[when] = _make_plan(self.strategies, when)
        return self._plans[when]


Tensors: TypeAlias = list[Tensor]


class _FlatReduction:
    """Reduces all buffers of one strategy, dtype and device by one all_reduce of a flat tensor, which is kept."""

    def __init__(self, strategy: Strategy, slots: Sequence[BufferPlace]) -> None:
        self.slots = tuple(slots)
        self._is_mean = strategy is Strategy.MEAN
        self._operation = dist.ReduceOp.SUM if self._is_mean else getattr(dist.ReduceOp, strategy.name)
        self._flat: Tensor | None = None
        self._views: Tensors = []

    def start_reduction(self, buffers: Tensors, group: ProcessGroup) -> Callable[[int], None]:
        """Begin to reduce these buffers. Return a function that finishes it, given the number of ranks with input."""
        packed = [] if len(buffers) == 1 and has_elements_in_order(buffers[0]) else buffers
        sent = self._pack_buffers(packed) if packed else buffers[0]
        work = dist.all_reduce(sent, self._operation, group, async_op=True) if sent.numel() else None

        def finish(present: int) -> None:
            if work is not None:
                work.wait()
            if self._is_mean:
                sent.div_(present)
            if packed:
                _copy_tensors(packed, self._views)

        return finish

    def _pack_buffers(self, buffers: Tensors) -> Tensor:
        flat = self._flat
        if flat is None:
            shapes = [slot.layout.shape for slot in self.slots]
            sizes = [shape.numel() for shape in shapes]
            flat = self._flat = torch.empty(sum(sizes), dtype=buffers[0].dtype, device=buffers[0].device)
            self._views = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
        _copy_tensors(self._views, buffers)
        return flat


def _copy_tensors(targets: Tensors, sources: Tensors) -> None:
    """Copy tensors in one call; complex or negated tensors, which that call does not support, are copied one by one."""
    if targets[0].is_complex() or any(map(Tensor.is_neg, targets)):
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    else:
        torch._foreach_copy_(targets, sources)


class _SyncPlan(NamedTuple):
    """What is synchronized on one side of a forward (before or after)."""

    broadcasts: tuple[BufferPlace, ...]
    reductions: tuple[_FlatReduction, ...]
    hooks: tuple[tuple[BufferPlace, BufferHook], ...]


def _make_plan(strategies: BufferStrategies, when: When) -> _SyncPlan:
    groups: dict[tuple[Strategy, torch.dtype, torch.device], list[BufferPlace]] = {}
    broadcasts = []
    for slot, strategy in strategies.buffers_with_strategy(when):
        if strategy is Strategy.BROADCAST:
            broadcasts.append(slot)
        elif strategy is not Strategy.NONE:
            groups.setdefault((strategy, slot.layout.dtype, slot.layout.device), []).append(slot)
    reductions = tuple(_FlatReduction(strategy, members) for (strategy, _, _), members in groups.items())
    return _SyncPlan(tuple(broadcasts), reductions, tuple(strategies.buffers_with_callable(when)))


def _finish_buffer_hook(result: object, buffer: Tensor, origin: str) -> None:
    """Wait for the result of a user's callable, and copy the result into the buffer."""
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
        found = f"a tensor {BufferLayout.of_tensor(result)}"
    raise UsageError(
        f"{origin} returned {found}, expected a tensor {BufferLayout.of_tensor(buffer)}, a future of one, a work, "
        "or None: change the buffer in place, or return a tensor like it"
    )
