"""The reducer: collects gradients during the backward and reduces each bucket as soon as it is full.

    forward                 backward                                               end of backward
    expect_gradients() -->  gradient, gradient, ... -> bucket 0 starts, ...  --->  wait for all, finalize

Buckets start in one fixed order on all ranks (bucket_queue.py), which the first backward shows (rank_agreement.py).
gradient_hooks.py finds the end of a backward.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from ddpsim.ddp.backward_errors import describe_bypassed, describe_open_backward, describe_surplus
from ddpsim.ddp.backward_progress import (
    GraphKnowledge,
    ReductionEvent,
    ReductionStage,
    StaticGraph,
    StepCounter,
    next_stage,
)
from ddpsim.ddp.bucket import Bucket, GradientScale
from ddpsim.ddp.bucket_plan import BucketCaps
from ddpsim.ddp.bucket_queue import BucketQueue
from ddpsim.ddp.communication_hooks import CommunicationHook
from ddpsim.ddp.errors import BypassedBackwardError, OpenBackwardError, UsageError
from ddpsim.ddp.gradient_hooks import (
    BackwardEndWatch,
    call_after_backward,
    has_other_waiting_listener,
    report_gradients,
)
from ddpsim.ddp.join_protocol import AnnouncedKind
from ddpsim.ddp.rank_agreement import GradientOrder, LearnedState, UsedParameterCount
from ddpsim.ddp.unused import ForwardOutputs

__ddp_phases__ = {
    "_start": "bucket",
    "_finish": "bucket",
    "abandon": "bucket",
    "reduce_bucket_without_input": "bucket",
    "_start_used_map": "used map",
    "report_no_used_parameters": "used map",
    "rebuild": "rebuild",
    "adopt_learned_state": "rebuild",
}


Announce = Callable[[AnnouncedKind, int], AbstractContextManager[bool]]
"""A function of the kind of call and the bucket's number. It returns a context in which the collective is made. The
context's value says whether ranks without input make each call, too."""


@dataclass(frozen=True, slots=True)
class JoinCallbacks:
    """The functions of a join that a reducer calls."""

    announce: Announce
    on_reduced: Callable[[], None]
    """Called when gradients are reduced."""


class Reducer:
    """Reduces the gradients of `parameters` (by name) over `group`.

    `owner` is the wrapped model, for diagnoses; it is not kept alive. `is_local()` returns whether gradients stay on
    this rank for now. With `keeps_views`, gradients become views of the buckets.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        group: ProcessGroup,
        *,
        owner: object,
        is_local: Callable[[], bool],
        sparse: frozenset[str],
        caps: BucketCaps,
        graph: GraphKnowledge,
        keeps_views: bool,
    ) -> None:
        self.names = tuple(parameters)
        self.parameters = tuple(parameters.values())
        self.process_group = group
        self.backwards = 0
        """The number of reduced backwards since the last join; equal on ranks with input."""
        self.steps = StepCounter()
        """The number of each forward, only for diagnoses."""
        self.bytes_started_early = 0
        """Bytes of the last backward whose reduction started before its last gradient."""
        self._owner = weakref.ref(owner)
        self._is_local = is_local
        self._queue = BucketQueue(parameters, group, sparse=sparse, caps=caps, keeps_views=keeps_views)
        self._graph = graph
        self.join: JoinCallbacks | None = None
        """The functions of the active `join`; None outside of one."""
        self._stage = ReductionStage.IDLE
        self._scale: GradientScale | None = None
        self._order = GradientOrder(len(self.parameters))
        self._static_graph = StaticGraph() if graph is GraphKnowledge.STATIC else None
        self._used_map: UsedParameterCount | None = None
        self._end_of_backward = BackwardEndWatch(self)
        self._reached: frozenset[int] | None = frozenset()
        """Parameters that the forwards since the last reduction depend on; None if unknown."""
        self._reset_backward()
        report_gradients(self.parameters, self)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets, in the order of reduction."""
        return self._queue.buckets

    @property
    def bucket_plan(self) -> tuple[tuple[str, ...], ...]:
        """The names of the parameters in each bucket, in the order of reduction."""
        return tuple(bucket.names for bucket in self.buckets)

    @property
    def has_hook(self) -> bool:
        """Whether a communication hook reduces the buckets."""
        return self._queue.hook is not None

    def use_hook(self, state: object, hook: CommunicationHook) -> None:
        """Use communication hook `hook(state, bucket)` for all later reductions."""
        if self._stage in (ReductionStage.EXPECTING, ReductionStage.REDUCING):
            raise UsageError(
                "a communication hook registered between a forward and its backward, expected before the forward, "
                "which decides whether the engine divides gradients: register it right after construction"
            )
        self._queue.use_hook(state, hook)

    def check_all_buckets_reduced(self) -> None:
        """Raise OpenBackwardError if the last backward left buckets open; the reducer is then ready for another one."""
        if self._stage is not ReductionStage.REDUCING:
            return
        came = frozenset[int]() if self._static_graph is None else self._static_graph.parameters_with_gradient
        missing = [self.names[index] for index in sorted(self._waiting - came)]
        key = f"ddp/open backward/{self.steps.aligned}/{self.backwards}/{len(self.names)}/{self.names[0]}"
        if self.join is None:  # a join first makes the calls that other ranks wait for
            self.drop_backward()
        raise OpenBackwardError(describe_open_backward(missing, key=key, group=self.process_group))

    def rebuild_if_due(self, source: int) -> None:
        """Once, after the first backward: lay out the buckets in the order that group rank `source` recorded."""
        if self._order.is_due:
            with self._announce_call(AnnouncedKind.REBUILD, 0):
                self.rebuild(source)

    def rebuild(self, source: int) -> None:
        """Agree on the order of gradients with the other ranks, and lay out the buckets in that order."""
        self._queue.create_buckets(self._order.agree_on_order(source, self.process_group, self.parameters[0].device))
        self._queue.turn_gradients_into_views()

    @property
    def awaits_gradients(self) -> bool:
        """Whether gradients of a forward may come now, to be reduced or to stay local."""
        return self._stage is not ReductionStage.IDLE

    @property
    def needs_outputs(self) -> bool:
        """Return whether `expect_gradients` needs the output of the forward."""
        if self._static_graph is not None:
            return not self._static_graph.is_learned
        return self._graph is GraphKnowledge.SEARCHED

    @property
    def are_gradients_due(self) -> bool:
        """Whether a forward has announced gradients and none has been computed yet."""
        return self._stage is ReductionStage.EXPECTING

    def expect_gradients(self, scale: GradientScale | None, outputs: ForwardOutputs | None = None) -> None:
        """Record a forward whose gradients will be reduced. `scale` divides them; it is None if the hook divides."""
        self._change_stage(ReductionEvent.FORWARD)
        self._scale = scale
        if outputs is None:
            return
        if self._reached is not None:
            # Several forwards may share a backward: parameters that any of them uses may get a gradient.
            self._reached = None if outputs.reached is None else self._reached | outputs.reached
        self._end_of_backward.watch_backward(outputs.tensors, outputs.accumulators)

    def expect_local_gradients(self) -> None:
        """Record a forward whose gradients stay on this rank."""
        self._change_stage(ReductionEvent.LOCAL_FORWARD)

    def replace_scale(self, scale: GradientScale | None) -> None:
        """Replace the scale of gradients that are not computed yet, since more ranks may have run out of input."""
        self._scale = scale

    def on_gradient(self, index: int) -> None:
        """Process a gradient that the backward has computed."""
        if self._stage is not ReductionStage.REDUCING and not self._begin_backward(index):
            return
        if self._graph is not GraphKnowledge.ALL_USED:
            self._used.add(index)
            if self._static_graph is not None and not self._static_graph.count_gradient(index):
                return
        self._mark_gradient_ready(index)

    def _begin_backward(self, index: int) -> bool:
        """Process the first gradient of a backward; return whether gradients of this backward are reduced."""
        if self._stage is ReductionStage.LOCAL or (self._stage is ReductionStage.IDLE and self._is_local()):
            self._used.add(index)
            return False
        if self._stage is ReductionStage.IDLE:
            if has_other_waiting_listener(self.parameters[index], self):
                return False
            raise BypassedBackwardError(describe_bypassed(self.names[index]))
        self._begin_reduction()
        if self.needs_outputs and not self._end_of_backward.is_callback_queued:
            call_after_backward(self.on_backward_end)
        return True

    def _begin_reduction(self) -> None:
        """Begin the reduction, without waiting for parameters that are known to get no gradient."""
        self._change_stage(ReductionEvent.GRADIENT)
        self.steps.begin_backward()
        self.bytes_started_early = 0
        everybody = range(len(self.parameters))
        if self._static_graph is not None:
            times = self._static_graph.times
            self._static_graph.begin_backward()
            if times is not None:
                self._mark_gradients_absent(index for index in everybody if index not in times)
        elif self._graph is GraphKnowledge.SEARCHED and self._reached is not None:
            reached = self._reached
            self._mark_gradients_absent(index for index in everybody if index not in reached)

    def _mark_gradient_ready(self, index: int) -> None:
        if index not in self._waiting:
            learned = (self._static_graph and self._static_graph.times) or {}
            raise UsageError(describe_surplus(self.names[index], index, self._graph, learned))
        self._waiting.remove(index)
        self._order.record_gradient(index)
        if not self._queue.mark_gradient_ready(index).pending and self._start_full_buckets():
            call_after_backward(self._finish)

    def _mark_gradients_absent(self, indices: Iterable[int]) -> None:
        """Treat parameters without a gradient: their old one is reduced, or restored if no rank used them."""
        for index in indices:
            if index in self._waiting:
                self._waiting.remove(index)
                self._queue.mark_gradient_ready(index)
                self._save_gradient_before_sum(index)

    def _save_gradient_before_sum(self, index: int) -> None:
        gradient = self.parameters[index].grad
        self._kept[index] = None if gradient is None else gradient.detach().clone()

    def _start_full_buckets(self) -> bool:
        """Start the reductions of the next full buckets; return whether all buckets have started."""
        if not self._queue.start_full_buckets(self._start):
            return False
        if self._needs_used_map and not self.has_hook:
            self._start_used_map()
        return True

    def _start(self, bucket: Bucket) -> None:
        if self._waiting:
            self.bytes_started_early += bucket.size_bytes
        self._queue.fill_bucket(bucket, self._scale)
        with (
            self._queue.attribute_calls_to(bucket),
            self._announce_call(AnnouncedKind.BUCKET, bucket.index) as is_followed,
        ):
            self._queue.reduce_bucket(bucket)
            if is_followed and self.has_hook:
                bucket.wait_for_reduction()  # further calls of the hook belong to this announcement

    def on_backward_end(self) -> None:
        """End the backward: the reduction no longer waits for parameters without a gradient."""
        if self._stage is ReductionStage.EXPECTING:
            self._begin_reduction()
        if self._stage is not ReductionStage.REDUCING:
            return
        if self._static_graph is not None and not self._static_graph.is_learned:
            for index in self._static_graph.end_first_backward():
                self._waiting.remove(index)
                self._order.record_gradient(index)
                self._queue.mark_gradient_ready(index)
        self._mark_gradients_absent(sorted(self._waiting))
        if self._queue.has_all_started or self._start_full_buckets():
            self._finish()

    def _finish(self) -> None:
        """Wait for the reductions of all buckets; then set the parameters' gradients to the results."""
        if self._stage is not ReductionStage.REDUCING:
            return
        self._finish_buckets()
        self._queue.set_gradients(self._kept, self._find_unused_everywhere())
        self._order.end_backward()
        self.backwards += 1
        self.steps.end_backward()
        self._change_stage(ReductionEvent.ALL_REDUCED)
        self._reset_backward()
        if self.join is not None:
            self.join.on_reduced()

    def _finish_buckets(self) -> None:
        self._queue.finish_reductions()
        if self._needs_used_map and self._used_map is None:
            # A hook's call may make further calls when it is done: these are first on every rank.
            self._start_used_map()

    @property
    def _needs_used_map(self) -> bool:
        if self._static_graph is not None:
            return self._static_graph.unused_everywhere is None
        return self._graph is GraphKnowledge.SEARCHED

    def _start_used_map(self) -> None:
        with self._announce_call(AnnouncedKind.USED_MAP, 0):
            device = self.parameters[0].device
            self._used_map = UsedParameterCount(self._used, len(self.parameters), self.process_group, device)

    def _find_unused_everywhere(self) -> frozenset[int]:
        """Return the parameters that no rank has used since the last reduction."""
        used_map, self._used_map = self._used_map, None
        if used_map is None:
            return self._parameters_known_as_unused
        if self._static_graph is not None:
            self._static_graph.unused_everywhere = used_map.unused_parameters()
            return self._parameters_known_as_unused
        if self._kept:
            return used_map.unused_parameters()
        used_map.wait_for_count()  # all parameters were used here, so the result is not needed
        return frozenset()

    @property
    def _parameters_known_as_unused(self) -> frozenset[int]:
        return (self._static_graph and self._static_graph.unused_everywhere) or frozenset()

    def _reset_backward(self) -> None:
        self._waiting = set(range(len(self.parameters)))
        self._queue.restart()
        self._used: set[int] = set()
        """Parameters that got a gradient since the last reduction, also under no_sync."""
        self._kept: dict[int, Tensor | None] = {}
        """For parameters that get no gradient in this backward: the gradients that they had before."""
        self._reached = frozenset()

    def drop_backward(self) -> None:
        """Forget a backward that has begun, if there is one."""
        if self._stage is not ReductionStage.REDUCING:
            return
        self._used_map = None
        self._queue.drop_reductions()
        self._order.drop_recorded()
        self._change_stage(ReductionEvent.GIVEN_UP)
        self._reset_backward()

    def _change_stage(self, event: ReductionEvent) -> None:
        following = next_stage(self._stage, event)
        assert following is not None, f"{event.value} while {self._stage.value}"
        self._stage = following

    def reduce_bucket_without_input(self, number: int) -> None:
        """On a rank without input: reduce a bucket with zeros, and take the reduced gradients."""
        if self._graph is not GraphKnowledge.ALL_USED:
            for index in self.buckets[number].indices:
                self._save_gradient_before_sum(index)
        self._queue.reduce_for_joined_rank(number, unused=self._parameters_known_as_unused)

    def report_no_used_parameters(self) -> None:
        """On a rank without input: report no parameter as used; restore gradients of parameters that no rank used."""
        self._used.clear()
        with self._calls_for_joined_rank():
            self._start_used_map()
        for index in self._find_unused_everywhere():
            self.parameters[index].grad = self._kept.get(index)
        self._kept.clear()

    def rebuild_for_joined_rank(self, source: int) -> None:
        """On a rank without input: agree on the order of gradients with the other ranks."""
        with self._calls_for_joined_rank():
            self.rebuild(source)

    @contextmanager
    def _calls_for_joined_rank(self) -> Iterator[None]:
        """Return a context: communication calls inside it are labelled as answers to ranks with input."""
        self._queue.is_answering_call = True
        yield
        self._queue.is_answering_call = False  # after an exception, `forget` does it

    def abandon(self) -> None:
        """On a rank that leaves by an exception: make the remaining collectives of this backward with zeros."""
        if self._queue.start_remaining_buckets() and self._needs_used_map and not self.has_hook:
            self._start_used_map()
        self._finish_buckets()
        self._find_unused_everywhere()
        self.drop_backward()

    def _announce_call(self, kind: AnnouncedKind, bucket: int) -> AbstractContextManager[bool]:
        return nullcontext(False) if self.join is None else self.join.announce(kind, bucket)

    def adopt_learned_state(self, source: int) -> None:
        """After a join: take over the gradient order and counts that group rank `source` learned."""
        found = LearnedState.of_reducer(self.steps.latest, self._order, self._static_graph, len(self.parameters))
        shared = found.broadcast_from(source, self.process_group, self.parameters[0].device)
        self.backwards = 0
        self.steps.align_step(shared.steps)
        if shared.order is not None and shared.order != self._order.agreed:
            self._queue.create_buckets(self._order.use_agreed_order(shared.order))
        if shared.times is not None and self._static_graph is not None:
            self._static_graph.adopt_counts(shared.times, shared.unused_everywhere)

    def __ddp_call__(self) -> dict[str, object]:
        """Return labels of the current call (the simulator reads them; see simulator/attribution/phases.py)."""
        context: dict[str, object] = {
            "wrapper": self._owner() or self,
            "shadow": self._queue.is_answering_call,
            "hook": self.has_hook,
        }
        if not self._queue.is_answering_call:
            context["step"] = self.steps.latest
        if self._queue.current is not None:
            context["bucket"] = self._queue.current.index
            context["parameters"] = self._queue.current.names
        return context

    def __ddp_progress__(self) -> dict[str, object]:
        """Return how far the reductions are (the simulator reads it; see simulator/attribution/wrapper.py)."""
        unreduced = self._queue.next_bucket if self._stage is ReductionStage.REDUCING else None
        return {
            "step": self.steps.latest,
            "aligned_step": self.steps.aligned,
            "reduced": self.names,
            "unreduced": unreduced and (unreduced.index, unreduced.names),
        }
