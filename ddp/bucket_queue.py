"""The buckets of a reducer, in the order in which all ranks reduce them.

Bucket 1 starts only after bucket 0 has started, so ranks whose gradients arrive in different orders still make
matching calls. The reducer tracks the gradients and sends the announcements to other ranks.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from ddpsim.ddp.bucket import Bucket, GradientScale
from ddpsim.ddp.bucket_plan import BucketCaps, GradientSize, append_unseen_parameters, plan_buckets
from ddpsim.ddp.communication_hooks import CommunicationHook


class BucketQueue:
    """The buckets of `parameters`, known by index. `keeps_views`: gradients become views of the buckets."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        group: ProcessGroup,
        *,
        sparse: frozenset[str],
        caps: BucketCaps,
        keeps_views: bool,
    ) -> None:
        self.buckets: tuple[Bucket, ...] = ()
        self.hook: CommunicationHook | None = None
        self.current: Bucket | None = None
        """The bucket of the communication call that is being issued."""
        self.is_answering_call = False
        """Whether the call only answers another rank's call, since this rank has run out of input."""
        self._hook_state: object = None
        self._names = tuple(parameters)
        self._parameters = tuple(parameters.values())
        self._group = group
        self._footprints = tuple(
            GradientSize(p.numel() * p.element_size(), kind=(p.dtype, p.device), is_sparse=name in sparse)
            for name, p in parameters.items()
        )
        self._caps = caps
        self._keeps_views = keeps_views
        self._started = 0
        """The number of buckets whose reduction has started."""
        self.create_buckets(append_unseen_parameters((), len(parameters)))

    def create_buckets(self, order: Sequence[int]) -> None:
        """Create new buckets for the parameters, whose gradients arrive in this order."""
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

    def turn_gradients_into_views(self) -> None:
        """Turn existing gradients into views of these buckets, if `keeps_views`."""
        if self._keeps_views:
            for bucket in self.buckets:
                bucket.turn_gradients_into_views()

    def use_hook(self, state: object, hook: CommunicationHook) -> None:
        """Use `hook(state, bucket)` for all further reductions."""
        self.hook, self._hook_state = hook, state

    def mark_gradient_ready(self, index: int) -> Bucket:
        """Record that a parameter's gradient is ready; return its bucket."""
        bucket = self._bucket_of[index]
        bucket.pending -= 1
        return bucket

    @property
    def has_all_started(self) -> bool:
        """Return whether the reduction of every bucket has started."""
        return self._started == len(self.buckets)

    @property
    def next_bucket(self) -> Bucket | None:
        """The first bucket whose reduction has not started; None if all have."""
        return None if self.has_all_started else self.buckets[self._started]

    def start_full_buckets(self, start: Callable[[Bucket], None]) -> bool:
        """Start the reductions of full buckets in order, up to the first not full; return whether all have started."""
        while self._started < len(self.buckets) and not self.buckets[self._started].pending:
            start(self.buckets[self._started])
            self._started += 1
        return self.has_all_started

    def start_remaining_buckets(self) -> bool:
        """Start the reductions of all other buckets, with zeros from this rank; return whether there were any."""
        rest = self.buckets[self._started :]
        for bucket in rest:
            bucket.contribute_zeros()
            with self.attribute_calls_to(bucket):
                self.reduce_bucket(bucket)
        return bool(rest)

    def fill_bucket(self, bucket: Bucket, scale: GradientScale | None) -> None:
        """Copy the gradients of the bucket's parameters into the bucket, and scale them."""
        bucket.copy_gradients_in(scale, makes_views=self._keeps_views)

    def reduce_bucket(self, bucket: Bucket) -> None:
        """Start the bucket's reduction."""
        bucket.start_reduction(self._group, self.hook, self._hook_state)

    def finish_reductions(self) -> None:
        """Wait for the reductions of all buckets; all must have started."""
        for bucket in self.buckets:
            with self.attribute_calls_to(bucket):
                bucket.finish_reduction()

    def set_gradients(self, kept: Mapping[int, Tensor | None], unused: Container[int]) -> None:
        """Set gradients to the reduced values; if no rank used a parameter, restore its gradient in `kept`."""
        if not self._keeps_views:
            for bucket in self.buckets:
                bucket.copy_gradients_out(kept=unused)
        for index, gradient in kept.items():
            if index in unused:
                self._parameters[index].grad = gradient
                if self._keeps_views:
                    self._bucket_of[index].turn_gradients_into_views()
            elif self._keeps_views:
                self._bucket_of[index].set_gradient(index)

    def reduce_for_joined_rank(self, number: int, *, unused: Container[int]) -> None:
        """On a rank without input: reduce a bucket with zeros, and take the result except for unused parameters."""
        bucket = self.buckets[number]
        self.is_answering_call = True
        with self.attribute_calls_to(bucket):
            bucket.contribute_zeros()
            self.reduce_bucket(bucket)
            bucket.finish_reduction()
        self.is_answering_call = False
        if not self._keeps_views:
            bucket.copy_gradients_out(kept=unused)
            return
        for index in bucket.indices:
            if index not in unused:
                bucket.set_gradient(index)

    def restart(self) -> None:
        """Prepare for the next backward, which starts with the first bucket."""
        self._started = 0

    def drop_reductions(self) -> None:
        """Forget the bucket reductions in flight."""
        self.current, self.is_answering_call = None, False
        for bucket in self.buckets:
            bucket.drop_reduction()

    @contextmanager
    def attribute_calls_to(self, bucket: Bucket) -> Iterator[None]:
        """Return a context; a diagnosis shows communication calls inside it as calls of this bucket."""
        self.current = bucket
        yield
        self.current = None  # after an exception, `forget` does it
