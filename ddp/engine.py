"""The engine: a module that trains as one with its replicas on other ranks. Only wiring; the parts are modules.

construction    verify.py: compare the models of the ranks · broadcast.py: send the state of one
forward         parameter_watch.py: parameters are unchanged · join_coordinator.py: who has input · buffer_sync.py
backward        reducer.py: buckets, reduced as they fill
join            join.py: ranks without input answer the calls of the others
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import add
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.join import Joinable
from torch.nn import Parameter
from torch.utils import _pytree

from ddpsim.ddp import constructor_arguments
from ddpsim.ddp.backward_progress import GraphKnowledge
from ddpsim.ddp.broadcast import broadcast_coalesced
from ddpsim.ddp.bucket import GradientScale
from ddpsim.ddp.bucket_plan import BucketCaps
from ddpsim.ddp.buffer_strategies import BufferHook, Strategy, When
from ddpsim.ddp.buffer_sync import BufferSync
from ddpsim.ddp.communication_hooks import CommunicationHook
from ddpsim.ddp.errors import JoinError, UsageError
from ddpsim.ddp.join import EngineJoinHook, Join, check_no_other_join
from ddpsim.ddp.join_coordinator import ForwardParticipants, JoinCoordinator
from ddpsim.ddp.join_protocol import ForwardKind
from ddpsim.ddp.parameter_watch import KnownTrainability, ParameterWatch
from ddpsim.ddp.reducer import JoinCallbacks, Reducer
from ddpsim.ddp.unused import ForwardOutputs, accumulators_of, find_tensors, reached_parameters
from ddpsim.ddp.verify import verify_problem, verify_replicas

__ddp_phases__ = {
    "_verify": "parameter check",
    "_verify_problem": "parameter check",
    "_broadcast_state": "state broadcast",
    "_synchronize_buffers": "buffers",
}


_NOT_COPIED = frozenset(
    {
        "process_group",
        "reducer",
        "_world_size",
        "_watch",
        "_buffers_in_step",
        "_accumulators",
        "_join_options",
        "_forward_context",
        "_samples",
    }
)
"""Attributes that a copy of the wrapped model creates anew."""


@dataclass(frozen=True, slots=True)
class _JoinOptions:
    coordinator: JoinCoordinator
    divides_by_initial_size: bool
    weighs_samples: bool


@dataclass(frozen=True, slots=True)
class _ForwardContext:
    """One forward through the wrapped model, from its begin."""

    kind: ForwardKind
    participants: ForwardParticipants
    has_returned: bool = False
    """Whether the module's own forward has returned."""
    is_reduction_due: bool = False
    """Whether this forward's gradients, or an earlier forward's, are still to be reduced."""


class DistributedDataParallel(nn.Module, Joinable):
    """Wraps `module` so that its replicas on all ranks of `process_group` train as one.

    The arguments are torch's. `device_ids` may name one device, to which inputs are moved. `broadcast_buffers=False`
    never synchronizes buffers, `forward_sync_buffers=False` only at construction; `register_buffer_comm_hook` changes
    single buffers. `init_sync=False` skips the comparison and broadcast of replicas. A bucket closes at `bucket_cap_mb`
    (MiB, default 25), the first at 1 MiB. `find_unused_parameters` allows parameters without gradients; so does
    `static_graph`, if the graph is the same in every iteration. `dim` is the dimension of inputs along which `join`
    counts samples. `check_reduction` has no effect, as in torch.

    After the first backward, gradients are views of the buckets. `gradient_as_bucket_view=False` keeps them separate,
    which costs a copy. With `True`, gradients that already are views are divided in place, as in torch.

    Construction is a collective. If parameters, buffers or settings differ, or only some ranks have what cannot be
    wrapped, every rank raises ReplicaMismatchError. If no rank's module can be wrapped, every rank raises UsageError.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool | None = None,
        static_graph: bool = False,
        *,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        Joinable.__init__(self)
        self.parameters_to_ignore: frozenset[str] = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.process_group = constructor_arguments.checked_group(process_group)
        try:
            parameters = constructor_arguments.trainable_parameters(module, self.parameters_to_ignore)
            self.device = constructor_arguments.common_device(parameters)
            self._caps = BucketCaps.from_megabytes(constructor_arguments.checked_bucket_cap(bucket_cap_mb))
            self.device_ids, self.output_device = constructor_arguments.checked_devices(
                device_ids, output_device, self.device
            )
        except UsageError as problem:
            if init_sync:
                self._verify_problem(problem, constructor_arguments.device_for_messages(module, self.process_group))
            raise
        self.module = module
        self.dim = dim
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        broadcasts = broadcast_buffers is not False
        self.forward_sync_buffers = broadcasts if forward_sync_buffers is None else forward_sync_buffers
        self.require_backward_grad_sync = True
        """Whether gradients are reduced; `no_sync` sets it to False."""
        self.require_forward_param_sync = True
        """Whether the next forward synchronizes buffers: not after one whose gradients stayed local (as in torch)."""
        self._world_size = dist.get_world_size(self.process_group)
        self._is_apart = False
        """True after a rank left a join by an exception: the parameters may differ between the ranks since then."""
        self._join_options: _JoinOptions | None = None
        self._forward_context: _ForwardContext | None = None
        """Inside a join, the forward whose gradients are still to be reduced."""
        self._samples: tuple[int, ...] = ()
        """For each rank, the samples in the forwards whose gradients are still to be reduced."""
        if init_sync:
            self._verify()
            self._broadcast_state(0, with_buffers=broadcasts or forward_sync_buffers is not None)
        self._make_parts(parameters)

    def _make_parts(self, parameters: Mapping[str, Parameter]) -> None:
        """Create the objects that cannot be copied, since they hold the module's tensors or the process group."""
        self._watch = ParameterWatch(self.module, parameters, ignored=self.parameters_to_ignore)
        self._buffers_in_step = BufferSync(
            self.module, self.process_group, ignored=self.parameters_to_ignore, broadcasts=self.forward_sync_buffers
        )
        searched = GraphKnowledge.SEARCHED if self.find_unused_parameters else GraphKnowledge.ALL_USED
        self.reducer = Reducer(
            parameters,
            self.process_group,
            owner=self,
            is_local=partial(_is_synchronization_off, weakref.ref(self)),
            sparse=constructor_arguments.sparse_parameters(self.module),
            caps=self._caps,
            graph=GraphKnowledge.STATIC if self.static_graph else searched,
            keeps_views=self.gradient_as_bucket_view is not False,
        )
        self._accumulators = accumulators_of(self.reducer.parameters)

    def __getstate__(self) -> dict[str, Any]:
        """Return the module and settings, for a copy. Raises UsageError if a group or hook cannot be copied."""
        for has_it, what in (
            (self.process_group is not dist.group.WORLD, "a process group of its own"),
            (self.reducer.has_hook, "a communication hook"),
            (self._buffers_in_step.strategies.sides_of_custom_buffers, "buffer hooks"),
        ):
            if has_it:
                raise UsageError(
                    f"a DistributedDataParallel with {what} cannot be copied or pickled: copy its module and wrap that"
                )
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_COPIED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle or copy, in the default process group."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.process_group = constructor_arguments.checked_group(None)
        self._world_size = dist.get_world_size(self.process_group)
        self._join_options = self._forward_context = None
        self._samples = ()
        self._make_parts(constructor_arguments.trainable_parameters(self.module, self.parameters_to_ignore))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module; with gradients enabled, and outside of no_sync, the next backward reduces the gradients.

        Raises ParameterChangedError, OpenBackwardError (of the previous backward), or JoinError after a failed join.
        """
        context = self._begin_forward(inputs, kwargs)
        if self.device_ids:
            inputs, kwargs = _pytree.tree_map_only(Tensor, lambda tensor: tensor.to(self.device), (inputs, kwargs))
        output = self.module(*inputs, **kwargs)
        self.reducer.steps.end_forward()
        self._end_forward(context, output)
        return output

    def _begin_forward(self, inputs: Any, kwargs: Any) -> _ForwardContext:
        self.check_together()
        check_no_other_join(self, self._join_options.coordinator if self._join_options else None)
        kind = self._forward_kind()
        self.reducer.check_all_buckets_reduced()
        is_due = self._forward_context is not None and self._forward_context.is_reduction_due
        is_reduced = kind is ForwardKind.SYNCHRONIZED
        participants = self._notify_join(kind, inputs, kwargs, continues=is_due and not is_reduced)
        if is_reduced:
            self.reducer.steps.begin_forward(is_training=self.training)
        context = _ForwardContext(kind, participants, is_reduction_due=is_due or is_reduced)
        if self._join_options is not None:
            self._forward_context = context
        if kind is not ForwardKind.EVALUATION:
            self.reducer.rebuild_if_due(context.participants.source)
        # As in torch, not after a forward whose gradients stay local.
        if self.require_forward_param_sync:
            self._synchronize_buffers(When.BEFORE_FORWARD, context.participants)
        return context

    def _end_forward(self, context: _ForwardContext, output: object) -> None:
        self._synchronize_buffers_after(context)
        if self._forward_context is context:
            self._forward_context = replace(context, has_returned=True) if context.is_reduction_due else None
        self.require_forward_param_sync = context.kind is ForwardKind.SYNCHRONIZED
        # As in torch, the next backward is reduced if gradients of an earlier forward are still due.
        joins_them = context.kind is ForwardKind.LOCAL and self.reducer.are_gradients_due
        if context.kind is ForwardKind.SYNCHRONIZED or joins_them:
            self.reducer.expect_gradients(
                self._gradient_scale(context.participants),
                self._describe_outputs(output) if self.reducer.needs_outputs else None,
            )
            return
        if context.kind is ForwardKind.LOCAL:
            self.reducer.expect_local_gradients()
        elif self.reducer.are_gradients_due:
            self.reducer.replace_scale(self._gradient_scale(context.participants))
        if self._forward_context is None:
            self._end_iteration()

    def _forward_kind(self) -> ForwardKind:
        trainability = self._watch.check_parameters()
        if not torch.is_grad_enabled() or trainability is KnownTrainability.ALL_FROZEN:
            return ForwardKind.EVALUATION
        return ForwardKind.SYNCHRONIZED if self.require_backward_grad_sync else ForwardKind.LOCAL

    def _notify_join(self, kind: ForwardKind, inputs: Any, kwargs: Any, *, continues: bool) -> ForwardParticipants:
        options = self._join_options
        if options is None or not (options.coordinator.counts_ranks_in_rounds or self._join_config.enable):
            return ForwardParticipants(tuple(range(self._world_size)), 0)
        samples = constructor_arguments.count_samples((inputs, kwargs), self.dim) if options.weighs_samples else 0
        participants = options.coordinator.announce_forward(self, kind, samples, continues=continues)
        if options.weighs_samples and kind is not ForwardKind.EVALUATION:
            before = self._samples or (0,) * self._world_size
            self._samples = tuple(map(add, before, participants.samples))
        return participants

    def _gradient_scale(self, participants: ForwardParticipants) -> GradientScale | None:
        options = self._join_options
        in_place = self.gradient_as_bucket_view is True
        # A hook averages over all ranks, so its input is scaled for the difference.
        if self._samples:
            share = self._samples[dist.get_rank(self.process_group)] * (
                self._world_size if self.reducer.has_hook else 1
            )
            return GradientScale(
                sum(self._samples[rank] for rank in participants.present) / share if share else float("inf"), in_place
            )
        counts_all = options is None or options.divides_by_initial_size
        divisor = self._world_size if counts_all else len(participants.present)
        if self.reducer.has_hook:
            return None if divisor == self._world_size else GradientScale(divisor / self._world_size, in_place)
        return GradientScale(divisor, in_place)

    def _describe_outputs(self, output: object) -> ForwardOutputs:
        tensors = [tensor for tensor in find_tensors(output) if tensor.requires_grad]
        reached = reached_parameters(tensors, self._accumulators)
        if reached.has_reentrant_checkpoint or not tensors:
            return ForwardOutputs(tensors, None)
        accumulators = [node for node, index in self._accumulators.items() if index in reached.parameters]
        return ForwardOutputs(tensors, frozenset(reached.parameters), accumulators)

    def _synchronize_buffers_after(self, context: _ForwardContext) -> None:
        if context.kind is ForwardKind.SYNCHRONIZED:
            self._synchronize_buffers(When.AFTER_FORWARD, context.participants)

    def _synchronize_buffers(self, when: When, participants: ForwardParticipants) -> None:
        if self._buffers_in_step.has_work(when):
            self._buffers_in_step.synchronize(when, source=participants.source, present=len(participants.present))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context: gradients of forwards inside it stay local until the first forward after it is reduced."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: CommunicationHook) -> None:
        """Reduce buckets by `hook(state, bucket)`, which returns a future of the reduced flat tensor.

        Allowed once, before the first backward. Raises UsageError for a second hook, or one that cannot be called.
        """
        if not callable(hook):
            raise UsageError(
                f"hook is {hook!r}, expected a callable of (state, bucket) that returns a future of a tensor"
            )
        if self.reducer.has_hook:
            raise UsageError(
                "hook is a second communication hook, expected one per model: combine them in one function"
            )
        self.reducer.use_hook(state, hook)

    def register_buffer_comm_hook(
        self, name_or_tensor: str | Tensor, hook: Strategy | str | BufferHook, *, when: When | str = When.BEFORE_FORWARD
    ) -> None:
        """Synchronize a buffer by `hook`: broadcast, sum, mean, max, min, none, or a function of (buffer, group).

        `when` is "before" or "after" the forward. After a forward, buffers are synchronized only if its gradients are
        to be reduced: not under no_sync or in evaluation (no_grad, or all frozen). Before a forward, they are, as in
        torch, unless the previous forward was one of these. Raises UsageError for an unknown buffer or strategy.
        """
        self._buffers_in_step.set_strategy(name_or_tensor, hook, when=when)

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
        *,
        weight_by_samples: bool = False,
    ) -> Join:
        """Return a context for training with uneven inputs; see `Join`, which takes several models."""
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
            weight_by_samples=weight_by_samples,
        )

    def join_hook(self, **kwargs: Any) -> EngineJoinHook:
        """Return torch's Join hook for this model; options: `divide_by_initial_world_size`, `weight_by_samples`."""
        return EngineJoinHook(
            self,
            divides_by_initial_size=kwargs.get("divide_by_initial_world_size", True),
            weighs_samples=kwargs.get("weight_by_samples", False),
        )

    @property
    def join_device(self) -> torch.device:
        """The device of the parameters, for torch's Join."""
        return self.device

    @property
    def join_process_group(self) -> ProcessGroup:
        """The process group of the model's replicas, for torch's Join."""
        return self.process_group

    def check_together(self) -> None:
        """Raise JoinError if a rank left a join by an exception, since ranks may be at different steps then."""
        if self._is_apart:
            raise JoinError(
                "a rank left a join of this model by an exception, so the ranks' states differ: construct the "
                "DistributedDataParallel again, which compares and broadcasts the state"
            )

    def begin_join(self, coordinator: JoinCoordinator, *, divides_by_initial_size: bool, weighs_samples: bool) -> None:
        """Begin a join: `coordinator` is notified before each forward and each reduction from now on."""
        if self._join_options is not None:
            self.end_join(self._join_options.coordinator, None)
        self._join_options = _JoinOptions(coordinator, divides_by_initial_size, weighs_samples)
        self.reducer.join = JoinCallbacks(partial(coordinator.announce_reduction, self), self._end_reduction)

    def _end_reduction(self) -> None:
        self._forward_context = None
        self._samples = ()
        self._end_iteration()

    def _end_iteration(self) -> None:
        if self._join_options is not None:
            self._join_options.coordinator.end_iteration()

    def make_calls_of_leaving_rank(self, *, with_buffers: bool) -> None:
        """Make, with zeros, the calls that others wait for in this iteration, as this rank leaves by an exception."""
        context, self._forward_context = self._forward_context, None
        if context is None:
            return
        if with_buffers and not context.has_returned:
            self._synchronize_buffers_after(context)
        if context.is_reduction_due:
            self.reducer.abandon()

    def end_join(self, coordinator: JoinCoordinator, authoritative: int | None) -> None:
        """End a join; if group rank `authoritative` is given, all ranks take over its parameters and buffers."""
        if self._join_options is None or self._join_options.coordinator is not coordinator:
            return
        coordinator.stop_interception()
        self._is_apart = self._is_apart or coordinator.was_left_by_exception
        self._join_options = self._forward_context = None
        self._samples = ()
        self.reducer.join = None
        self._join_config = type(self._join_config).construct_disabled_join_config()
        # The last forwards of the ranks may differ in kind.
        self.require_forward_param_sync = True
        if authoritative is not None:
            self._broadcast_state(authoritative, with_buffers=self.forward_sync_buffers)
            self.reducer.adopt_learned_state(authoritative)
        else:
            self.reducer.drop_backward()
            self.reducer.steps.drop_unreduced_steps()

    def _verify(self) -> None:
        verify_replicas(
            self._drop_ignored_parameters(self.module.named_parameters()),
            self._drop_ignored_parameters(self.module.named_buffers()),
            {
                "bucket_cap_mb": self._caps.bytes / 2**20,
                "find_unused_parameters": self.find_unused_parameters,
                "static_graph": self.static_graph,
                "forward_sync_buffers": self.forward_sync_buffers,
            },
            self.process_group,
            self.device,
        )

    def _verify_problem(self, problem: UsageError, device: torch.device) -> None:
        verify_problem(problem, self.process_group, device)

    def _broadcast_state(self, source: int, *, with_buffers: bool) -> None:
        named = self._drop_ignored_parameters(self.module.named_parameters())
        if with_buffers:
            named += self._drop_ignored_parameters(self.module.named_buffers())
        # `.data`: as in torch, a running backward does not detect these writes.
        broadcast_coalesced([tensor.data for _, tensor in named], source, self.process_group)

    def _drop_ignored_parameters(self, named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        return [(name, tensor) for name, tensor in named if name not in self.parameters_to_ignore]

    def __ddp_call__(self) -> dict[str, object]:
        """Return the step of the current call (the simulator reads it; see simulator/attribution/phases.py)."""
        return {"step": self.reducer.steps.latest} if "reducer" in vars(self) else {}

    def __ddp_progress__(self) -> dict[str, object]:
        """Return the progress of this replica, for a diagnosis (see simulator/attribution/wrapper.py)."""
        if "reducer" not in vars(self):
            return {}  # the construction failed
        options = self._join_options
        return {
            **self.reducer.__ddp_progress__(),
            "joined": options is not None and dist.get_rank(self.process_group) not in options.coordinator.present,
            "buffers": self._buffers_in_step.strategies.sides_of_custom_buffers,
        }


def _is_synchronization_off(engine: weakref.ref[DistributedDataParallel]) -> bool:
    found = engine()
    return found is None or not found.require_backward_grad_sync
