"""One rank's DDP instance: which step it is at, what its buckets hold, and what another engine tells about its own.

check="replicas" compares another engine's replicas if the wrapper has the inner module as `module`, and knows more with
a method `__ddp_progress__()` of the wrapper's, which returns a dict with any of these keys. It is asked at each of the
wrapper's calls that belongs to a step, and where replicas are compared:

- `step`: the number of its synchronising forward, see Note [Steps];
- `joined`: whether it shadows the others because its rank ran out of input;
- `aligned_step`: the step at which a join ended last;
- `reduced`: the names of the parameters that are in a bucket;
- `unreduced`: the number, and the parameters' names, of the first bucket that the step under way has not reduced;
- `buffers`: by name, when a buffer is synchronised that is an exception: "before" or "after" a forward, or "never".

Note [Steps]. A wrapper's step is the number of its synchronising forward, from 1. A forward in evaluation mode counts
only once a backward follows it: evaluating without no_grad on one rank, through a wrapper without buffers, disturbs
nobody. Two forwards before one backward are two steps. Reductions are not counted, as they pair by their order: where
one rank leaves out a backward, equal numbers of them meet. Under join the steps of ranks that ran out stand still, and
all are even again at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from math import prod
from types import FrameType
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch.autograd import Variable

from ddpsim.simulator.calls import Signature

PROGRESS = "__ddp_progress__"

WrapperKey = tuple[str, int]
"""A wrapper on all its ranks: the label of its process group, and its number there."""


class Bucket(NamedTuple):
    """What one bucket of a Reducer holds."""

    elements: int
    parameters: tuple[str, ...]


class Wrapper:
    """One rank's DDP instance."""

    def __init__(self, key: WrapperKey, rank: int, module: Any, observers: Sequence[Observer]) -> None:
        self.key = key
        self.rank = rank
        self._step = 0
        self.tells_steps = False
        """Another engine's, which says itself what step a call belongs to, if any."""
        self.is_joined = False
        """Shadows the others because its rank ran out of input."""
        self.aligned_step = 0
        """The step at which join ended last."""
        self.has_late_gradients = False
        """A backward accumulated gradients when the reduction of the step was over; told to observers only."""
        self.chosen_buffers: Mapping[str, str] = {}
        """When buffers are synchronised that another engine treats as exceptions: "before", "after" or "never"."""
        self._module = ref(module)
        self._buckets: Sequence[Bucket] = ()
        self._reduced: Collection[str] = ()
        self._unreduced: tuple[int, Sequence[str]] | None = None
        """Of another engine: the first bucket not reduced."""
        self.has_hook = False
        """A communication hook reduces its buckets, as it likes."""
        self._observers = observers
        self._backward = -1
        """The latest backward whose end is told."""
        self._names: dict[int, str] = {}
        """By id of the parameter; they live as long as the module."""
        self._next_bucket = 0
        self._uncounted_forward = False

    @property
    def is_running(self) -> bool:
        """True inside a forward through the wrapper, which is on the stack then."""
        module = self.module
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "forward" and frame.f_locals.get("self") is module is not None:
                return True
            frame = frame.f_back
        return False

    @property
    def step(self) -> int:
        """The current step, see Note [Steps]."""
        return self._step

    @property
    def number(self) -> int:
        """Its number among the wrappers of its process group."""
        return self.key[1]

    @property
    def module(self) -> Any:
        """The DDP instance; None once it is gone."""
        return self._module()

    @property
    def inner(self) -> Any:
        """The module that it wraps; None once the module is gone, or if it wraps none."""
        return getattr(self.module, "module", None)

    def launches(self, bucket: int) -> None:
        """The Reducer launches a bucket."""
        self._next_bucket = bucket + 1
        if self._uncounted_forward:
            self._uncounted_forward = False
            self._step += 1
            self._move()

    def begin_step(self, *, is_training: bool) -> None:
        """A synchronising forward begins: the Reducer's next call is for bucket 0."""
        self.is_joined = self.has_late_gradients = False
        self._next_bucket = 0
        self._uncounted_forward = not is_training
        self._step += is_training
        self._tell()

    def look(self, told_step: int = 0) -> None:
        """Ask another engine for the progress of its wrapper; `told_step` is the step that its call reports, if any."""
        if not self._observers:
            return
        progress: Mapping[str, Any] = getattr(self.module, PROGRESS, dict)()
        before = self._step
        self._step = progress.get("step", max(before, told_step))
        self.is_joined = progress.get("joined", self.is_joined)
        self.aligned_step = progress.get("aligned_step", self.aligned_step)
        self.chosen_buffers = progress.get("buffers", self.chosen_buffers)
        self._reduced = progress.get("reduced", self._reduced)
        self._unreduced = progress.get("unreduced")
        if self.step > before:
            self._tell()

    def accumulates(self) -> None:
        """A parameter gets its gradient; all buckets are launched only after the last one's of the step."""
        self._tell_end_of(torch._C._current_graph_task_id())
        if self._buckets and self._next_bucket >= len(self._buckets):
            self.has_late_gradients = True

    def _tell_end_of(self, backward: int) -> None:
        """Tell observers when a backward has ended, once what was queued in it by then has run, too."""
        if backward != self._backward and self._observers:
            self._backward = backward
            queue = Variable._execution_engine.queue_callback
            queue(lambda: queue(self._backward_ended))

    def _backward_ended(self) -> None:
        for observer in self._observers:
            observer.backward_ended(self)

    def bucket_for(self, signature: Signature) -> int | None:
        """The bucket that the Reducer's next all_reduce is for; None if it does not look like one.

        Buckets are launched in order. One that no rank used may be left out (`skip_all_reduce_unused_params`), so it is
        the next one of this size.
        """
        if signature.operation != "all_reduce":
            return None
        buckets = self._buckets
        if not buckets:
            self.launches(self._next_bucket)
            return self._next_bucket - 1
        elements = prod(signature.shapes[0])
        for index in range(self._next_bucket, len(buckets)):
            if buckets[index].elements == elements:
                self.launches(index)
                return index
        return None

    def parameters(self, bucket: int) -> tuple[str, ...]:
        """The names of the parameters of a bucket, in bucket order."""
        return self._buckets[bucket].parameters if bucket < len(self._buckets) else ()

    def learn_buckets(self) -> None:
        """Ask the Reducer what its buckets hold, once per layout. Not inside backward, where the Reducer is locked."""
        if not self._buckets:
            module = self.module
            if not self._names:
                self._names = {id(parameter): name for name, parameter in module.module.named_parameters()}
            try:
                buckets = module.reducer._get_zeros_like_grad_buckets()
            except RuntimeError:
                return  # a sparse bucket has no tensor until its gradient comes; the names are left out
            self._buckets = [self._bucket(bucket) for bucket in buckets]
            self._reduced = frozenset(name for bucket in self._buckets for name in bucket.parameters)

    def is_reduced(self, parameter: str) -> bool:
        """False if the parameter is in none of the buckets that the Reducer made last."""
        return not self._reduced or parameter in self._reduced

    @property
    def unreduced_bucket(self) -> str:
        """The first bucket that was not launched in this step, in words; "" if all were."""
        index, names = self._unreduced or (self._next_bucket, self.parameters(self._next_bucket))
        return f"bucket {index} ({', '.join(names)})" if names else ""

    @property
    def is_reduced_by_itself(self) -> bool:
        """True if all buckets of this step are reduced, and by nothing but the wrapper."""
        told = self._unreduced is None and bool(self._reduced) and hasattr(self.module, PROGRESS)
        launched = 0 < len(self._buckets) <= self._next_bucket
        is_plain = not self.has_hook and getattr(self.module, "mixed_precision", None) is None
        return (told or launched) and is_plain and not self.is_joined and self.step > 0

    @property
    def reduced(self) -> frozenset[str]:
        """The names of the parameters in the buckets that the Reducer made last; empty if these are not known."""
        return frozenset(self._reduced)

    def join(self) -> None:
        """The rank ran out of input, and answers the other ranks' collectives from now on."""
        self.is_joined = True
        self._move()

    def align(self, latest_step: int) -> None:
        """The ranks meet at the end of join: ranks that ran out of input take over the others' step."""
        self._step = self.aligned_step = max(self._step, latest_step)
        self.is_joined = False
        self._move()

    def _move(self) -> None:
        for observer in self._observers:
            observer.moved(self)

    def rebuilds(self) -> None:
        """The Reducer makes new buckets."""
        self._buckets = ()

    def _tell(self) -> None:
        for observer in self._observers:
            observer.step_begins(self)

    def _bucket(self, bucket: Any) -> Bucket:
        names = self._names
        return Bucket(bucket.buffer().numel(), tuple([names.get(id(each), "?") for each in bucket.parameters()]))


class Observer(Protocol):
    """Is notified of what wrappers do."""

    def moved(self, wrapper: Wrapper) -> None:
        """The rank has joined the others, or they have met at the end of a join."""

    def step_begins(self, wrapper: Wrapper) -> None:
        """A synchronising forward has begun, or another engine tells of one."""

    def was_made(self, wrapper: Wrapper) -> None:
        """A wrapper can tell its inner module."""

    def backward_ended(self, wrapper: Wrapper) -> None:
        """A backward that gave parameters of a wrapper their gradients has ended."""
