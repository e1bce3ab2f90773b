"""One rank's DDP wrapper: its current step, the contents of its buckets, and what another engine reports about itself.

check="replicas" compares another engine's replicas if the wrapper has the inner module as `module`. It finds more if
the wrapper has a method `__ddp_progress__()` that returns a dict with any of these keys. The method is called at each
of the wrapper's calls that belongs to a step, and when replicas are compared:

- `step`: the number of its synchronising forward, see Note [Steps];
- `joined`: whether its rank ran out of input, so that it answers the collectives of the others;
- `aligned_step`: the step at which a join ended last;
- `reduced`: the names of the parameters that are in a bucket;
- `unreduced`: the number, and the parameters' names, of the first bucket that the current step has not reduced;
- `buffers`: by name of an exceptional buffer, when it is synchronised: "before" or "after" a forward, or "never".

Note [Steps]. A wrapper's step is the number of its synchronising forward, from 1. A forward in evaluation mode counts
only once a backward follows it, because one rank may evaluate without no_grad through a wrapper without buffers. Two
forwards before one backward are two steps, unless a collective on the wrapper's group that is not its own lies between
them: there the ranks have met, as to skip a batch together, and the forward before it stays without a backward.
A forward that raised is no step, nor is one before a forward that runs in the handler of an exception raised since: the
rank may try again, with less, or take its next batch. A batch more or less shows at the end.
Reductions are not counted: if one rank leaves out a backward, its next reductions pair with the ones that it left out.
During a join the steps of ranks that ran out of input do not change; at its end all ranks have the same step again.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch.autograd import Variable

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.runtime.call_sites import frames_outwards
from ddpsim.simulator.wording import join_names

PROGRESS = "__ddp_progress__"

WrapperKey = tuple[str, int]
"""The identity of a DDP wrapper on all its ranks: the label of its process group, and its number in that group."""


class BucketContents(NamedTuple):
    """The contents of one bucket of a Reducer."""

    elements: int
    parameters: tuple[str, ...]


class DdpWrapper:
    """One rank's DDP instance."""

    def __init__(self, key: WrapperKey, rank: int, module: Any, observer: WrapperObserver | None) -> None:
        self.key = key
        self.rank = rank
        self.step = 0
        """The current step of the wrapper: the number of its latest synchronising forward, see Note [Steps]."""
        self.reports_steps = False
        """True for a wrapper of another engine that reports the step of each call."""
        self.is_joined = False
        """True after the wrapper's rank ran out of input, so that it only answers the collectives of other ranks."""
        self.aligned_step = 0
        """The wrapper's step at the end of the last join context."""
        self.has_late_gradients = False
        """True if a backward accumulated gradients after the reduction of the step had ended."""
        self.chosen_buffers: Mapping[str, str] = {}
        """When another engine's exceptional buffers are synchronised: "before" or "after" a forward, or "never"."""
        self.is_forward_local = self.is_local = False
        """True if the latest training forward, or that before the latest backward, ran without synchronisation."""
        self._module = ref(module)
        self.counted: dict[str, int] = {}
        """By name, the ids of the parameters that torch's Reducer counts, in its order."""
        self._buckets: Sequence[BucketContents] = ()
        self.reduced: Collection[str] = ()
        """The names of the parameters in the Reducer's latest buckets; empty if the buckets are not known."""
        self._unreduced: tuple[int, Sequence[str]] | None = None
        """The first bucket that a DDP engine other than torch's has not reduced in this step."""
        self.has_hook = False
        """True if a communication hook of the program reduces the wrapper's buckets."""
        self._observer = observer
        self._backward = -1
        """The latest backward whose end was reported to the observer (`WrapperObserver`)."""
        self._names: dict[int, str] = {}
        self._next_bucket = 0
        self._uncounted_forward = False
        self._with_gradient: set[str] | None = None
        """The names of the parameters that got a gradient in this step; None if not known."""
        self._unreduced_steps = 0
        """The number of steps of which no bucket has been reduced since the ranks met last."""
        self._collectives = 0
        """The number of calls on the group, at the wrapper's latest forward or call."""
        self._is_unfinished = False
        """True as long as the latest counted forward has not returned."""
        self._handled = 0
        """The id of the exception that was being handled at the latest forward; 0 if there was none."""

    @property
    def is_forward_running(self) -> bool:
        """Return whether a forward through the wrapper is on the stack."""
        module, frames = self.module, frames_outwards(sys._getframe(1))
        owners = (each.f_locals.get("self") for each in frames if each.f_code.co_name == "forward")
        return module is not None and any(owner is module for owner in owners)

    @property
    def number_in_group(self) -> int:
        """The wrapper's number among the wrappers of its process group."""
        return self.key[1]

    @property
    def module(self) -> Any:
        """The DDP instance; None after it was deleted."""
        return self._module()

    @property
    def inner_module(self) -> Any:
        """The wrapped module; None after it was deleted, or if there is none."""
        return getattr(self.module, "module", None)

    def note_bucket_launch(self, bucket: int) -> None:
        """Record that the Reducer starts to reduce a bucket."""
        self._next_bucket = bucket + 1
        self.is_local = False
        self._unreduced_steps = 0
        if self._uncounted_forward:
            self._uncounted_forward = False
            self.step += 1
            self._notify_step_changed()

    def note_own_call(self) -> None:
        """Record that the wrapper makes a call, so that it does not count as one of the program."""
        self._collectives = getattr(getattr(self.module, "process_group", None), "collectives", 0)

    def begin_step(self, *, is_training: bool) -> None:
        """Record that a synchronising forward begins: the Reducer's next call is for bucket 0."""
        self.is_joined = self.has_late_gradients = self.is_local = False
        self._next_bucket = 0
        self._with_gradient = set()
        self._uncounted_forward = not is_training
        before, error = self._handled, sys.exc_info()[1]
        self._handled = 0 if error is None else id(error)
        if self._unreduced_steps and (self._is_unfinished or self._handled not in (0, before)):
            self.step -= 1
            self._unreduced_steps -= 1
        self._is_unfinished = is_training
        before = self._collectives
        self.note_own_call()
        if self._collectives > before:
            self.step -= self._unreduced_steps
            self._unreduced_steps = 0
        self.step += is_training
        self._unreduced_steps += is_training
        if self._observer is not None:
            self._observer.wrapper_step_begins(self)

    def note_forward_returned(self) -> None:
        """Record that the latest synchronising forward has not raised."""
        self._is_unfinished = False

    def update_progress(self, call_step: int = 0) -> None:
        """Ask a DDP engine other than torch's for its wrapper's progress; `call_step` is the current call's step."""
        if self._observer is None:
            return
        progress: Mapping[str, Any] = getattr(self.module, PROGRESS, dict)()
        before = self.step
        self.step = progress.get("step", max(before, call_step))
        self.is_joined = progress.get("joined", self.is_joined)
        self.aligned_step = progress.get("aligned_step", self.aligned_step)
        self.chosen_buffers = progress.get("buffers", self.chosen_buffers)
        self.reduced = progress.get("reduced", self.reduced)
        self._unreduced = progress.get("unreduced")
        if self.step > before:
            self._observer.wrapper_step_begins(self)

    def note_gradient(self, parameter: Any) -> None:
        """Record that a parameter gets its gradient; the gradient is late if all buckets are being reduced already."""
        if self._with_gradient is not None:
            self._with_gradient.add(self._names.get(id(parameter), "?"))
        if self._buckets and self._next_bucket >= len(self._buckets):
            self.has_late_gradients = True
        backward = torch._C._current_graph_task_id()
        if backward != self._backward and self._observer is not None:
            self._backward = backward
            self.is_local = self.is_forward_local
            # The observer is called after the callbacks that were queued in the backward before.
            queue, ended = Variable._execution_engine.queue_callback, self._observer.wrapper_backward_ended
            queue(lambda: queue(lambda: ended(self)))

    def take_bucket_for(self, signature: Signature) -> int | None:
        """Return the bucket that an all_reduce of the Reducer is for; None if no bucket fits.

        Buckets are reduced in order, but unused ones may be left out (`skip_all_reduce_unused_params`). So the result
        is the next bucket of the tensor's size.
        """
        if signature.operation != "all_reduce":
            return None
        buckets = self._buckets
        if not buckets:
            self.note_bucket_launch(self._next_bucket)
            return self._next_bucket - 1
        elements = prod(signature.shapes[0])
        for index in range(self._next_bucket, len(buckets)):
            if buckets[index].elements == elements:
                self.note_bucket_launch(index)
                return index
        return None

    def bucket_parameters(self, bucket: int) -> tuple[str, ...]:
        """Return the names of the parameters of a bucket, in bucket order."""
        return self._buckets[bucket].parameters if bucket < len(self._buckets) else ()

    def note_parameters(self) -> None:
        """Record which parameters the wrapper's Reducer counts, when it is made."""
        ignored = getattr(self.module, "parameters_to_ignore", ())
        named = self.inner_module.named_parameters()
        self.counted = {name: id(each) for name, each in named if each.requires_grad and name not in ignored}

    def read_bucket_contents(self) -> None:
        """Read the contents of the Reducer's buckets, once per layout; not in backward, which locks the Reducer."""
        if not self._buckets:
            module = self.module
            if not self._names:
                self._names = {id(parameter): name for name, parameter in module.module.named_parameters()}
            try:
                buckets = module.reducer._get_zeros_like_grad_buckets()
            except RuntimeError:
                return  # a sparse bucket has no tensor until its gradient comes; the names are left out
            self._buckets = [self._contents_of_bucket(bucket) for bucket in buckets]
            self.reduced = frozenset(name for bucket in self._buckets for name in bucket.parameters)

    def explain_unreduced_bucket(self) -> tuple[str, Advice[[]] | None]:
        """Describe the first bucket that was not reduced in this step, or return the cause; "" and None if all were."""
        index, names = self._unreduced or (self._next_bucket, self.bucket_parameters(self._next_bucket))
        got = self._with_gradient
        if names and got is not None and (not got or got.issuperset(names)):
            return "", Cause.GRADIENTS_UNSEEN if got else Cause.NO_BACKWARD
        left = "a parameter in it" if got is None else join_names([name for name in names if name not in got])
        text = f"bucket {index} ({', '.join(names)}) was not reduced in this step: {left} got no gradient"
        return text if names else "", None

    @property
    def is_fully_reduced(self) -> bool:
        """True if all buckets of this step are reduced by the wrapper alone, without a hook or mixed precision."""
        reported = self._unreduced is None and bool(self.reduced) and hasattr(self.module, PROGRESS)
        launched = 0 < len(self._buckets) <= self._next_bucket
        is_plain = not self.has_hook and getattr(self.module, "mixed_precision", None) is None
        return (reported or launched) and is_plain and not self.is_joined and self.step > 0

    def note_join(self) -> None:
        """Record that the rank ran out of input: from now on it only answers the other ranks' collectives."""
        self.is_joined = True
        self._notify_step_changed()

    def align_step(self, latest_step: int) -> None:
        """Set the wrapper's step to the latest step of all ranks, at the end of a join."""
        self.step = self.aligned_step = max(self.step, latest_step)
        self._unreduced_steps = 0
        self.is_joined = False
        self._notify_step_changed()

    def _notify_step_changed(self) -> None:
        if self._observer is not None:
            self._observer.wrapper_step_changed(self)

    def forget_buckets(self) -> None:
        """Forget the buckets, because the Reducer makes new ones."""
        self._buckets = ()

    def _contents_of_bucket(self, bucket: Any) -> BucketContents:
        names = tuple([self._names.get(id(each), "?") for each in bucket.parameters()])
        return BucketContents(bucket.buffer().numel(), names)


class WrapperObserver(Protocol):
    """Interface for code that wants to know what DDP wrappers do."""

    def wrapper_step_changed(self, wrapper: DdpWrapper) -> None:
        """Called when a wrapper's rank ran out of input, or all ranks have reached the end of a join context."""

    def wrapper_step_begins(self, wrapper: DdpWrapper) -> None:
        """Called when a synchronising forward of a wrapper has begun, or a DDP engine of the program reports one."""

    def wrapper_constructed(self, wrapper: DdpWrapper) -> None:
        """Called when a DDP wrapper is constructed and its wrapped module is known."""

    def wrapper_backward_ended(self, wrapper: DdpWrapper) -> None:
        """Called when a backward has ended in which parameters of a wrapper got gradients."""
