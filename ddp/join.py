"""Training with uneven inputs: ranks that run out of input answer the collectives of the others.

torch's own Join, which other joinables such as ZeroRedundancyOptimizer need, calls `EngineJoinHook`.
"""

import weakref
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join as TorchJoin
from torch.distributed.algorithms.join import Joinable, JoinHook

from ddpsim.ddp.errors import UsageError
from ddpsim.ddp.join_coordinator import JoinCoordinator, JoinedModel

_current_coordinator: ContextVar[JoinCoordinator | None] = ContextVar("_current_coordinator", default=None)
"""The coordinator of the current `Join` on this thread."""

__ddp_phases__ = {"sum_over_ranks": "join control", "post_hook": "join control"}


class Join:
    """Keeps ranks that ran out of input in step with the others. Every rank wraps its loop:

        with Join([generator, critic]):
            for batch in batches:
                ...

    A rank that has left the loop takes part in all collectives of the others, with contributions that change nothing,
    until no rank has input. Then every rank takes the parameters and buffers of the last rank to join (of several, the
    one with the highest number).

    The models may be used in any order and number of forwards. They must be models of this engine, over one process
    group. An iteration begins with a forward: before the first forward of an iteration that some rank does not have,
    the loop must not make a collective of its own.

    `divide_by_initial_world_size`: average over all ranks, where joined ranks count with gradients of zero; else over
    the ranks with input. A communication hook averages over all ranks, so it gets gradients scaled accordingly.

    `weight_by_samples`: average over samples, counted along dimension `dim` of each forward's first tensor argument.
    With gradient accumulation, the sum of a window's gradients is weighted by the rank's samples in the window, so all
    micro-batches of a rank have equal weight.

    `throw_on_early_termination`: raise JoinError everywhere once a rank runs out of input. `enable=False`: do nothing.

    If a rank leaves by an exception, the others raise JoinError, which names it and the exception. The ranks' states
    differ then, so the models' next forwards raise JoinError: wrap the modules again. The leaving rank makes the calls
    that the others still wait for, as earlier iterations went. If these calls are wrong, the backend reports a mismatch
    or hangs. The calls cannot be known:

    - in the first iteration, if the loop or a module has collectives of its own;
    - if such collectives come only in some iterations, or have varying shapes;
    - if ranks send each other messages (send, recv).
    """

    def __init__(
        self,
        models: Sequence[JoinedModel],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        *,
        divide_by_initial_world_size: bool = True,
        weight_by_samples: bool = False,
    ) -> None:
        _check_models(models)
        self._models = tuple(models)
        self._is_enabled = enable
        self._throws = throw_on_early_termination
        self._divides_by_initial_size = divide_by_initial_world_size
        self._weighs_samples = weight_by_samples
        self._coordinator: JoinCoordinator | None = None
        self._token: Token[JoinCoordinator | None] | None = None

    def __enter__(self) -> None:
        if not self._is_enabled:
            return
        first = self._models[0]
        outer = _current_coordinator.get()
        if outer is not None and first.process_group.size() > 1:
            raise UsageError(
                "a join inside a join, expected one at a time: use Join([model, other]) for models that train in one "
                "loop, or leave the outer join first"
            )
        for model in self._models:
            model.check_together()
        self._coordinator = JoinCoordinator(self._models, first.process_group, first.join_device, throws=self._throws)
        for model in self._models:
            model.begin_join(
                self._coordinator,
                divides_by_initial_size=self._divides_by_initial_size,
                weighs_samples=self._weighs_samples,
            )
        # A join of a single rank may be inside another one.
        self._token = _current_coordinator.set(outer or self._coordinator)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None or self._token is None:
            return
        _current_coordinator.reset(self._token)
        authoritative: int | None = None
        try:
            if coordinator.is_over:
                pass
            elif error is None:
                authoritative = coordinator.answer_calls_until_all_joined()
            elif isinstance(error, (Exception, SystemExit)):
                # If the group fails too, the first error is more useful.
                with suppress(Exception):
                    coordinator.leave_with_error(error)
        finally:
            for model in self._models:
                model.end_join(coordinator, authoritative)


class EngineJoinHook(JoinHook):
    """The hook that torch's Join calls for a model of this engine on a rank without input."""

    def __init__(self, model: JoinedModel, *, divides_by_initial_size: bool, weighs_samples: bool) -> None:
        model.check_together()
        self.model = model
        self._count = _PresentRankCount(model)
        self._coordinator = JoinCoordinator(
            [model], model.process_group, model.join_device, count_present=self._count, tells_samples=weighs_samples
        )
        model.begin_join(
            self._coordinator, divides_by_initial_size=divides_by_initial_size, weighs_samples=weighs_samples
        )
        # torch's Join does not call its hooks after an exception; it only drops them.
        weakref.finalize(self, _end_join, weakref.ref(model), self._coordinator).atexit = False

    def main_hook(self) -> None:
        """Make the calls of one iteration together with the ranks that have input."""
        if not self._count.is_counted_by_torch:
            self._count.sum_over_ranks(0)
        self._coordinator.answer_calls_of_iteration()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take over the parameters and buffers of the last rank to join; of several, the highest rank."""
        group = self.model.process_group
        own = dist.get_rank(group) if is_last_joiner else -1
        highest = torch.tensor([own], device=self.model.join_device)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
        self.model.end_join(self._coordinator, int(highest.item()))

    def __ddp_call__(self) -> dict[str, object]:
        """Return which model makes the current call, for a diagnosis."""
        return {"wrapper": self.model}


class _PresentRankCount:
    """Counts ranks with input inside torch's Join, since torch counts them for its first joinable only."""

    def __init__(self, model: JoinedModel) -> None:
        self._model = weakref.ref(model)
        self._has_input = True

    def __call__(self) -> int:
        """Tell the other ranks that this rank has input; return the number of ranks with input."""
        if not self.is_counted_by_torch:
            return self.sum_over_ranks(1)
        work = TorchJoin.notify_join_context(self._model())  # type: ignore[arg-type]
        assert work is not None
        work.wait()
        return int(work.result()[0].item())

    def sum_over_ranks(self, own: int) -> int:
        """Return the sum of `own` over all ranks; `own` is 1 on a rank with input."""
        self._has_input = bool(own)
        model = self._model()
        assert model is not None
        present = torch.tensor([own], device=model.join_device)
        dist.all_reduce(present, group=model.process_group)
        return int(present.item())

    @property
    def is_counted_by_torch(self) -> bool:
        """Whether torch's Join counts ranks before a forward of this model."""
        config = self._model()._join_config  # type: ignore[union-attr]
        return bool(config.is_first_joinable)

    def __ddp_call__(self) -> dict[str, object]:
        """Return which model makes the current call, for a diagnosis."""
        return {"wrapper": self._model(), "shadow": not self._has_input}


def _end_join(found: weakref.ref[JoinedModel], coordinator: JoinCoordinator) -> None:
    model = found()
    if model is not None:
        model.end_join(coordinator, None)


def check_no_other_join(model: JoinedModel, own: JoinCoordinator | None) -> None:
    """Raise UsageError for a forward inside a join of other models, since joined ranks would not answer its calls."""
    joining = _current_coordinator.get()
    if joining is not None and joining is not own and model.process_group.size() > 1:
        raise UsageError(
            "a forward inside the join of another model: use ddp.Join([model, other]) with all models that are trained "
            "inside"
        )


def _check_models(models: Sequence[object]) -> None:
    if isinstance(models, torch.nn.Module) or not isinstance(models, Sequence):
        raise UsageError(
            f"models is a {type(models).__name__}, expected several models or one in a list: give a list: Join([model])"
        )
    if not models:
        raise UsageError("models is empty, expected the wrapped models that are trained inside: Join([model])")
    for model in models:
        if not hasattr(model, "begin_join"):
            way_out = "use torch.distributed.algorithms.join.Join" if isinstance(model, Joinable) else "wrap it first"
            raise UsageError(f"models has a {type(model).__name__}, expected models of this engine only: {way_out}")
    groups = {id(model.process_group) for model in models}  # type: ignore[attr-defined]
    if len(groups) > 1:
        raise UsageError(
            "models use different process groups, expected one: construct them with one, or train them in "
            "separate loops"
        )
    if len({id(model) for model in models}) < len(models):
        raise UsageError("models has one model twice: list each model once")
