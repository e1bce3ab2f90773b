"""Training with uneven inputs: what to do on ranks that run out before the others.

Two ways in: this module's `Join` (what `model.join()` returns), for models of this engine; and torch's own Join
(torch/distributed/algorithms/join.py), where other joinables such as ZeroRedundancyOptimizer take part and which calls
`EngineJoinHook`. Both speak the protocol of join_coordinator.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.join import Join as TorchJoin
from torch.distributed.algorithms.join import Joinable, JoinHook

from ddpsim.ddp.errors import JoinError, UsageError
from ddpsim.ddp.join_coordinator import JoinCoordinator, Member

_joining: ContextVar[JoinCoordinator | None] = ContextVar("_joining", default=None)
"""The `Join` whose body is running; each thread has its own."""

__ddp_phases__ = {"ask": "join control", "post_hook": "join control"}


class JoinedModel(Member, Protocol):
    """A model of this engine, as a join sees it."""

    process_group: ProcessGroup

    @property
    def join_device(self) -> torch.device:
        """Where the join's own tensors live."""

    def check_together(self) -> None:
        """Raise JoinError if the ranks' states differ, as a rank left a join before by an exception."""

    def begin_join(self, coordinator: JoinCoordinator, *, divides_by_initial_size: bool, weighs_samples: bool) -> None:
        """Say before each forward that there is input, and let joined ranks take part in what follows."""

    def end_join(self, coordinator: JoinCoordinator, authoritative: int | None) -> None:
        """Leave the join of `coordinator`, if not left before; take over rank `authoritative`'s state, if given."""


class Join:
    """Keeps ranks that ran out of input in step with those that did not.

    Every rank wraps its loop:

        with Join([generator, critic]):
            for batch in batches:
                ...

    Inside, the ranks with input train on; one that has left the loop takes part in all their collectives with
    contributions that change nothing, until nobody has input. Then every rank has the parameters and buffers of the
    last rank to join (of several, the one with the highest number).

    The models may be used in any order and number of forwards, alone or chained; only models of this engine, over one
    process group. An iteration begins with a forward: a collective of the loop's own must not come before the first
    forward of the first iteration that some rank does not have.

    `divide_by_initial_world_size`: average over all ranks, as if a joined one had gradients of zero; else over the
    ranks that have input. A communication hook, which averages over all ranks, gets gradients that make up for the
    difference.

    `weight_by_samples`: average over samples instead, so that a rank with more of them counts for more; a forward's
    samples are counted along dimension `dim` of its first tensor argument. Under accumulation the gradients of a window
    are summed on a rank as ever, and the sum is weighted by the samples that the rank had in the window. So
    micro-batches of one rank count alike, whatever their sizes.

    `throw_on_early_termination`: raise JoinError on all ranks as soon as one runs out of input. `enable=False` does
    nothing.

    A rank that leaves by an exception takes the others out, too: they raise JoinError, which names it and the
    exception. The ranks' states differ after that, so that the models' next forwards raise JoinError: wrap the modules
    anew. The rank that leaves makes the calls that the others still wait for in the iteration, as the iterations before
    went; so calls may meet that do not fit, and the backend reports those or hangs, where that cannot be known:

    - in the first iteration, if the loop or a module has collectives of its own;
    - where such collectives come every few iterations only, or have shapes that vary by iteration;
    - where ranks send each other messages (send, recv), which are not made on behalf of a rank.
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
        outer = _joining.get()
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
        # A join of one rank inside another concerns nobody else.
        self._token = _joining.set(outer or self._coordinator)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None or self._token is None:
            return
        _joining.reset(self._token)
        authoritative: int | None = None
        try:
            if coordinator.is_over:
                pass
            elif error is None:
                authoritative = coordinator.shadow_until_all_joined()
            elif isinstance(error, (Exception, SystemExit)):
                # If the group is broken, too, the error that came first still says more.
                with suppress(Exception):
                    coordinator.leave_by(error)
        finally:
            for model in self._models:
                model.end_join(coordinator, authoritative)


class EngineJoinHook(JoinHook):
    """What torch's Join does with a model of this engine, once a rank has run out of input."""

    def __init__(self, model: JoinedModel, *, divides_by_initial_size: bool, weighs_samples: bool) -> None:
        model.check_together()
        self.model = model
        self._count = _TorchCount(model)
        self._coordinator = JoinCoordinator(
            [model],
            model.process_group,
            model.join_device,
            count_present=self._count,
            tells_samples=weighs_samples,
        )
        model.begin_join(
            self._coordinator, divides_by_initial_size=divides_by_initial_size, weighs_samples=weighs_samples
        )
        # torch's Join does not call its hooks after an exception; all it does then is let go of them.
        weakref.finalize(self, _end, weakref.ref(model), self._coordinator).atexit = False

    def main_hook(self) -> None:
        """Shadow one iteration."""
        if not self._count.is_torchs:
            self._count.ask(0)
        self._coordinator.shadow_iteration()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take over the model of the last rank to join; of several, the one with the highest number."""
        group = self.model.process_group
        own = dist.get_rank(group) if is_last_joiner else -1
        highest = torch.tensor([own], device=self.model.join_device)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
        self.model.end_join(self._coordinator, int(highest.item()))

    def __ddp_call__(self) -> dict[str, object]:
        """What its calls belong to, for a diagnosis."""
        return {"wrapper": self.model}


class _TorchCount:
    """How many ranks have input, inside torch's Join; it asks for the first joinable, and the others ask themselves."""

    def __init__(self, model: JoinedModel) -> None:
        self._model = weakref.ref(model)
        self._has_input = True

    def __call__(self) -> int:
        """Say that this rank has input, and return how many have."""
        if not self.is_torchs:
            return self.ask(1)
        work = TorchJoin.notify_join_context(self._model())  # type: ignore[arg-type]
        assert work is not None
        work.wait()
        return int(work.result()[0].item())

    def ask(self, own: int) -> int:
        """Sum `own` up over the ranks: 1 says that this rank has input."""
        self._has_input = bool(own)
        model = self._model()
        assert model is not None
        present = torch.tensor([own], device=model.join_device)
        dist.all_reduce(present, group=model.process_group)
        return int(present.item())

    @property
    def is_torchs(self) -> bool:
        """Whether torch's Join asks before this model's forward."""
        config = self._model()._join_config  # type: ignore[union-attr]
        return bool(config.is_first_joinable)

    def __ddp_call__(self) -> dict[str, object]:
        """What its calls belong to, for a diagnosis."""
        return {"wrapper": self._model(), "shadow": not self._has_input}


def _end(found: weakref.ref[JoinedModel], coordinator: JoinCoordinator) -> None:
    model = found()
    if model is not None:
        model.end_join(coordinator, None)


def check_no_other_join(model: JoinedModel, own: JoinCoordinator | None) -> None:
    """Raise UsageError for a forward inside the join of other models only: nobody would shadow its collectives."""
    joining = _joining.get()
    if joining is not None and joining is not own and model.process_group.size() > 1:
        raise UsageError(
            "a forward inside the join of another model, expected all models that are trained inside to be part of it: "
            "use ddp.Join([model, other])"
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
            "models use different process groups, expected one: construct them with one, or train them in loops of "
            "their own"
        )
    if len({id(model) for model in models}) < len(models):
        raise UsageError("models has one model twice, expected each once")


__all__ = ["EngineJoinHook", "Join", "JoinError", "JoinedModel"]
