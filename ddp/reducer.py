"""The reducer: takes gradients as backward brings them and reduces each bucket as soon as it is full.

    forward                 backward                                               end of backward
    expect() ------------>  gradient, gradient, ... -> bucket 0 starts, ...  --->  wait for all, hand the gradients out

Buckets start in one fixed order on all ranks (bucket 1 waits until bucket 0 has started), so that ranks whose gradients
come in different orders still meet.

Note [Discovered order]
    The order of use is not known before a backward has run. The first layout follows the reverse order of definition. Where
    that is wrong, nothing can start before the end: the bucket that must go first fills last. So the first reduced backward
    records the order in which gradients came, and the next forward lays the buckets out by it, on all ranks by that of one.

Note [End of backward]
    All gradients are there when the last bucket starts; the wait for the reductions is left to a callback of autograd, after
    the last hook. With unused parameters the last gradient may never come, so a callback at the end of the backward through
    the forward's outputs looks what is missing. Such a callback belongs to the graph task it is queued in, and a reentrant
    checkpoint runs tasks of its own inside: it is queued by a pre-hook of the outputs' nodes, which the outermost task runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.distributed import ProcessGroup
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from ddp.bucket import Bucket, Scale
from ddp.bucket_plan import Caps, Footprint, complete_order, plan_buckets
from ddp.communication_hooks import CommunicationHook
from ddp.errors import BypassedBackwardError, OpenBackwardError, UsageError
from ddp.open_backward import describe_open_backward
from ddp.rebuild import DiscoveredOrder
from ddp.stage import Event, Stage, follows
from ddp.static_graph import StaticGraph

__ddp_phases__ = {
    "_start": "bucket",
    "_finish": "bucket",
    "shadow_bucket": "bucket",
    "_start_used_map": "used map",
    "shadow_used_map": "used map",
    "rebuild": "rebuild",
    "share_knowledge": "rebuild",
    "abandon": "bucket",
}


class Graph(Enum):
    """What is known about the graph of a forward."""

    ALL_USED = "all used"
    """Every parameter gets a gradient in every backward."""
    SEARCHED = "searched"
    """The graph is walked from the outputs: `find_unused_parameters`."""
    STATIC = "static"
    """The first backward shows how often each parameter gets a gradient, and it stays so: `static_graph`."""


class Step(Enum):
    """The collectives of a reducer, as they are announced to ranks that have joined."""

    BUCKET = "bucket"
    USED_MAP = "used map"
    REBUILD = "rebuild"


Announce = Callable[[Step, int], AbstractContextManager[None]]
"""Called with the step and the bucket's number; the collective is made inside the context."""


def announce_nothing(step: Step, bucket: int) -> AbstractContextManager[None]:
    """What is done around each collective while nobody has joined."""
    return nullcontext()


def do_nothing() -> None:
    """What is done when gradients are reduced, outside of a join."""


class Outputs:
    """What a forward returned, as far as the reducer is concerned; a seam so that it is looked at only where needed."""

    def __init__(self, tensors: Sequence[Tensor], reached: set[int] | None) -> None:
        self.tensors = tensors
        self.reached = reached
        """Indices of the parameters that the tensors depend on; None if it cannot be told."""


class Reducer:
    """Reduces the gradients of `parameters` (by name) over `group`.

    `owner` is what calls belong to in a diagnosis (the wrapper); it is not kept alive. `is_local()` says whether gradients
    are meant to stay on this rank for now. `keeps_views`: gradients become views of the buckets and stay so.
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
        self.order = DiscoveredOrder(len(self.parameters))
        self.static_graph = StaticGraph() if graph is Graph.STATIC else None
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
        self._used_map: tuple[Tensor, Any] | None = None
        self._current: Bucket | None = None
        self._watched_task = -1
        self._is_shadowing = False
        self._reached: set[int] | None = set()
        """Parameters that the forwards since the last reduction depend on; None if it cannot be told."""
        self.lay_out(complete_order((), len(self.parameters)))
        self._listen()

    # --- called by the engine -----------------------------------------------------------------------------------------

    @property
    def plan(self) -> tuple[tuple[str, ...], ...]:
        """The names of the parameters in each bucket, in the order of reduction."""
        return tuple(tuple(self.names[index] for index in bucket.indices) for bucket in self.buckets)

    @property
    def has_hook(self) -> bool:
        """Whether a communication hook reduces the buckets."""
        return self._hook is not None

    def use_hook(self, state: object, hook: CommunicationHook) -> None:
        """Reduce buckets by `hook(state, bucket)` from now on."""
        self._hook, self._hook_state = hook, state

    def check_closed(self) -> None:
        """Raise OpenBackwardError if the last backward left buckets open; the reducer then is as after a whole one."""
        if self._stage is not Stage.REDUCING:
            return
        missing = [self.names[index] for index in sorted(self._waiting)]
        key = f"ddp/open backward/{self.backwards}/{len(self.names)}/{self.names[0]}"
        self.give_up()
        raise OpenBackwardError(describe_open_backward(missing, key=key, group=self.process_group))

    def give_up(self) -> None:
        """Forget a backward that has begun; what other ranks wait for stays undone."""
        for bucket in self.buckets:
            bucket.forget()
        self.order.forget()
        self._advance(Event.GIVEN_UP)
        self._reset()

    def rebuild_if_due(self, source: int) -> None:
        """Lay the buckets out in the order that group rank `source` recorded: once, after the first reduced backward."""
        if self.order.is_due:
            with self.announce(Step.REBUILD, 0):
                self.rebuild(source)

    def rebuild(self, source: int) -> None:
        """Take part in agreeing on the order, and lay the buckets out by it."""
        self.lay_out(self.order.agree(source, self.process_group, self.parameters[0].device))

    def lay_out(self, order: Sequence[int]) -> None:
        """Make the buckets for the parameters in this order."""
        plan = plan_buckets(order, self._footprints, self._caps)
        self.buckets = tuple(
            Bucket(
                number,
                indices,
                [self.parameters[index] for index in indices],
                is_last=number == len(plan) - 1,
                is_sparse=self._footprints[indices[0]].is_sparse,
            )
            for number, indices in enumerate(plan)
        )
        self._bucket_of = {index: bucket for bucket in self.buckets for index in bucket.indices}
        self._reset()

    @property
    def looks_at_outputs(self) -> bool:
        """Whether `expect` needs to know what the forward returned."""
        return self._graph is Graph.SEARCHED or (self.static_graph is not None and not self.static_graph.is_learned)

    def expect(self, scale: Scale | None, outputs: Outputs | None = None) -> None:
        """A forward ended whose gradients are to be reduced, divided as `scale` says (None: the hook does it)."""
        self._advance(Event.FORWARD)
        self._scale = scale
        if outputs is None:
            return
        if self._reached is not None:
            # Several forwards may come before the backward: what any of them reaches may get a gradient.
            self._reached = None if outputs.reached is None else self._reached | outputs.reached
        for tensor in outputs.tensors:
            if tensor.grad_fn is not None:
                self._sees_end = True
                tensor.grad_fn.register_prehook(_end_watcher(weakref.ref(self)))

    def expect_local(self) -> None:
        """A forward ended whose gradients stay on this rank."""
        self._advance(Event.LOCAL_FORWARD)

    # --- backward -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        # The hooks live as long as the parameters, which may well outlive this reducer: they must not keep it alive.
        itself = weakref.ref(self)

        def listener(index: int) -> Callable[[Tensor], None]:
            def on_gradient(parameter: Tensor) -> None:
                reducer = itself()
                if reducer is not None:
                    reducer._take(index)

            return on_gradient

        handles = [p.register_post_accumulate_grad_hook(listener(index)) for index, p in enumerate(self.parameters)]
        weakref.finalize(self, _remove, handles).atexit = False

    def _take(self, index: int) -> None:
        """A gradient has come."""
        if self._stage is not Stage.REDUCING and not self._begin(index):
            return
        if self._graph is not Graph.ALL_USED:
            self._used.add(index)
            if self.static_graph is not None and not self.static_graph.is_last(index):
                return
        self._mark_ready(index)

    def _begin(self, index: int) -> bool:
        """The first gradient of a backward; return whether it is to be reduced."""
        if self._stage is Stage.LOCAL or (self._stage is Stage.IDLE and self._is_local()):
            self._used.add(index)
            return False
        if self._stage is Stage.IDLE:
            raise BypassedBackwardError(_bypassed(self.names[index]))
        self._open()
        if self._graph is not Graph.ALL_USED and not self._sees_end:
            self._call_at_end(self._complete)
        return True

    def _open(self) -> None:
        """Begin to reduce; the parameters that are known to get no gradient are not waited for."""
        self._advance(Event.GRADIENT)
        self.bytes_started_early = 0
        everybody = range(len(self.parameters))
        if self.static_graph is not None:
            times = self.static_graph.times
            self.static_graph.begin()
            if times is not None:
                self._mark_absent(index for index in everybody if index not in times)
        elif self._graph is Graph.SEARCHED and self._reached is not None:
            reached = self._reached
            self._mark_absent(index for index in everybody if index not in reached)

    def _mark_ready(self, index: int) -> None:
        if index not in self._waiting:
            raise UsageError(_came_again(self.names[index], self._graph))
        self._waiting.remove(index)
        self.order.record(index)
        bucket = self._bucket_of[index]
        bucket.pending -= 1
        if not bucket.pending and self._start_full_buckets():
            self._call_at_end(self._finish)

    def _mark_absent(self, indices: Iterable[int]) -> None:
        """These get no gradient in this backward; what they have counts, and is theirs again if no rank has more."""
        for index in indices:
            if index in self._waiting:
                self._waiting.remove(index)
                self._bucket_of[index].pending -= 1
                gradient = self.parameters[index].grad
                self._kept[index] = None if gradient is None else gradient.detach().clone()

    def _start_full_buckets(self) -> bool:
        """Start the buckets that are full and whose turn it is; return whether all have started now."""
        while self._started < len(self.buckets) and not self.buckets[self._started].pending:
            self._start(self.buckets[self._started])
            self._started += 1
        if self._started < len(self.buckets):
            return False
        if self._needs_used_map:
            self._start_used_map()
        return True

    def _start(self, bucket: Bucket) -> None:
        if self._waiting:
            self.bytes_started_early += bucket.size_bytes
        bucket.fill(self._scale, makes_views=self._keeps_views)
        self._current = bucket
        with self.announce(Step.BUCKET, bucket.index):
            bucket.reduce(self.process_group, self._hook, self._hook_state)
        self._current = None

    def _complete(self) -> None:
        """The backward is over: what has not come by now does not come (Note [End of backward])."""
        self._watched_task = -1
        if self._stage is Stage.EXPECTING:
            self._open()
        if self._stage is not Stage.REDUCING:
            return
        if self.static_graph is not None and not self.static_graph.is_learned:
            for index in self.static_graph.learn():
                self._waiting.remove(index)
                self.order.record(index)
                self._bucket_of[index].pending -= 1
        self._mark_absent(sorted(self._waiting))
        if self._started == len(self.buckets) or self._start_full_buckets():
            self._finish()

    def _finish(self) -> None:
        """Wait for what is in flight and hand the gradients out."""
        if self._stage is not Stage.REDUCING:
            return
        for bucket in self.buckets:
            self._current = bucket
            bucket.finish()
        self._current = None
        self._hand_out(self._unused_everywhere())
        self.order.end_backward()
        self.backwards += 1
        self._advance(Event.ALL_REDUCED)
        self._reset()
        self.on_reduced()

    def _hand_out(self, unused: frozenset[int]) -> None:
        for bucket in self.buckets:
            if not self._keeps_views:
                bucket.copy_out(kept=unused)
        for index, gradient in self._kept.items():
            if index in unused:
                self.parameters[index].grad = gradient
            elif self._keeps_views:
                self._bucket_of[index].hand_out(index)

    @property
    def _needs_used_map(self) -> bool:
        if self.static_graph is not None:
            return self.static_graph.unused_everywhere is None
        return self._graph is Graph.SEARCHED

    def _start_used_map(self) -> None:
        used_map = torch.zeros(len(self.parameters), dtype=torch.int32)
        used_map[list(self._used)] = 1
        used_map = used_map.to(self.parameters[0].device)
        with self.announce(Step.USED_MAP, 0):
            self._used_map = used_map, dist.all_reduce(used_map, group=self.process_group, async_op=True)

    def _unused_everywhere(self) -> frozenset[int]:
        """The parameters that no rank has used since the last reduction."""
        if self._used_map is None:
            known = None if self.static_graph is None else self.static_graph.unused_everywhere
            return known or frozenset()
        (used_map, work), self._used_map = self._used_map, None
        work.wait()
        unused = frozenset(index for index, users in enumerate(used_map.tolist()) if not users)
        if self.static_graph is not None:
            self.static_graph.unused_everywhere = unused
        return unused

    def _reset(self) -> None:
        self._waiting = set(range(len(self.parameters)))
        self._used: set[int] = set()
        """Parameters that got a gradient since the last reduction, under no_sync, too."""
        self._kept: dict[int, Tensor | None] = {}
        """What the parameters had that get no gradient in this backward."""
        self._reached = set()
        self._sees_end = False
        """Whether the end of the backward will be noticed."""
        self._started = 0

    def _advance(self, event: Event) -> None:
        following = follows(self._stage, event)
        assert following is not None, f"{event.value} while {self._stage.value}"
        self._stage = following

    @staticmethod
    def _call_at_end(callback: Callable[[], None]) -> None:
        Variable._execution_engine.queue_callback(callback)

    def watch_end(self) -> None:
        """Inside a backward: have `_complete` called at its end, once."""
        task = torch._C._current_graph_task_id()
        if task != self._watched_task:
            self._watched_task = task
            self._call_at_end(self._complete)

    # --- on a rank that has joined ------------------------------------------------------------------------------------

    @contextmanager
    def shadowing(self) -> Iterator[None]:
        """Calls inside are made for ranks that have input."""
        self._is_shadowing = True
        try:
            yield
        finally:
            self._is_shadowing = False

    def shadow_bucket(self, number: int) -> None:
        """Take part in the reduction of a bucket with a neutral contribution; the gradients become what all have."""
        bucket = self._current = self.buckets[number]
        if self._graph is not Graph.ALL_USED:
            for index in bucket.indices:
                gradient = self.parameters[index].grad
                self._kept[index] = None if gradient is None else gradient.detach().clone()
        bucket.clear()
        bucket.reduce(self.process_group, self._hook, self._hook_state)
        bucket.finish()
        self._current = None
        for index in bucket.indices:
            bucket.hand_out(index)

    def shadow_used_map(self) -> None:
        """Take part in the used map, having used nothing; parameters unused everywhere get back what they had."""
        self._used.clear()
        self._start_used_map()
        for index in self._unused_everywhere():
            self.parameters[index].grad = self._kept.get(index)
        self._kept.clear()

    def abandon(self) -> None:
        """Make the rest of this backward's collectives with nothing to contribute, for the ranks that wait in them."""
        for bucket in self.buckets[self._started :]:
            bucket.clear()
            self._current = bucket
            bucket.reduce(self.process_group, self._hook, self._hook_state)
        if self._started < len(self.buckets) and self._needs_used_map:
            self._start_used_map()
        for bucket in self.buckets:
            bucket.finish()
        self._current = None
        if self._used_map is not None:
            self._used_map[1].wait()
            self._used_map = None
        self.give_up()

    def stop_announcing(self) -> None:
        """The join is over."""
        self.announce, self.on_reduced = announce_nothing, do_nothing

    def share_knowledge(self, source: int) -> None:
        """Take over what group rank `source` has found out: the order of gradients, and what a static graph has shown."""
        count = len(self.parameters)
        knowledge = torch.zeros(2, 3, count, dtype=torch.int64)
        if self.order.is_known:
            knowledge[0, 0] = torch.tensor(self.order.best)
            knowledge[1, 0] = 1
        if self.static_graph is not None and self.static_graph.times is not None:
            for index, times in self.static_graph.times.items():
                knowledge[0, 1, index] = times
            knowledge[0, 2, list(self.static_graph.unused_everywhere or ())] = 1
            knowledge[1, 1] = 1
        knowledge[1, 2] = self.backwards
        knowledge = knowledge.to(self.parameters[0].device)
        dist.broadcast(knowledge, group=self.process_group, src=dist.get_global_rank(self.process_group, source))
        (order, times_, unused), (has_order, is_learned, backwards) = knowledge.tolist()
        self.backwards = backwards[0]
        if has_order[0] and self.order.agreed != tuple(order):
            self.lay_out(self.order.adopt(order))
        if is_learned[0] and self.static_graph is not None:
            self.static_graph.adopt(times_, [index for index, flag in enumerate(unused) if flag])

    # --- what a diagnosis asks ----------------------------------------------------------------------------------------

    def __ddp_call__(self) -> dict[str, object]:
        """What the call being made belongs to (the simulator reads it; see simulator/process_group/phases.py)."""
        told: dict[str, object] = {"wrapper": self._owner() or self, "shadow": self._is_shadowing}
        if self._current is not None:
            if not self._is_shadowing:
                told["step"] = self.backwards + 1
            told["bucket"] = self._current.index
            told["parameters"] = tuple(self.names[index] for index in self._current.indices)
        return told


def _end_watcher(reducer: weakref.ref[Reducer]) -> Callable[[Any], None]:
    def on_backward(gradients: Any) -> None:
        found = reducer()
        if found is not None:
            found.watch_end()

    return on_backward


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _footprint(parameter: Parameter, *, is_sparse: bool) -> Footprint:
    return Footprint(
        size_bytes=parameter.numel() * parameter.element_size(),
        kind=(parameter.dtype, parameter.device),
        is_sparse=is_sparse,
    )


def _bypassed(name: str) -> str:
    return (
        f"a gradient of {name} came, but no forward through the DistributedDataParallel waits for its backward, so nobody "
        "would reduce it: either the inner module was called past the wrapper, or backward ran a second time through one "
        "graph. Call the wrapper for each backward, or do this under its no_sync()"
    )


def _came_again(name: str, graph: Graph) -> str:
    if graph is Graph.SEARCHED:
        return (
            f"{name} got a gradient that was not expected in this backward: its second one, or the graph walked from the "
            "forward's outputs did not show it. Use static_graph=True for parameters used in several reentrant "
            "checkpoints; return all tensors that the loss depends on"
        )
    return (
        f"{name} got more gradients in this backward than expected: a reentrant checkpoint that runs twice, or two "
        "backwards through one forward. Use static_graph=True if the graph is always the same, or checkpoint with "
        "use_reentrant=False"
    )
