"""The reducer: takes gradients as backward brings them and reduces each bucket as soon as it is full.

    forward                 backward                                               end of backward
    expect() ------------>  gradient, gradient, ... -> bucket 0 starts, ...  --->  wait for all, hand the gradients out

Buckets start in one fixed order on all ranks (bucket 1 waits until bucket 0 has started), so that ranks whose gradients
come in different orders still meet.

Note [Discovered order]
    The order of use is not known before a backward has run. The first layout follows the reverse order of definition.
    Where that is wrong, nothing can start before the end: the bucket that must go first fills last. So the first
    reduced backward records the order in which gradients came, and the next forward lays the buckets out by it, on all
    ranks by that of one.

Note [End of backward]
    All gradients are there when the last bucket starts; the wait for the reductions is left to a callback of autograd,
    after the last hook. With unused parameters the last gradient may never come, so a callback at the end of the
    backward through the forward's outputs looks what is missing. Such a callback belongs to the graph task it is queued
    in, and a reentrant checkpoint runs tasks of its own inside: it is queued by a pre-hook of the outputs' nodes, which
    the outermost task runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum

import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import Node
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from ddp.announcement import Kind
from ddp.bucket import Bucket, Scale
from ddp.bucket_plan import Caps, Footprint, complete_order, plan_buckets
from ddp.communication_hooks import CommunicationHook
from ddp.errors import BypassedBackwardError, OpenBackwardError, UsageError
from ddp.gradient_hooks import EndOfBackward, call_at_end, is_awaited_elsewhere, listen
from ddp.knowledge import Knowledge
from ddp.open_backward import describe_open_backward
from ddp.rebuild import DiscoveredOrder
from ddp.stage import Event, Stage, follows
from ddp.static_graph import StaticGraph
from ddp.used_map import UsedMap

__ddp_phases__ = {
    "_start": "bucket",
    "_finish": "bucket",
    "abandon": "bucket",
    "shadow_bucket": "bucket",
    "_start_used_map": "used map",
    "shadow_used_map": "used map",
    "rebuild": "rebuild",
    "share_knowledge": "rebuild",
}


_CAME_AGAIN = (
    "more gradients in this backward than expected: a reentrant checkpoint that runs twice, or two backwards through "
    "one forward. Use static_graph=True if the graph is always the same, or checkpoint with use_reentrant=False"
)
_NOT_SEARCHED = (
    "a gradient that was not expected in this backward: its second one, or the graph walked from the forward's outputs "
    "did not show it. Use static_graph=True for parameters used in several reentrant checkpoints; return all tensors "
    "that the loss depends on"
)
_NOT_LEARNED = (
    "a gradient, but none in the first backward, and static_graph=True takes that for the rule: leave it out if the "
    "graph changes"
)
_MORE_THAN_LEARNED = (
    "more gradients in this backward than in the first, and static_graph=True takes that for the rule: leave it out if "
    "the graph changes"
)


class Graph(Enum):
    """What is known about the graph of a forward."""

    ALL_USED = "all used"
    """Every parameter gets a gradient in every backward."""
    SEARCHED = "searched"
    """The graph is walked from the outputs: `find_unused_parameters`."""
    STATIC = "static"
    """The first backward shows how often each parameter gets a gradient, and it stays so: `static_graph`."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a forward returned, as far as the reducer is concerned."""

    tensors: Sequence[Tensor]
    reached: frozenset[int] | None
    """Indices of the parameters that the tensors depend on; None if it cannot be told."""
    accumulators: Sequence[Node] = ()
    """The nodes of the graph that bring these parameters' gradients."""


Announce = Callable[[Kind, int], AbstractContextManager[bool]]
"""Called with what is to be reduced and the bucket's number; the collective is made inside the context.

Its value says whether other ranks follow this one call by call, having no input themselves.
"""


def announce_nothing(kind: Kind, bucket: int) -> AbstractContextManager[bool]:
    """What is done around each collective outside of a join."""
    return nullcontext(False)


def do_nothing() -> None:
    """What is done when gradients are reduced, outside of a join."""


class Reducer:
    """Reduces the gradients of `parameters` (by name) over `group`.

    `owner` is what calls belong to in a diagnosis (the wrapper); it is not kept alive. `is_local()` says whether
    gradients are meant to stay on this rank for now. `keeps_views`: gradients become views of the buckets and stay so.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        group: ProcessGroup,
        *,
        owner: object,
        is_local: Callable[[], bool],
        sparse: frozenset[str],
        caps: Caps,
        graph: Graph,
        keeps_views: bool,
    ) -> None:
        self.names = tuple(parameters)
        self.parameters = tuple(parameters.values())
        self.process_group = group
        self.announce: Announce = announce_nothing
        self.on_reduced: Callable[[], None] = do_nothing
        self.backwards = 0
        """How many backwards have been reduced."""
        self.bytes_started_early = 0
        """Of the last backward: bytes whose reduction started before its last gradient came."""
        self._owner = weakref.ref(owner)
        self._is_local = is_local
        self._footprints = tuple(_footprint(p, is_sparse=name in sparse) for name, p in parameters.items())
        self._caps = caps
        self._graph = graph
        self._keeps_views = keeps_views
        self._hook: CommunicationHook | None = None
        self._hook_state: object = None
        self._stage = Stage.IDLE
        self._scale: Scale | None = None
        self._order = DiscoveredOrder(len(self.parameters))
        self._static_graph = StaticGraph() if graph is Graph.STATIC else None
        self._used_map: UsedMap | None = None
        self._current: Bucket | None = None
        """The bucket that a call being made belongs to."""
        self._is_shadowing = False
        self._end_of_backward = EndOfBackward(self)
        self._reached: frozenset[int] | None = frozenset()
        """Parameters that the forwards since the last reduction depend on; None if it cannot be told."""
        self._lay_out(complete_order((), len(self.parameters)))
        self._reset()
        listen(self.parameters, self)

    # --- called by the engine -----------------------------------------------------------------------------------------

    @property
    def plan(self) -> tuple[tuple[str, ...], ...]:
        """The names of the parameters in each bucket, in the order of reduction."""
        return tuple(bucket.names for bucket in self.buckets)

    @property
    def has_hook(self) -> bool:
        """Whether a communication hook reduces the buckets."""
        return self._hook is not None

    def use_hook(self, state: object, hook: CommunicationHook) -> None:
        """Reduce buckets by `hook(state, bucket)` from now on."""
        if self._stage in (Stage.EXPECTING, Stage.REDUCING):
            raise UsageError(
                "a communication hook registered between a forward and its backward, expected before the forward, "
                "which decides whether the engine divides gradients: register it right after construction"
            )
        self._hook, self._hook_state = hook, state

    def check_closed(self) -> None:
        """Raise OpenBackwardError if the last backward left buckets open; the reducer then is as after a whole one."""
        if self._stage is not Stage.REDUCING:
            return
        came = frozenset[int]() if self._static_graph is None else self._static_graph.came
        missing = [self.names[index] for index in sorted(self._waiting - came)]
        key = f"ddp/open backward/{self.backwards}/{len(self.names)}/{self.names[0]}"
        if self.announce is announce_nothing:  # a join first makes the calls that other ranks wait for
            self.give_up()
        raise OpenBackwardError(describe_open_backward(missing, key=key, group=self.process_group))

    def rebuild_if_due(self, source: int) -> None:
        """Lay the buckets out in the order that group rank `source` recorded, once, after the first backward."""
        if self._order.is_due:
            with self.announce(Kind.REBUILD, 0):
                self.rebuild(source)

    def rebuild(self, source: int) -> None:
        """Take part in agreeing on the order, and lay the buckets out by it."""
        self._lay_out(self._order.agree(source, self.process_group, self.parameters[0].device))
        if self._keeps_views:
            for bucket in self.buckets:
                bucket.take_in()

    @property
    def awaits_gradients(self) -> bool:
        """Whether a forward was made whose gradients may come now, to be reduced or to stay."""
        return self._stage is not Stage.IDLE

    @property
    def looks_at_outputs(self) -> bool:
        """Whether `expect` needs to know what the forward returned."""
        if self._static_graph is not None:
            return not self._static_graph.is_learned
        return self._graph is Graph.SEARCHED

    def expect(self, scale: Scale | None, outputs: Outputs | None = None) -> None:
        """A forward ended whose gradients are to be reduced, divided as `scale` says (None: the hook does it)."""
        self._advance(Event.FORWARD)
        self._scale = scale
        if outputs is None:
            return
        if self._reached is not None:
            # Several forwards may come before the backward: what any of them reaches may get a gradient.
            self._reached = None if outputs.reached is None else self._reached | outputs.reached
        self._end_of_backward.watch(outputs.tensors, outputs.accumulators)

    def expect_local(self) -> None:
        """A forward ended whose gradients stay on this rank."""
        self._advance(Event.LOCAL_FORWARD)

    # --- backward -----------------------------------------------------------------------------------------------------

    def take(self, index: int) -> None:
        """A gradient has come."""
        if self._stage is not Stage.REDUCING and not self._begin(index):
            return
        if self._graph is not Graph.ALL_USED:
            self._used.add(index)
            if self._static_graph is not None and not self._static_graph.is_last(index):
                return
        self._mark_ready(index)

    def _begin(self, index: int) -> bool:
        """The first gradient of a backward; return whether it is to be reduced."""
        if self._stage is Stage.LOCAL or (self._stage is Stage.IDLE and self._is_local()):
            self._used.add(index)
            return False
        if self._stage is Stage.IDLE:
            if is_awaited_elsewhere(self.parameters[index], self):
                return False
            raise BypassedBackwardError(_bypassed(self.names[index]))
        self._open()
        if self.looks_at_outputs and not self._end_of_backward.is_awaited:
            call_at_end(self.complete)
        return True

    def _open(self) -> None:
        """Begin to reduce; the parameters that are known to get no gradient are not waited for."""
        self._advance(Event.GRADIENT)
        self.bytes_started_early = 0
        everybody = range(len(self.parameters))
        if self._static_graph is not None:
            times = self._static_graph.times
            self._static_graph.begin()
            if times is not None:
                self._mark_absent(index for index in everybody if index not in times)
        elif self._graph is Graph.SEARCHED and self._reached is not None:
            reached = self._reached
            self._mark_absent(index for index in everybody if index not in reached)

    def _mark_ready(self, index: int) -> None:
        if index not in self._waiting:
            raise UsageError(f"{self.names[index]} got {self._surplus(index)}")
        self._waiting.remove(index)
        self._order.record(index)
        bucket = self._bucket_of[index]
        bucket.pending -= 1
        if not bucket.pending and self._start_full_buckets():
            call_at_end(self._finish)

    def _surplus(self, index: int) -> str:
        """What to say of a gradient that is one too many."""
        if self._static_graph is None:
            return _NOT_SEARCHED if self._graph is Graph.SEARCHED else _CAME_AGAIN
        return _MORE_THAN_LEARNED if index in (self._static_graph.times or {}) else _NOT_LEARNED

    def _mark_absent(self, indices: Iterable[int]) -> None:
        """These get no gradient in this backward; what they have counts, and is theirs again if no rank has more."""
        for index in indices:
            if index in self._waiting:
                self._waiting.remove(index)
                self._bucket_of[index].pending -= 1
                self._keep(index)

    def _keep(self, index: int) -> None:
        gradient = self.parameters[index].grad
        self._kept[index] = None if gradient is None else gradient.detach().clone()

    def _start_full_buckets(self) -> bool:
        """Start the buckets that are full and whose turn it is; return whether all have started now."""
        while self._started < len(self.buckets) and not self.buckets[self._started].pending:
            self._start(self.buckets[self._started])
            self._started += 1
        if self._started < len(self.buckets):
            return False
        if self._needs_used_map and self._hook is None:
            self._start_used_map()
        return True

    def _start(self, bucket: Bucket) -> None:
        if self._waiting:
            self.bytes_started_early += bucket.size_bytes
        bucket.fill(self._scale, makes_views=self._keeps_views)
        self._current = bucket
        with self.announce(Kind.BUCKET, bucket.index) as is_followed:
            bucket.reduce(self.process_group, self._hook, self._hook_state)
            if is_followed and self._hook is not None:
                bucket.wait()  # what a hook calls when its first call is done belongs to this announcement
        self._current = None

    def complete(self) -> None:
        """The backward is over: what has not come by now does not come (Note [End of backward])."""
        if self._stage is Stage.EXPECTING:
            self._open()
        if self._stage is not Stage.REDUCING:
            return
        if self._static_graph is not None and not self._static_graph.is_learned:
            for index in self._static_graph.learn():
                self._waiting.remove(index)
                self._order.record(index)
                self._bucket_of[index].pending -= 1
        self._mark_absent(sorted(self._waiting))
        if self._started == len(self.buckets) or self._start_full_buckets():
            self._finish()

    def _finish(self) -> None:
        """Wait for what is in flight and hand the gradients out."""
        if self._stage is not Stage.REDUCING:
            return
        self._finish_buckets()
        self._hand_out(self._unused_everywhere())
        self._order.end_backward()
        self.backwards += 1
        self._advance(Event.ALL_REDUCED)
        self._reset()
        self.on_reduced()

    def _finish_buckets(self) -> None:
        for bucket in self.buckets:
            self._current = bucket
            bucket.finish()
        self._current = None
        if self._needs_used_map and self._used_map is None:
            # With a hook, whose calls may make further ones when they are done: those come first on every rank.
            self._start_used_map()

    def _hand_out(self, unused: frozenset[int]) -> None:
        if not self._keeps_views:
            for bucket in self.buckets:
                bucket.copy_out(kept=unused)
        for index, gradient in self._kept.items():
            if index in unused:
                self.parameters[index].grad = gradient
                if self._keeps_views:
                    self._bucket_of[index].take_in()
            elif self._keeps_views:
                self._bucket_of[index].hand_out(index)

    @property
    def _needs_used_map(self) -> bool:
        if self._static_graph is not None:
            return self._static_graph.unused_everywhere is None
        return self._graph is Graph.SEARCHED

    def _start_used_map(self) -> None:
        with self.announce(Kind.USED_MAP, 0):
            device = self.parameters[0].device
            self._used_map = UsedMap(self._used, len(self.parameters), self.process_group, device)

    def _unused_everywhere(self) -> frozenset[int]:
        """The parameters that no rank has used since the last reduction."""
        used_map, self._used_map = self._used_map, None
        if self._static_graph is None:
            if used_map is None:
                return frozenset()
            if self._kept:
                return used_map.unused()
            used_map.wait()  # everything was used here: nothing to read, which would make an accelerator's host wait
            return frozenset()
        if used_map is not None:
            self._static_graph.unused_everywhere = used_map.unused()
        return self._static_graph.unused_everywhere or frozenset()

    # --- what changes between backwards -------------------------------------------------------------------------------

    def _lay_out(self, order: Sequence[int]) -> None:
        plan = plan_buckets(order, self._footprints, self._caps)
        self.buckets = tuple(
            Bucket(
                number,
                indices,
                {self.names[index]: self.parameters[index] for index in indices},
                is_last=number == len(plan) - 1,
                is_sparse=self._footprints[indices[0]].is_sparse,
            )
            for number, indices in enumerate(plan)
        )
        self._bucket_of = {index: bucket for bucket in self.buckets for index in bucket.indices}

    def _reset(self) -> None:
        self._waiting = set(range(len(self.parameters)))
        self._started = 0
        """How many buckets have started."""
        self._used: set[int] = set()
        """Parameters that got a gradient since the last reduction, under no_sync, too."""
        self._kept: dict[int, Tensor | None] = {}
        """What the parameters had that get no gradient in this backward."""
        self._reached = frozenset()

    def give_up(self) -> None:
        """Forget a backward that has begun, if one has."""
        if self._stage is not Stage.REDUCING:
            return
        self._current, self._is_shadowing, self._used_map = None, False, None
        for bucket in self.buckets:
            bucket.forget()
        self._order.forget()
        self._advance(Event.GIVEN_UP)
        self._reset()

    def _advance(self, event: Event) -> None:
        following = follows(self._stage, event)
        assert following is not None, f"{event.value} while {self._stage.value}"
        self._stage = following

    # --- join ---------------------------------------------------------------------------------------------------------

    def shadow_bucket(self, number: int) -> None:
        """On a joined rank: take part in a bucket's reduction with nothing; the gradients become what all have."""
        bucket = self._current = self.buckets[number]
        self._is_shadowing = True
        if self._graph is not Graph.ALL_USED:
            for index in bucket.indices:
                self._keep(index)
        bucket.clear()
        bucket.reduce(self.process_group, self._hook, self._hook_state)
        bucket.finish()
        self._current, self._is_shadowing = None, False
        unused = (self._static_graph and self._static_graph.unused_everywhere) or frozenset()
        if not self._keeps_views:
            bucket.copy_out(kept=unused)
            return
        for index in bucket.indices:
            if index not in unused:
                bucket.hand_out(index)

    def shadow_used_map(self) -> None:
        """On a joined rank: take part in the used map, having used nothing; what nobody used gets back what it had."""
        self._used.clear()
        self._start_used_map()
        for index in self._unused_everywhere():
            self.parameters[index].grad = self._kept.get(index)
        self._kept.clear()

    def abandon(self) -> None:
        """On a rank that leaves by an exception: make the rest of this backward's collectives, with nothing."""
        remaining = self.buckets[self._started :]
        for bucket in remaining:
            self._current = bucket
            bucket.clear()
            bucket.reduce(self.process_group, self._hook, self._hook_state)
        self._current = None
        if remaining and self._needs_used_map and self._hook is None:
            self._start_used_map()
        self._finish_buckets()
        self._unused_everywhere()
        self.give_up()

    def stop_announcing(self) -> None:
        """The join is over."""
        self.announce, self.on_reduced = announce_nothing, do_nothing

    def share_knowledge(self, source: int) -> None:
        """After a join: take over what group rank `source` has found out."""
        device, group = self.parameters[0].device, self.process_group
        knowledge = self._knowledge.encode(len(self.parameters)).to(device)
        dist.broadcast(knowledge, dist.get_global_rank(group, source), group=group)
        self._adopt(Knowledge.decode(knowledge))

    @property
    def _knowledge(self) -> Knowledge:
        learned = self._static_graph if self._static_graph is not None and self._static_graph.is_learned else None
        return Knowledge(
            self.backwards,
            self._order.best if self._order.is_known else None,
            None if learned is None else learned.times_by_index(len(self.parameters)),
            (learned and learned.unused_everywhere) or frozenset(),
        )

    def _adopt(self, knowledge: Knowledge) -> None:
        self.backwards = knowledge.backwards
        if knowledge.order is not None and knowledge.order != self._order.agreed:
            self._lay_out(self._order.adopt(knowledge.order))
        if knowledge.times is not None and self._static_graph is not None:
            self._static_graph.adopt(knowledge.times, knowledge.unused_everywhere)

    # --- what a diagnosis asks ----------------------------------------------------------------------------------------

    def __ddp_call__(self) -> dict[str, object]:
        """What the call being made belongs to (the simulator reads it; see simulator/process_group/phases.py)."""
        told: dict[str, object] = {"wrapper": self._owner() or self, "shadow": self._is_shadowing}
        if self._current is not None:
            told["bucket"] = self._current.index
            told["parameters"] = self._current.names
            if not self._is_shadowing:
                told["step"] = self.backwards + 1
        return told


def _footprint(parameter: Tensor, *, is_sparse: bool) -> Footprint:
    return Footprint(
        size_bytes=parameter.numel() * parameter.element_size(),
        kind=(parameter.dtype, parameter.device),
        is_sparse=is_sparse,
    )


def _bypassed(name: str) -> str:
    return (
        f"a gradient of {name} came, but no forward through the DistributedDataParallel waits for its backward, so "
        "nobody would reduce it: the inner module was called past the wrapper, or backward ran a second time through "
        "one graph, or of two losses of one forward the first of two backwards ended the reduction: add the losses and "
        "call backward once. Call the wrapper for each backward, or do this under its no_sync()"
    )
