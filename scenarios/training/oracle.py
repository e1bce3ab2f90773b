"""The oracle: computes the correct result of a data parallel training by plain training in one process.

Note [What DDP means]. There is one copy of the parameters and of the optimizer, because the ranks' copies never differ:
they begin with rank 0's, and every step applies the same gradient to all of them. Each rank has its own gradients of
its own batches, and its own buffers from its own forwards. In an iteration

- the ranks *present* are those that still have input; under join no rank waits for the others;
- before a forward, all ranks take the buffers of one rank: rank 0, or under join, where that may have ended, the
  highest one present; unless the forward before was under no_sync or without gradients;
- each rank present runs its batch and adds to its gradients;
- the gradients are reduced in the first backward after a forward outside no_sync, even if that forward had no backward
  of its own and the backward is under no_sync;
- to reduce them, each parameter's are summed over the ranks that have one, and divided by the world size, or
  by the number of ranks present (`divide_by_initial_world_size=False`). A parameter that no rank used keeps none.

At the end of a join all ranks take the model of the rank that made the last forward; of several, the highest rank.

A network that communicates in its forward computes on all batches at once, and so does the oracle: it runs the batches
of the ranks present as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from msgspec import structs
from torch import Tensor

from ddpsim import UsageError
from ddpsim.scenarios.training.models import Network, make_meta_network
from ddpsim.scenarios.training.snapshot import History, Snapshot, join_model_snapshots, snapshot
from ddpsim.scenarios.training.trainer import make_optimizer
from ddpsim.scenarios.training.training import Action, CommunicationHook, ModelWrapper, Training

Gradients = dict[str, "Tensor | None"]

_SENT_AS: dict[CommunicationHook | None, torch.dtype] = {
    CommunicationHook.FP16_COMPRESS: torch.float16,
    CommunicationHook.BF16_COMPRESS: torch.bfloat16,
}
"""For each communication hook, the dtype in which it sends gradients, if that is not the gradients' own dtype."""


@dataclass(slots=True)
class _OracleRank:
    """The state of a rank that is not the same on all ranks: its gradients and buffers."""

    number: int
    count: int
    buffers: dict[str, Tensor]
    gradients: Gradients
    history: list[Snapshot]
    forwards: int = 0
    """The number of the rank's forwards through DDP, by which ranks detect which ranks still have input."""


def train_plainly(training: Training, world_size: int) -> tuple[History, ...]:
    """Return the correct snapshots of each rank's models, after each iteration and at the end.

    Raises UsageError for a training without a defined result: ranks do different things in one iteration, or end their
    loops at different iterations without a join.
    """
    check_has_defined_result(training, world_size)
    layout = training.layout(world_size)
    models = [
        _PlainTraining(training, index, layout.data_size).train_network() for index in range(len(training.networks))
    ]
    histories = [
        tuple(
            join_model_snapshots(dict(zip(map(str, range(len(models))), each, strict=True)))
            for each in zip(*own, strict=True)
        )
        for own in zip(*models, strict=True)
    ]
    return tuple(histories[layout.data_rank(rank)] for rank in range(world_size))


class _PlainTraining:
    """Trains one of the networks on one process, as DDP would on several ranks; see Note [What DDP means]."""

    def __init__(self, training: Training, index: int, world_size: int) -> None:
        self._training = training
        self._model = replace(training, recomputes=False).make_network(index)
        self._names = [name for name, _ in self._model.named_parameters()]
        plain = structs.replace(training.optimizer, is_sharded=False)
        self._optimizer = make_optimizer(plain, self._model.parameters())
        counts = map(training.iteration_count, range(world_size))
        self._ranks = [
            _OracleRank(rank, count, _copy_buffers(self._model), dict.fromkeys(self._names), [])
            for rank, count in enumerate(counts)
        ]
        options = training.engine_options
        is_ddp = training.wrapper is ModelWrapper.DDP
        self._shares_buffers = is_ddp and bool(options.get("broadcast_buffers", True)) and not training.averages_buffers
        self._buffers_are_due = self._shares_buffers
        self._is_armed = False
        """True if the next backward reduces the gradients."""

    def train_network(self) -> list[History]:
        """Train the network and return each rank's history: the snapshots after each iteration and at the end."""
        for iteration in range(max(rank.count for rank in self._ranks)):
            present = [rank for rank in self._ranks if iteration < rank.count]
            self._run_iteration(present, iteration, self._training.action_of_rank(present[0].number, iteration))
        self._end_training()
        return [tuple(rank.history) for rank in self._ranks]

    def _run_iteration(self, present: Sequence[_OracleRank], iteration: int, action: Action) -> None:
        """Run one iteration of all ranks that are present, which means that they still have input."""
        if action.has_forward or action is Action.EVALUATE:
            self._share_buffers(present, again=action not in (Action.ACCUMULATE, Action.EVALUATE))
        if action.has_forward:
            self._run_forwards(present, iteration, action)
        is_armed = action.has_forward and action is not Action.ACCUMULATE
        self._is_armed = is_armed or (self._is_armed and self._training.wrapper is ModelWrapper.DDP)
        if self._is_armed and action.has_backward:
            self._reduce_gradients(present)
            self._is_armed = False
        if action is Action.TRAIN:
            self._step_optimizer(present)
        # `fully_shard` has reduced the gradients only after these two actions.
        has_gradients = not self._training.needs_mesh or action in (Action.TRAIN, Action.SKIP_STEP)
        for rank in present:
            _load_rank_state(self._model, rank)
            rank.history.append(snapshot(self._model, iteration, gradients=has_gradients))
            if action is Action.TRAIN:
                rank.gradients = dict.fromkeys(self._names)

    def _step_optimizer(self, present: Sequence[_OracleRank]) -> None:
        _load_rank_state(self._model, present[0])
        if self._training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._training.clip_norm)
            clipped = {name: parameter.grad for name, parameter in self._model.named_parameters()}
            for rank in present:
                rank.gradients = dict(clipped)
        self._optimizer.step()

    def _share_buffers(self, present: Sequence[_OracleRank], *, again: bool) -> None:
        """Broadcast the buffers before a forward through the DDP wrapper; `again`: the next such forward does, too."""
        if self._buffers_are_due:
            source = present[-1] if self._training.join else self._ranks[0]
            for rank in self._ranks:
                rank.buffers = dict(source.buffers)
        self._buffers_are_due = self._shares_buffers and again
        for rank in present:
            rank.forwards += 1

    def _run_forwards(self, present: Sequence[_OracleRank], iteration: int, action: Action) -> None:
        """Run each rank's forward with the rank's own buffers; run its backward, too, if the action has a backward."""
        model, training = self._model, self._training
        for team in [present] if model.communicates else [[rank] for rank in present]:
            _load_rank_state(model, team[0])
            batches = [training.make_batch(model, rank.number, iteration) for rank in team]
            uses = training.branches_used(team[0].number, iteration, model)
            outputs = self._compute_outputs(torch.cat(batches), uses)
            if action.has_backward:
                parts = outputs.split([len(batch) for batch in batches])
                torch.stack([part.square().mean() for part in parts]).sum().backward()
            for rank in team:
                rank.buffers = _copy_buffers(model)
            # The first member has the sum of a network that communicates: only the sum over the ranks is used.
            team[0].gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        if training.averages_buffers:
            _average_buffers(present)

    def _compute_outputs(self, batch: Tensor, uses: tuple[str, ...] | None) -> Tensor:
        """Return the model's outputs for a batch, computed in the dtype and the way that the training declares."""
        dtype = self._training.mixed_precision
        if dtype is None:
            outputs: Tensor = self._model(batch, uses)
            return outputs
        cast = {name: parameter.to(dtype) for name, parameter in self._model.named_parameters()}
        own = batch.to(dtype) if batch.is_floating_point() else batch
        computed: Tensor = torch.func.functional_call(self._model, cast, (own, uses))
        return computed

    def _reduce_gradients(self, present: Sequence[_OracleRank]) -> None:
        join = self._training.join
        divisor = len(self._ranks) if join is None or join.divide_by_initial_world_size else len(present)
        met = _average_gradients([rank.gradients for rank in present], divisor, self._training.communication_hook)
        for rank in present:
            rank.gradients = dict(met)

    def _end_training(self) -> None:
        last = max(self._ranks, key=lambda rank: (rank.forwards, rank.number))
        for rank in self._ranks:
            if self._training.join and self._shares_buffers:
                rank.buffers = last.buffers
            _load_rank_state(self._model, rank)
            rank.history.append(snapshot(self._model))


def _average_buffers(present: Sequence[_OracleRank]) -> None:
    for name, buffer in present[0].buffers.items():
        if buffer.is_floating_point():
            mean = torch.stack([rank.buffers[name] for rank in present]).mean(dim=0)
            for rank in present:
                rank.buffers[name] = mean


def _average_gradients(gradients: Sequence[Gradients], divisor: int, hook: CommunicationHook | None) -> Gradients:
    """Return each parameter's gradient: the sum over the ranks that have one, in the dtype of `hook`, divided."""
    met: Gradients = {}
    for name in gradients[0]:
        found = [tensor for own in gradients if (tensor := own[name]) is not None]
        terms = [(tensor.to(_SENT_AS.get(hook, tensor.dtype)) / divisor) for tensor in found]
        met[name] = sum(terms[1:], terms[0]).to(found[0].dtype) if terms else None
    return met


def _copy_buffers(model: Network) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _load_rank_state(model: Network, rank: _OracleRank) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(rank.buffers[name])
    for name, parameter in model.named_parameters():
        gradient = rank.gradients[name]
        parameter.grad = None if gradient is None else gradient.clone()


def check_has_defined_result(training: Training, world_size: int) -> None:
    """Raise UsageError for a training whose result cannot be computed by training on one process."""
    counts = [training.iteration_count(rank) for rank in range(world_size)]
    if training.join is None and len(set(counts)) > 1:
        raise UsageError(f"iterations are {counts} without a join, expected equal numbers to compare with the oracle")
    actions = set()
    for iteration in range(max(counts)):
        together = {training.action_of_rank(r, iteration) for r in range(world_size) if iteration < counts[r]}
        actions |= together
        if len(together) > 1:
            raise UsageError(
                f"ranks {' or '.join(sorted(each.value for each in together))} in iteration {iteration}, expected one "
                "action for all that have input to compare with the oracle"
            )
    options = training.engine_options
    if _leaves_out_branches(training) and training.wrapper is ModelWrapper.FSDP2:
        raise UsageError("batches leave out branches, which shards cannot, expected all to compare with the oracle")
    if _leaves_out_branches(training) and not (options.get("find_unused_parameters") or options.get("static_graph")):
        raise UsageError("batches leave out branches, expected find_unused_parameters to compare with the oracle")
    if training.averages_buffers and (
        training.join
        or actions - {Action.TRAIN, Action.SKIP_STEP, Action.SKIP}
        or not options.get("broadcast_buffers", True)
    ):
        raise UsageError(
            "a hook averages buffers, expected no join, broadcast_buffers, and no iteration without a reduction to "
            "compare with the oracle: engines differ in when they run the hook"
        )


def _leaves_out_branches(training: Training) -> bool:
    branches = {
        branch for choice in training.networks for branch in make_meta_network(choice.name, choice.options).branches
    }
    return any(each.uses is not None and not branches <= set(each.uses) for each in training.exceptions)
