"""Check a declared training for options that its mesh does not support.

Each problem is a key of the file and what is wrong with its value.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import nn

from ddpsim.scenarios.training.models import Network
from ddpsim.scenarios.training.models.network import LayerSplit
from ddpsim.scenarios.training.parallel_trainer import torch_error_for_layout
from ddpsim.scenarios.training.training import Action, ModelWrapper, ParallelLayout, Training
from ddpsim.simulator.wording import values_by_key

Problem = tuple[tuple["str | int", ...], str]
"""A problem: the path to a key of a scenario file, and the rest of a sentence that begins with this key."""

_CUT = "linear, mlp or transformer"


def find_problems(training: Training, networks: Sequence[Network], world_size: int) -> Iterator[Problem]:
    """Yield the problems of a training, in order. A later problem may be a consequence of an earlier problem."""
    layout = training.layout(world_size)
    if layout.dp > 1 and layout.dp_replicate * layout.dp_shard > 1:
        halves = "expected dp alone, or dp_replicate and dp_shard, whose product it is: leave it out"
        yield ("parallel", "dp"), f"is {layout.dp}, {halves}"
        return
    if layout.world_size != world_size:
        sizes = " x ".join(f"{name} {size}" for name, size in layout.dimensions.items())
        found = f"is a mesh of {layout.world_size} ranks, {sizes}"
        yield ("parallel",), f"{found}, expected one that fills world_size = {world_size}"
    if training.recomputes and not all(network.layers_in_order() for network in networks):
        yield ("activation_checkpointing",), f"is true, but {_no_layers_text(training, networks)}"
    if training.mixed_precision is not None and training.wrapper is not ModelWrapper.FSDP2:
        dtype = str(training.mixed_precision).removeprefix("torch.")
        yield ("mixed_precision",), f"is {dtype!r}, which only shards have, expected wrapper = 'fsdp2', too"
    if training.needs_mesh:
        yield from _problems_of_ddp_options(training)
        yield from _problems_of_wrapper(training, layout, networks[0])
        yield from _problems_of_split(training, layout, networks[0]) if layout.tp > 1 else ()
        yield from _problems_of_pipeline(training, layout, networks[0])


def _problems_of_ddp_options(training: Training) -> Iterator[Problem]:
    """Yield a problem for each option that only DistributedDataParallel over all ranks supports."""
    with_what = "clip_norm" if training.parallel is None else "parallel"
    with_what = "wrapper = 'fsdp2'" if training.wrapper is ModelWrapper.FSDP2 else with_what
    not_with = f"which does not go with {with_what}: leave one of them out"
    for key, is_said in (
        ("join", training.join is not None),
        ("communication_hook", training.communication_hook is not None),
        ("average_buffers", training.averages_buffers),
        ("reduce_loss", training.reduces_loss),
    ):
        if is_said:
            yield (key,), f"is said, {not_with}"
    if len(training.networks) > 1:
        yield ("network",), f"has several networks, {not_with}"
    if training.optimizer.is_sharded:
        yield ("optimizer", "sharded"), f"is true, {not_with}"


def _problems_of_wrapper(training: Training, layout: ParallelLayout, network: Network) -> Iterator[Problem]:
    if training.wrapper is ModelWrapper.DDP:
        for key in ("tp", "pp", "dp_replicate", "dp_shard"):
            if (size := getattr(layout, key)) > 1:
                yield ("parallel", key), f"is {size}, which goes with shards, expected wrapper = 'fsdp2', too"
        return
    if training.engine_options:
        yield ("engine",), "has arguments of DistributedDataParallel, but wrapper is 'fsdp2': leave it out"
    if network.sparse:
        name = training.networks[0].name
        yield ("network",), f"is {name!r}, with sparse gradients, which wrapper = 'fsdp2' cannot reduce"
    why = "nothing is inside of fully_shard, expected evaluate"
    yield from _problems_of_actions(training, Action.EVALUATE_INNER, why)


def _problems_of_actions(training: Training, refused: Action, why: str) -> Iterator[Problem]:
    for index, each in enumerate(training.exceptions):
        if each.action is refused:
            yield ("exception", index, "action"), f"is {refused.value!r}, but {why}"


def _problems_of_split(training: Training, layout: ParallelLayout, network: Network) -> Iterator[Problem]:
    """Yield a problem if a layer that tensor parallelism splits gives ranks unequal numbers of columns or rows."""
    name = training.networks[0].name
    if not network.split:
        none = f"is {layout.tp}, but network {name!r} has no layers to split, expected {_CUT}"
        yield ("parallel", "tp"), none
    yield from _problems_of_rows(training, "tp", layout.tp)
    for layer, split in network.split.items():
        module = network.get_submodule(layer)
        assert isinstance(module, nn.Linear)
        is_rows = split is LayerSplit.ROWS
        size, what = (module.in_features, "inputs") if is_rows else (module.out_features, "outputs")
        if size % layout.tp:
            wanted = f"expected a divisor of the {size} {what} of {layer} in network {name!r}"
            yield ("parallel", "tp"), f"is {layout.tp}, {wanted}"


def _problems_of_pipeline(training: Training, layout: ParallelLayout, network: Network) -> Iterator[Problem]:
    """Yield the problems of a pipeline: network, schedule and actions of ranks must fit it."""
    if layout.pp == 1:
        for key in ("schedule", "micro_batches"):
            if getattr(layout, key) != getattr(ParallelLayout(), key):
                yield ("parallel", key), "is for pipelines, but pp is 1: leave it out, or increase pp"
        return
    name, layers = training.networks[0].name, len(network.layers_in_order())
    if not layers:
        yield ("parallel", "pp"), f"is {layout.pp}, but {_no_layers_text(training, [network])}"
        return
    if layout.stage_count > layers:
        many = f"makes {layout.stage_count} stages, expected {layers} at most: network {name!r} has no more layers"
        yield ("parallel", "pp"), many
        return
    for one, other in _parameters_shared_by_stages(layout, network):
        shared = f"has {one} and {other} in different stages, and they are one parameter, expected tied = false"
        yield ("network",), shared
    yield from _problems_of_rows(training, "pp", layout.pp)
    if isinstance(training.rows, int) and training.rows % layout.micro_batch_count:
        cut = f"expected a multiple of {layout.micro_batch_count}: so many micro-batches a batch is cut into"
        yield ("rows",), f"is {training.rows}, {cut}"
    if refusal := torch_error_for_layout(layout):
        yield ("parallel", "schedule"), f"is {layout.schedule.value!r}, which torch refuses: {refusal}"
    why = "a pipeline makes forward and backward in one step, expected another action"
    yield from _problems_of_actions(training, Action.SKIP_BACKWARD, why)


def _problems_of_rows(training: Training, key: str, size: int) -> Iterator[Problem]:
    if not isinstance(training.rows, int):
        yield ("rows",), f"has a number for each rank, but of {key} = {size} ranks share batches: say one"


def _parameters_shared_by_stages(layout: ParallelLayout, network: Network) -> Iterator[tuple[str, str]]:
    """Yield the parameters that two stages of a pipeline would share."""
    layers = network.layers_in_order()
    stage_of = {
        name: stage
        for stage in range(layout.stage_count)
        for index in layout.layers_of_stage(stage, len(layers))
        for name in layers[index].names
    }

    def stage(name: str) -> int:
        return next(number for layer, number in stage_of.items() if f"{name}.".startswith(f"{layer}."))

    named = network.named_parameters(remove_duplicate=False)
    for alike in values_by_key((id(parameter), name) for name, parameter in named).values():
        yield from ((one, other) for one, other in pairwise(alike) if stage(one) != stage(other))


def _no_layers_text(training: Training, networks: Sequence[Network]) -> str:
    pairs = zip(training.networks, networks, strict=True)
    name = next(choice.name for choice, network in pairs if not network.layers_in_order())
    return f"network {name!r} has no layers that follow one another, expected {_CUT}"
