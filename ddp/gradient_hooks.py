"""Hears of gradients: after autograd has added one to a parameter, and when a backward is over.

None of the hooks keeps the listener alive: they stay on parameters and graphs that may well outlive it, and a model may
be wrapped anew.

Note [End of backward]
    If every parameter gets a gradient, the last one tells that the backward is over. With unused parameters it may
    never come, so a callback at the end of the backward through the forward's outputs looks what is missing. Such a
    callback belongs to the graph task it is queued in, and a reentrant checkpoint runs tasks of its own inside: it is
    queued by a pre-hook of the outputs' nodes, which the outermost task runs. A backward that runs none of these nodes
    (its loss depends on what the forward did not return) has the callback queued by its first gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle


class Listener(Protocol):
    """Who is told."""

    def on_gradient(self, index: int) -> None:
        """The parameter of this index has got a gradient."""

    def on_backward_end(self) -> None:
        """The backward that was watched is over."""

    @property
    def awaits_gradients(self) -> bool:
        """Whether a forward was made whose gradients may come now."""


def listen(parameters: Sequence[Tensor], listener: Listener) -> None:
    """Tell the listener of every gradient, for as long as it lives."""
    found = weakref.ref(listener)
    handles = [p.register_post_accumulate_grad_hook(_Hook(found, index)) for index, p in enumerate(parameters)]
    weakref.finalize(listener, _remove, handles).atexit = False


class _Hook:
    """Tells one listener of one parameter's gradients."""

    __slots__ = ("_index", "listener")

    def __init__(self, listener: weakref.ref[Listener], index: int) -> None:
        self.listener = listener
        self._index = index

    def __call__(self, parameter: Tensor) -> None:
        listener = self.listener()
        if listener is not None:
            listener.on_gradient(self._index)


def is_awaited_elsewhere(parameter: Tensor, listener: Listener) -> bool:
    """Whether another listener awaits gradients of this parameter: two models may share it."""
    hooks = (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    others = (hook.listener() for hook in hooks if isinstance(hook, _Hook))
    return any(other is not None and other is not listener and other.awaits_gradients for other in others)


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


class EndOfBackward:
    """Calls a listener's `on_backward_end` at the end of a backward: see Note [End of backward]."""

    __slots__ = ("_listener", "_task")

    def __init__(self, listener: Listener) -> None:
        self._listener = weakref.ref(listener)
        self._task = -1
        """The graph task at whose end the listener is called."""

    def watch(self, tensors: Iterable[Tensor], accumulators: Sequence[Node]) -> None:
        """Call at the end of whatever backward goes through one of the tensors.

        `accumulators` bring the gradients of parameters. A backward that runs none of them (torch.autograd.grad, for a
        penalty on the input's gradient) is not the one that is waited for; if none is known, every one is.
        """
        self._task = -1  # of a backward that an exception ended
        for node in set(_nodes(tensors)):
            node.register_prehook(partial(self._on_backward, accumulators))

    @property
    def is_awaited(self) -> bool:
        """Whether a backward that is under way will call at its end."""
        return self._task != -1

    def _on_backward(self, accumulators: Sequence[Node], gradients: Any) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._task and (not accumulators or _runs_any(accumulators)):
            self._task = task
            call_at_end(self._call)

    def _call(self) -> None:
        self._task = -1
        listener = self._listener()
        if listener is not None:
            listener.on_backward_end()


def _nodes(tensors: Iterable[Tensor]) -> Iterator[Node]:
    """The tensors' nodes, and those of what they are views of: an in-place operation on a view gives it a new node."""
    for tensor in tensors:
        for either in (tensor, tensor._base):
            if either is not None and either.grad_fn is not None:
                yield either.grad_fn


def _runs_any(accumulators: Iterable[Node]) -> bool:
    """Inside a backward: whether it will run one of these."""
    try:
        return any(map(torch._C._will_engine_execute_node, accumulators))
    except RuntimeError:  # one of them is what torch.autograd.grad was asked for
        return False


def call_at_end(callback: Callable[[], None]) -> None:
    """Inside a backward: call when its last hook has run."""
    Variable._execution_engine.queue_callback(callback)
