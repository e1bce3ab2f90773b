"""The buckets of a reducer in the one order in which all ranks reduce them: laid out, started, waited for.

Bucket 1 waits until bucket 0 has started, so that ranks whose gradients come in different orders still meet. Which
gradients have come, and what is told to other ranks, is the reducer's business.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from ddpsim.ddp.bucket import Bucket, Scale
from ddpsim.ddp.bucket_plan import Caps, Footprint, complete_order, plan_buckets
from ddpsim.ddp.communication_hooks import CommunicationHook


class BucketQueue:
    """All buckets of `parameters` (by name); everything else is by the index of the parameter.

    `keeps_views`: gradients become views of the buckets and stay so.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        group: ProcessGroup,
        *,
        sparse: frozenset[str],
        caps: Caps,
        keeps_views: bool,
    ) -> None:
        self.buckets: tuple[Bucket, ...] = ()
        self.hook: CommunicationHook | None = None
        self.current: Bucket | None = None
        """The bucket that a call being made belongs to."""
        self.is_shadowing = False
        """The call being made is another rank's doing."""
        self._hook_state: object = None
        self._names = tuple(parameters)
        self._parameters = tuple(parameters.values())
        self._group = group
        self._footprints = tuple(_footprint(p, is_sparse=name in sparse) for name, p in parameters.items())
        self._caps = caps
        self._keeps_views = keeps_views
        self._started = 0
        """How many buckets have started."""
        self.lay_out(complete_order((), len(parameters)))

    def lay_out(self, order: Sequence[int]) -> None:
        """Make the buckets anew, for gradients that come in this order."""
        plan = plan_buckets(order, self._footprints, self._caps)
        self.buckets = tuple(
            Bucket(
                number,
                indices,
                {self._names[index]: self._parameters[index] for index in indices},
                is_last=number == len(plan) - 1,
                is_sparse=self._footprints[indices[0]].is_sparse,
            )
            for number, indices in enumerate(plan)
        )
        self._bucket_of = {index: bucket for bucket in self.buckets for index in bucket.indices}

    def take_in(self) -> None:
        """Make the gradients that there are views of these buckets, if they are to be."""
        if self._keeps_views:
            for bucket in self.buckets:
                bucket.take_in()

    def use_hook(self, state: object, hook: CommunicationHook) -> None:
        """Reduce by `hook(state, bucket)` from now on."""
        self.hook, self._hook_state = hook, state

    # --- one backward -------------------------------------------------------------------------------------------------

    def mark_ready(self, index: int) -> Bucket:
        """One gradient less is waited for; return its bucket."""
        bucket = self._bucket_of[index]
        bucket.pending -= 1
        return bucket

    @property
    def has_all_started(self) -> bool:
        """Whether there is nothing left to start."""
        return self._started == len(self.buckets)

    @property
    def next(self) -> Bucket | None:
        """The first bucket that has not started."""
        return None if self.has_all_started else self.buckets[self._started]

    def start_full(self, start: Callable[[Bucket], None]) -> bool:
        """Start the buckets that are full and whose turn it is; return whether all have started now."""
        while self._started < len(self.buckets) and not self.buckets[self._started].pending:
            start(self.buckets[self._started])
            self._started += 1
        return self.has_all_started

    def start_rest(self) -> bool:
        """Start those that have not started, contributing nothing; return whether there are any."""
        rest = self.buckets[self._started :]
        for bucket in rest:
            bucket.clear()
            with self.calls_of(bucket):
                self.reduce(bucket)
        return bool(rest)

    def fill(self, bucket: Bucket, scale: Scale | None) -> None:
        """Bring in the gradients of the parameters, scaled."""
        bucket.fill(scale, makes_views=self._keeps_views)

    def reduce(self, bucket: Bucket) -> None:
        """Start one reduction."""
        bucket.reduce(self._group, self.hook, self._hook_state)

    def finish(self) -> None:
        """Wait for all reductions, which have all started."""
        for bucket in self.buckets:
            with self.calls_of(bucket):
                bucket.finish()

    def finalize(self, kept: Mapping[int, Tensor | None], unused: Container[int]) -> None:
        """Let the parameters have the reduced gradients; `kept` are theirs again that no rank has used."""
        if not self._keeps_views:
            for bucket in self.buckets:
                bucket.copy_out(kept=unused)
        for index, gradient in kept.items():
            if index in unused:
                self._parameters[index].grad = gradient
                if self._keeps_views:
                    self._bucket_of[index].take_in()
            elif self._keeps_views:
                self._bucket_of[index].finalize(index)

    def shadow(self, number: int, *, unused: Container[int]) -> None:
        """On a joined rank: take part with nothing; the gradients become what all have, but for what no rank uses."""
        bucket = self.buckets[number]
        self.is_shadowing = True
        with self.calls_of(bucket):
            bucket.clear()
            self.reduce(bucket)
            bucket.finish()
        self.is_shadowing = False
        if not self._keeps_views:
            bucket.copy_out(kept=unused)
            return
        for index in bucket.indices:
            if index not in unused:
                bucket.finalize(index)

    def begin_anew(self) -> None:
        """The next backward starts with the first bucket."""
        self._started = 0

    def forget(self) -> None:
        """Give up what is in flight."""
        self.current, self.is_shadowing = None, False
        for bucket in self.buckets:
            bucket.forget()

    @contextmanager
    def calls_of(self, bucket: Bucket) -> Iterator[None]:
        """Calls inside belong to this bucket."""
        self.current = bucket
        yield
        self.current = None  # after an exception, `forget` does it


def _footprint(parameter: Tensor, *, is_sparse: bool) -> Footprint:
    return Footprint(
        size_bytes=parameter.numel() * parameter.element_size(),
        kind=(parameter.dtype, parameter.device),
        is_sparse=is_sparse,
    )
