"""The program that each rank runs in a declared training over a mesh: shards, tensor parallelism and pipelines.

Every rank builds the whole network from one seed, because `fully_shard` and pipelines do not broadcast initial values.
Then the rank keeps the layers of its pipeline stages, of these its `tp` part, and of this part its shard.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.training.models import Network
from ddpsim.scenarios.training.models.network import LayerSplit
from ddpsim.scenarios.training.snapshot import History, Snapshot, merge_stage_snapshots, part_snapshot
from ddpsim.scenarios.training.trainer import make_optimizer
from ddpsim.scenarios.training.training import Action, ModelWrapper, ParallelLayout, PipelineSchedule, Training
from ddpsim.simulator.wording import values_by_key


@dataclass(frozen=True, slots=True)
class _RankTraining:
    training: Training
    layout: ParallelLayout
    whole: Network
    """The whole network, which is not trained: it draws the batches."""
    mesh: DeviceMesh
    models: tuple[Any, ...]
    """The pipeline stages of the rank, in DDP or sharded."""
    schedule: Any
    """The pipeline schedule; None without pipelines."""
    optimizer: Any


def train_on_mesh(rank: int, training: Training) -> History:
    """Train on a rank as declared; return snapshots of its part of the model, after each iteration and at the end."""
    job = _build_rank_training(rank, training)
    history = []
    for iteration in range(training.iteration_count(rank)):
        _run_iteration(job, rank, iteration)
        history.append(_snapshot_of_stages(job, iteration))
        if training.action_of_rank(rank, iteration) is Action.TRAIN:
            job.optimizer.zero_grad()
    return (*history, _snapshot_of_stages(job, None))


def _build_rank_training(rank: int, training: Training) -> _RankTraining:
    layout = training.layout(dist.get_world_size())
    sizes = layout.dimensions
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    coordinate = mesh.get_local_rank("pp") if "pp" in sizes else 0
    stages = layout.schedule.stages_of_rank(coordinate, layout.pp) if layout.pp > 1 else (0,)
    models = tuple(_build_stage(training, layout, mesh, stage) for stage in stages)
    return _RankTraining(
        training,
        layout,
        training.make_network(0),
        mesh,
        models,
        _build_schedule(layout, mesh, models, stages) if layout.pp > 1 else None,
        make_optimizer(training.optimizer, (each for model in models for each in _unwrap_network(model).parameters())),
    )


def _build_stage(training: Training, layout: ParallelLayout, mesh: DeviceMesh, stage: int) -> Any:
    """Return a pipeline stage of the network, split by tensor parallelism and wrapped by DDP or `fully_shard`."""
    network = training.make_network(0)
    if layout.pp > 1:
        network.keep_layers(layout.layers_of_stage(stage, len(network.layers_in_order())))
    if layout.tp > 1:
        _split_layers(network, mesh["tp"])
    if training.wrapper is ModelWrapper.DDP:
        group = mesh[layout.data_dimensions].get_group()
        return DistributedDataParallel(network, process_group=group, **training.engine_options)  # type: ignore[arg-type]
    return _shard_network(network, mesh[layout.data_dimensions], training.mixed_precision)


def _split_layers(network: Network, mesh: DeviceMesh) -> None:
    from torch.distributed.tensor import Replicate  # these take a second to import
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles: dict[LayerSplit, Callable[[], Any]] = {
        LayerSplit.COLUMNS: ColwiseParallel,
        LayerSplit.ROWS: RowwiseParallel,
        LayerSplit.GATHERED_COLUMNS: lambda: ColwiseParallel(output_layouts=Replicate()),
    }
    has = dict(network.named_modules())
    here = {name: split for name, split in network.split.items() if isinstance(has.get(name), nn.Linear)}
    parallelize_module(network, mesh, {name: styles[split]() for name, split in here.items()})
    for name in here:  # their outputs are views, about which `fully_shard` would warn
        network.get_submodule(name).register_forward_hook(lambda module, inputs, output: output.clone())


def _shard_network(network: Network, mesh: DeviceMesh, dtype: torch.dtype | None) -> Any:
    """Apply `fully_shard` to each module to shard, and to the rest; the last dimension of the mesh has the shards."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=dtype)
    for unit in _modules_to_shard(network):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    return fully_shard(network, mesh=mesh, mp_policy=policy)


def _modules_to_shard(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules to shard: not lists, which are not called, and with parameters that no other module has."""
    has = {name: list(child.parameters()) for name, child in module.named_children()}
    has[""] = list(module.parameters(recurse=False))
    for name, child in module.named_children():
        others = {each for other, parameters in has.items() if other != name for each in parameters}
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _modules_to_shard(child)
        elif has[name] and others.isdisjoint(has[name]):
            yield child


def _build_schedule(layout: ParallelLayout, mesh: DeviceMesh, models: Sequence[Any], numbers: Sequence[int]) -> Any:
    from torch.distributed.pipelining import PipelineStage

    group = mesh["pp"].get_group()
    stages = [
        PipelineStage(model, number, layout.stage_count, torch.device("cpu"), group=group)
        for model, number in zip(models, numbers, strict=True)
    ]
    own = stages if layout.schedule.stages_per_rank > 1 else stages[0]
    # Not `scale_grads`: it also scales what earlier iterations have accumulated, again in each step.
    count = layout.micro_batch_count
    options = {"loss_fn": lambda output, target: _mean_square(output) / count, "scale_grads": False}
    return schedule_class(layout.schedule)(own, count, **options)


def schedule_class(schedule: PipelineSchedule) -> Callable[..., Any]:
    """Return torch's class of a pipeline schedule."""
    from torch.distributed import pipelining

    classes = {
        PipelineSchedule.GPIPE: pipelining.ScheduleGPipe,
        PipelineSchedule.ONE_F_ONE_B: pipelining.Schedule1F1B,
        PipelineSchedule.INTERLEAVED_1F1B: pipelining.ScheduleInterleaved1F1B,
        PipelineSchedule.LOOPED_BFS: pipelining.ScheduleLoopedBFS,
        PipelineSchedule.INTERLEAVED_ZERO_BUBBLE: pipelining.ScheduleInterleavedZeroBubble,
        PipelineSchedule.ZBV_ZERO_BUBBLE: pipelining.ScheduleZBVZeroBubble,
    }
    return cast(Callable[..., Any], classes[schedule])


def torch_error_for_layout(layout: ParallelLayout) -> str:
    """Return the text of torch's error for a pipeline of this layout, which needs no process group; '' for none."""
    stages = [
        SimpleNamespace(
            num_stages=layout.stage_count,
            group_size=layout.pp,
            group_rank=0,
            stage_index=number,
            is_first=number == 0,
            is_last=number == layout.stage_count - 1,
            submod=nn.Module(),
        )
        for number in layout.schedule.stages_of_rank(0, layout.pp)
    ]
    own = stages if layout.schedule.stages_per_rank > 1 else stages[0]
    try:
        schedule_class(layout.schedule)(own, layout.micro_batch_count)
    except ValueError as error:
        return " ".join(str(error).split()).rstrip(".")
    return ""


def _run_iteration(job: _RankTraining, rank: int, iteration: int) -> None:
    training = job.training
    action = training.action_of_rank(rank, iteration)
    batch = training.make_batch(job.whole, job.layout.data_rank(rank), iteration)
    if action is Action.EVALUATE:
        _evaluate(job, batch)
    if not action.has_forward:
        return
    if job.schedule is not None:
        _step_pipeline(job.schedule.step, job, batch)
    else:
        (model,) = job.models
        with _accumulate_gradients(model, action is Action.ACCUMULATE):
            loss = _mean_square(model(batch, training.branches_used(rank, iteration, job.whole)))
            if action.has_backward:
                loss.backward()
    if action is Action.TRAIN:
        if training.clip_norm is not None:
            _clip_gradients(job, training.clip_norm)
        job.optimizer.step()


def _evaluate(job: _RankTraining, batch: Tensor) -> None:
    for model in job.models:
        model.eval()
    with torch.no_grad():
        if job.schedule is not None:
            _step_pipeline(job.schedule.eval, job, batch)
        else:
            job.models[0](batch)
    for model in job.models:
        model.train()


def _step_pipeline(step: Callable[..., Any], job: _RankTraining, batch: Tensor) -> None:
    stages = job.layout.schedule.stages_of_rank(job.mesh.get_local_rank("pp"), job.layout.pp)
    given = {"target": torch.zeros(len(batch)), "losses": []} if job.layout.stage_count - 1 in stages else {}
    step(*([batch] if 0 in stages else []), **given)


def _accumulate_gradients(model: Any, is_accumulated: bool) -> AbstractContextManager[object]:
    if isinstance(_unwrap_network(model), Network) and model is not _unwrap_network(model):
        return cast(AbstractContextManager[object], model.no_sync()) if is_accumulated else nullcontext()
    model.set_requires_gradient_sync(not is_accumulated)
    return nullcontext()


def _mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def _clip_gradients(job: _RankTraining, norm: float) -> None:
    """Clip like `clip_grad_norm_`, which supports neither several meshes nor pipeline stages on other ranks."""
    parameters = (each for model in job.models for each in _unwrap_network(model).parameters() if each.grad is not None)
    kinds = values_by_key((getattr(each, "device_mesh", None), each) for each in parameters)
    squares = [_full_tensor(nn.utils.get_total_norm([own.grad for own in kind])) ** 2 for kind in kinds.values()]  # type: ignore[misc]
    total = torch.stack(squares).sum()
    if job.schedule is not None:
        dist.all_reduce(total, group=job.mesh["pp"].get_group())
    for kind in kinds.values():
        nn.utils.clip_grads_with_norm_(kind, norm, total.sqrt())


def _full_tensor(tensor: Any) -> Tensor:
    return cast(Tensor, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor)


def _unwrap_network(model: Any) -> Network:
    return cast(Network, model.module if isinstance(getattr(model, "module", None), Network) else model)


def _snapshot_of_stages(job: _RankTraining, iteration: int | None) -> Snapshot:
    gradients = iteration is not None
    return merge_stage_snapshots(
        [part_snapshot(_unwrap_network(model), iteration, gradients=gradients) for model in job.models]
    )
