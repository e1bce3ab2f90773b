"""check="replicas": samples the replicas of wrapped models when they should be equal; replica_judge.py compares them.

- When a wrapper is made: the names and the order of parameters and buffers.
- After each optimizer step: parameters, optimizer state, and the buffers that a hook synchronises after the forward.
- When a forward begins without a step of torch's optimizers before it, and when the program returns: parameters, so
  that a step without an optimizer is checked, too.
- When a synchronised backward has ended: gradients.

Models without a wrapper are sampled by unwrapped_ddp.py, DTensors by sharded_replicas.py.

Buffers that are synchronised before each forward, the default, differ after it by design (each rank updates its running
statistics). They are compared when the inner module runs in evaluation mode without the wrapper, and at the first step
if nothing ever synchronises them.

Ranks are compared at the same step of the wrapper (Note [Steps] in wrapper.py) and the same optimizer step since.
Note [Several optimizers]. Ranks may step several optimizers of one wrapper in different order. So steps are counted for
each optimizer, which is identified by the position of its first parameter in the model. After its step, parameters that
only another optimizer changes are left out. Optimizer state is compared if it has the shape of its parameter; other
state may differ between ranks, such as the loss that LBFGS keeps.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from ddpsim.simulator.attribution.wrapper import PROGRESS, DdpWrapper, WrapperKey
from ddpsim.simulator.attribution.wrapper_registry import WrapperRegistry
from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis import replica_divergence
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.replica_divergence import ComparisonPoint
from ddpsim.simulator.model_tensors import parameter_ids_of
from ddpsim.simulator.replicas import replica_tensors
from ddpsim.simulator.replicas.replica_tensors import NoticeReplica, ReplicaSample, ReplicaTensor
from ddpsim.simulator.replicas.sharded_replicas import ShardedReplicas
from ddpsim.simulator.replicas.unwrapped_ddp import UnwrappedReplicas
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.rank_thread import PendingCall


def check_reads_first(notice: NoticeReplica, came_to_light: Callable[[int, Any, str], None]) -> NoticeReplica:
    """Return a function that first checks the replicas for reads before a wait (poison.py), then calls `notice`."""

    def notice_reads(fact: replica_tensors.ReplicaFact) -> None:
        if isinstance(fact, ReplicaSample):
            came_to_light(fact.rank, [each.tensor for each in fact.tensors], f"replicas compared {fact.moment}")
        elif isinstance(fact, replica_tensors.FinalParameters):
            for _, tensors in fact.left:
                came_to_light(fact.rank, [each.tensor for each in tensors], "the parameters at the end")
        notice(fact)

    return notice_reads


NOT_REDUCED = -1


@dataclass(slots=True)
class _ComparisonProgress:
    """How far a DDP wrapper is on one rank. "Then": when its parameters were last compared at a forward."""

    size: int
    """The number of ranks in the wrapper's group."""
    step: int = 0
    """The wrapper's step at that time."""
    optimizer_steps: int = 0
    """The number of optimizer steps since that time."""
    all_steps: int = 0
    """The number of all optimizer steps so far."""
    communicated: int = 0
    """The number of elements that the program had passed to its own communication calls at that time."""
    backward: int = 0
    """The latest step of the wrapper whose gradients were compared."""
    gradients_of: int = NOT_REDUCED
    """The optimizer steps before the backward that made these gradients; NOT_REDUCED once another has added to them."""


class ReplicaSampler:
    """Takes samples of the replicas (models with a wrapper) of one execution."""

    def __init__(
        self, wrappers: WrapperRegistry, unwaited: Callable[[int], Sequence[Call]], notice: NoticeReplica
    ) -> None:
        self._wrappers = wrappers
        self._unwaited = unwaited
        """A function that returns the program's calls that a rank has not waited for."""
        self._notice = notice
        self._communicated = Counter[int]()
        """By rank, how many elements the program has passed to its own calls: it may have averaged parameters."""
        self._by_hand = UnwrappedReplicas(wrappers, notice, self._communicated)
        self._sharded = ShardedReplicas(notice, self._communicated)
        self._progress: WeakKeyDictionary[DdpWrapper, _ComparisonProgress] = WeakKeyDictionary()
        self._optimizer_steps: dict[tuple[DdpWrapper, int], tuple[int, int]] = {}
        """By optimizer, the wrapper's step at the optimizer's latest step, and how many steps the optimizer has made
        since. See Note [Several optimizers]."""
        self._steps_before: dict[int, dict[DdpWrapper, int]] = {}
        """By rank, the step of each wrapper when the optimizer step that runs now began."""
        self._optimizers: dict[DdpWrapper, WeakSet[Any]] = {}
        """The optimizers that have stepped."""
        self._has_stepped: WeakSet[Any] = WeakSet()
        self._beside: dict[int, dict[int, Sequence[int]]] = {}
        """By rank and id, the shapes of the parameters that optimizers step and whose gradients nobody reduces."""
        self._latest_parameters: dict[DdpWrapper, Sequence[ReplicaTensor]] = {}
        """The parameters when last compared, kept because a program may delete its modules before it returns."""
        self._starts: dict[DdpWrapper, tuple[str, ...]] = {}
        """Fingerprints (short texts) of the parameters at the beginning of the wrapper's step."""
        self._has_run: set[DdpWrapper] = set()
        """The wrappers whose inner module has run, with or without the wrapper, so that buffers may have changed."""
        self._has_trained: set[WrapperKey] = set()
        wrappers.observer = self

    def call_issued(self, pending: PendingCall) -> None:
        """Record that a rank's program makes a communication call."""
        call = pending.call
        self._communicated[call.rank] += sum([prod(shape) for shape in call.signature.shapes])
        self._by_hand.call_issued(pending)

    def module_forward_begins(self, module: Any, arguments: Any) -> None:
        """Record that any module begins its forward. This is torch's global hook: a hook of the inner module would be
        copied and pickled with the module."""
        if torch.compiler.is_compiling():  # dynamo traces the hook; it is called again around the compiled module
            return
        if module.training and torch.is_grad_enabled() and hasattr(type(module), PROGRESS):
            self._wrappers.wrapper_of(module)  # numbers the wrapper, which may have made no call yet
        wrappers = self._wrappers.wrappers_around(module)
        if module.training and torch.is_grad_enabled() and (rank := self._wrappers.running_rank()) is not None:
            if wrappers:
                self._compare_at_training_forward(wrappers[-1])
            else:
                self._by_hand.training_forward_begins(rank, module)
        if not wrappers:
            return
        wrapper = next((each for each in wrappers if each.is_forward_running), None)
        if wrapper is None:
            if not module.training:
                self._compare_in_evaluation(wrappers[-1], "in an evaluation of the inner module")
        elif replica_tensors.syncs_buffers(wrapper.module):
            pass
        elif not module.training:
            self._compare_in_evaluation(wrapper, "in an evaluation")
        elif wrapper not in self._has_run:
            wrapper.update_progress()
            moment = ComparisonPoint(wrapper.number_in_group, 0, text="at the first forward")
            self._send_sample(wrapper, moment, replica_tensors.wrapper_buffers(wrapper, (None,)))
        self._has_run.update(wrappers)
        if wrapper is not None and module.training and torch.is_grad_enabled():
            self._has_trained.add(wrapper.key)
            wrapper.is_forward_local = not getattr(wrapper.module, "require_backward_grad_sync", True)

    def wrapper_step_changed(self, wrapper: DdpWrapper) -> None:
        """Record that a wrapper's rank ran out of input, or that all ranks have reached the end of a DDP join."""
        steps = wrapper.step, wrapper.aligned_step
        reduced = frozenset(wrapper.reduced)
        self._notice(replica_tensors.WrapperProgress(wrapper.key, wrapper.rank, *steps, wrapper.is_joined, reduced))

    def wrapper_step_begins(self, wrapper: DdpWrapper) -> None:
        """Record that a forward that synchronises has begun, or that a DDP engine other than torch's reports one."""
        self.wrapper_step_changed(wrapper)
        self.wrapper_constructed(wrapper)
        if wrapper.inner_module is not None:
            parameters = self._latest_parameters[wrapper] = replica_tensors.wrapper_parameters(wrapper)
            self._starts[wrapper] = replica_tensors.fingerprint(each.tensor for each in parameters)
            if not hasattr(type(wrapper.module), PROGRESS):  # another engine may report it late
                self._compare_at_forward(wrapper, parameters)

    def wrapper_constructed(self, wrapper: DdpWrapper) -> None:
        """Record that a DDP wrapper is constructed, so that the wrapped module is known."""
        if wrapper.inner_module is not None and wrapper not in self._progress:
            self._progress[wrapper] = _ComparisonProgress(int(wrapper.module.process_group.size()))
            self._wrappers.observe_backwards(wrapper)
            parameters = self._latest_parameters[wrapper] = replica_tensors.wrapper_parameters(wrapper)
            names = [*parameters]
            if getattr(wrapper.module, "broadcast_buffers", True):  # else they are never sent
                names += replica_tensors.wrapper_buffers(wrapper, (None, "before", "after"))
            without_values = [each._replace(tensor=each.tensor.new_empty(0)) for each in names]
            moment = replica_divergence.construction_comparison_point(wrapper.number_in_group)
            self._send_sample(wrapper, moment, without_values)

    def wrapper_backward_ended(self, wrapper: DdpWrapper) -> None:
        """Record that a backward has ended in which parameters of a wrapper got gradients."""
        wrapper.update_progress()
        progress = self._progress_of(wrapper)
        if progress.backward == wrapper.step:
            progress.gradients_of = NOT_REDUCED  # the gradients may not be reduced
            return
        if wrapper.inner_module is None or not wrapper.is_fully_reduced:
            return
        if getattr(wrapper.module, "require_manual_backward_finalization", False):  # reduced later, since torch 2.15
            return
        progress.backward, progress.gradients_of = wrapper.step, progress.all_steps
        moment = replica_divergence.point_of_backward_end(wrapper.number_in_group, wrapper.step)
        parameters = replica_tensors.wrapper_parameters(wrapper)
        self._send_sample(wrapper, moment, replica_tensors.gradient_tensors(parameters))

    def optimizer_step_begins(self, optimizer: Any, *_: Any) -> None:
        """Record that an optimizer is about to use gradients."""
        if (rank := self._wrappers.running_rank()) is not None:
            self._steps_before[rank] = {each: each.step for each in self._wrappers.wrappers_of_rank(rank)}
            self._by_hand.optimizer_step_begins(rank, parameter_ids_of(optimizer))

    def optimizer_step_ended(self, rank: int, optimizer: Any) -> None:
        """Record that a rank's optimizer has changed parameters."""
        self._sharded.optimizer_step_ended(rank, optimizer, self._by_hand.parameter_names_of_rank(rank))
        for wrapper in self._wrappers.wrappers_of_rank(rank):
            wrapper.update_progress()
            if wrapper.inner_module is None or wrapper.is_joined:
                continue
            parameters = self._latest_parameters[wrapper] = replica_tensors.wrapper_parameters(wrapper)
            own = parameter_ids_of(optimizer)
            position = next((position for position, each in enumerate(parameters) if id(each.tensor) in own), None)
            if position is None:
                continue
            step, count = self._optimizer_steps.get((wrapper, position), (0, 0))
            count = count + 1 if step == wrapper.step else 1
            self._optimizer_steps[wrapper, position] = (wrapper.step, count)
            progress = self._progress_of(wrapper)
            progress.optimizer_steps += 1
            progress.all_steps += 1
            tensors = [
                *self._comparable_parameters(wrapper, optimizer, own, parameters),
                *replica_tensors.replica_state_of(parameters, optimizer),
            ]
            times = (None, "after") if replica_tensors.syncs_buffers_last(wrapper.module) else ("after",)
            tensors += replica_tensors.wrapper_buffers(wrapper, times)
            gradients = [each.tensor.grad for each in parameters if id(each.tensor) in own]
            start = self._starts.get(wrapper, ())
            inputs = replica_tensors.StepInputs(start, replica_tensors.fingerprint(gradients))
            moment = ComparisonPoint(wrapper.number_in_group, wrapper.step, count, optimizer=position)
            self._send_sample(wrapper, moment, tensors, inputs)
        if optimizer not in self._has_stepped:
            self._has_stepped.add(optimizer)
            wrapped = {
                id(each.tensor) for one, own in self._latest_parameters.items() if one.rank == rank for each in own
            }
            stepped = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
            if held := wrapped | self._by_hand.reduced_parameters(rank):
                left = {id(e): tuple(e.shape) for e in stepped if id(e) not in held and not hasattr(e, "placements")}
                self._beside.setdefault(rank, {}).update(left)
        self._steps_before.pop(rank, None)

    def rank_returned(self, rank: int) -> None:
        """Record that a rank's program returned."""
        latest = self._latest_parameters
        for wrapper in self._wrappers.wrappers_of_rank(rank):
            self.wrapper_step_changed(wrapper)
        mine = [wrapper for wrapper in self._wrappers.wrappers_of_rank(rank) if wrapper in latest]
        for wrapper in mine:
            progress = self._progress_of(wrapper)
            if progress.backward == wrapper.step and progress.gradients_of == progress.all_steps:
                moment = replica_divergence.point_of_backward_end(wrapper.number_in_group, wrapper.step, has_ended=True)
                self._send_sample(wrapper, moment, replica_tensors.gradient_tensors(latest[wrapper]), has_ended=True)
        beside = self._beside.get(rank, {})
        others = self._by_hand.other_elements(rank, beside.values())
        self._by_hand.rank_returned(rank)
        self._sharded.rank_returned(rank)
        left = [(wrapper.key, latest.pop(wrapper)) for wrapper in mine]
        count = len(beside) if others < sum(map(prod, beside.values())) else 0  # else it may have averaged them
        self._notice(replica_tensors.FinalParameters(rank, left, self._communicated[rank], count))

    def _progress_of(self, wrapper: DdpWrapper) -> _ComparisonProgress:
        self.wrapper_constructed(wrapper)
        return self._progress.get(wrapper) or _ComparisonProgress(0)

    def _compare_at_training_forward(self, wrapper: DdpWrapper) -> None:
        wrapper.update_progress()
        if not wrapper.is_joined:
            self._compare_at_forward(wrapper, self._latest_parameters.get(wrapper, ()))

    def _compare_at_forward(self, wrapper: DdpWrapper, parameters: Sequence[ReplicaTensor]) -> None:
        """Compare parameters at the beginning of a forward, if no optimizer has stepped before it, or if the program
        may have averaged the parameters: it has passed as many elements to its own calls as the parameters have."""
        progress, communicated = self._progress_of(wrapper), self._communicated[wrapper.rank]
        is_new = progress.step < wrapper.step and wrapper.rank not in self._steps_before  # not in a step's closure
        has_averaged = communicated - progress.communicated >= sum(each.tensor.numel() for each in parameters)
        if (is_new and not progress.optimizer_steps) or (progress.optimizer_steps and has_averaged):
            steps = wrapper.step - is_new, progress.all_steps
            moment = replica_divergence.point_of_forward(wrapper.number_in_group, *steps)
            self._send_sample(wrapper, moment, parameters)
        if is_new or has_averaged:
            progress.step, progress.communicated, progress.optimizer_steps = wrapper.step, communicated, 0

    def _compare_in_evaluation(self, wrapper: DdpWrapper, text: str) -> None:
        """Compare buffers in an evaluation whose forward does not synchronise them."""
        wrapper.update_progress()
        if not wrapper.is_joined:
            moment = ComparisonPoint(wrapper.number_in_group, wrapper.step, text=text)
            self._send_sample(wrapper, moment, replica_tensors.wrapper_buffers(wrapper, (None, "before", "after")))

    def _comparable_parameters(
        self, wrapper: DdpWrapper, optimizer: Any, own: Container[int], parameters: Sequence[ReplicaTensor]
    ) -> list[ReplicaTensor]:
        """Return the parameters to compare after one optimizer's step: all that not only other optimizers change."""
        optimizers = self._optimizers.setdefault(wrapper, WeakSet())
        optimizers.add(optimizer)
        rest = [other for other in optimizers if other is not optimizer]
        others = {each for other in rest for each in parameter_ids_of(other)}
        return [
            each._replace(is_optional=id(each.tensor) not in own)
            for each in parameters
            if id(each.tensor) in own or id(each.tensor) not in others
        ]

    def _send_sample(
        self,
        wrapper: DdpWrapper,
        moment: ComparisonPoint,
        tensors: Sequence[ReplicaTensor],
        inputs: replica_tensors.StepInputs | None = None,
        *,
        has_ended: bool = False,
    ) -> None:
        if not tensors:
            return
        site, size = None if has_ended else current_user_site(), self._progress_of(wrapper).size
        has_trained, passed = wrapper.key in self._has_trained, self._communicated[wrapper.rank]
        sample = ReplicaSample(wrapper.key, wrapper.rank, size, moment, tensors, site, has_trained, communicated=passed)
        if inputs is not None:
            unreduced, cause = wrapper.explain_unreduced_bucket()
            cause = Cause.LAST_BACKWARD_LOCAL if wrapper.is_local else cause
            if torch._C._current_graph_task_id() >= 0:  # parameters may get their gradients later in this backward
                unreduced, cause = "", Cause.STEPPED_IN_BACKWARD if unreduced or cause else None
            sample = sample._replace(
                inputs=inputs,
                unreduced=unreduced,
                unreduced_by=cause,
                forwards=wrapper.step - self._steps_before.get(wrapper.rank, {}).get(wrapper, wrapper.step),
                is_late=wrapper.has_late_gradients,
                unwaited=next(iter(self._unwaited(wrapper.rank)), None),
            )
        self.wrapper_step_changed(wrapper)
        self._notice(sample)
