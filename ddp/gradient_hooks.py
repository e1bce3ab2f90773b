"""Hooks that report each gradient and the end of a backward.

No hook keeps its listener alive: parameters and graphs may exist longer, and a module may be wrapped again.

Note [End of backward]
    If every parameter gets a gradient, the last one ends the backward. With unused parameters it may never come, so a
    callback at the end of the backward checks what is missing. A callback belongs to the graph task that queues it,
    and a reentrant checkpoint runs tasks of its own inside. So a pre-hook of the outputs' nodes queues it, which the
    outermost task runs. If a backward runs none of these nodes (its loss does not depend on what the forward
    returned), its first gradient queues the callback.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import Node


class GradientListener(Protocol):
    """The interface of an object that is informed of gradients and of the end of a backward."""

    def on_gradient(self, index: int) -> None:
        """Called when the parameter with this index has got a gradient."""

    def on_backward_end(self) -> None:
        """Called at the end of a backward that `BackwardEndWatch` watches."""

    @property
    def awaits_gradients(self) -> bool:
        """Whether gradients of an earlier forward may come now."""


def report_gradients(parameters: Sequence[Tensor], listener: GradientListener) -> None:
    """Call `listener.on_gradient` for every gradient of these parameters, as long as the listener exists."""
    found = weakref.ref(listener)
    for index, parameter in enumerate(parameters):
        handle = parameter.register_post_accumulate_grad_hook(partial(_report_gradient, found, index))
        weakref.finalize(listener, handle.remove).atexit = False


def _report_gradient(found: weakref.ref[GradientListener], index: int, parameter: Tensor) -> None:
    listener = found()
    if listener is not None:
        listener.on_gradient(index)


def has_other_waiting_listener(parameter: Tensor, listener: GradientListener) -> bool:
    """Return whether another listener waits for gradients of this parameter: two wrapped models may share it."""
    hooks = (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    others = (hook.args[0]() for hook in hooks if isinstance(hook, partial) and hook.func is _report_gradient)
    return any(other is not None and other is not listener and other.awaits_gradients for other in others)


class BackwardEndWatch:
    """Calls a listener's `on_backward_end` at the end of a backward; see Note [End of backward]."""

    def __init__(self, listener: GradientListener) -> None:
        self._listener = weakref.ref(listener)
        self._task = -1
        """The autograd graph task at whose end the listener is called; -1 if there is none."""

    def watch_backward(self, tensors: Iterable[Tensor], accumulators: Sequence[Node]) -> None:
        """Call at the end of the next backward through one of the tensors.

        A backward that runs none of `accumulators` is ignored, such as torch.autograd.grad for a penalty on the input's
        gradient. If there are no accumulators, any backward counts.
        """
        self._task = -1  # an exception may have ended the previous backward
        for node in set(_autograd_nodes(tensors)):
            node.register_prehook(partial(self._queue_callback, accumulators))

    @property
    def is_callback_queued(self) -> bool:
        """Whether a running backward will call the listener at its end."""
        return self._task != -1

    def _queue_callback(self, accumulators: Sequence[Node], gradients: Any) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._task and (not accumulators or _will_run_any(accumulators)):
            self._task = task
            call_after_backward(self._report_end)

    def _report_end(self) -> None:
        self._task = -1
        listener = self._listener()
        if listener is not None:
            listener.on_backward_end()


def _autograd_nodes(tensors: Iterable[Tensor]) -> Iterator[Node]:
    """Yield the autograd nodes of tensors and of their bases, which an in-place operation on a view gives new ones."""
    for tensor in tensors:
        for either in (tensor, tensor._base):
            if either is not None and either.grad_fn is not None:
                yield either.grad_fn


def _will_run_any(accumulators: Iterable[Node]) -> bool:
    """Return whether the running backward will run one of these autograd nodes."""
    try:
        return any(map(torch._C._will_engine_execute_node, accumulators))
    except RuntimeError:  # torch.autograd.grad was asked for one of them
        return False


def call_after_backward(callback: Callable[[], None]) -> None:
    """Call a function at the end of the running backward, after its last hook."""
    Variable._execution_engine.queue_callback(callback)
