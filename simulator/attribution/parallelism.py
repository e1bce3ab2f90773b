"""Parts: the FSDP2 unit, pipeline message, DTensor redistribution, checkpoint or optimizer step of a call.

They are read from the frames and objects of torch 2.11 to 2.15 while the call is issued. If another version lacks a
name, the call counts as one of the user's line.
"""

from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from ddpsim.simulator.attribution.stack_attribution import Reader, StackFacts
from ddpsim.simulator.calls import COLLECTS_STATE, GREETING, CallPart, Origin, Parallelism
from ddpsim.simulator.runtime.call_sites import frames_outwards
from ddpsim.simulator.transport.payload import Payload

# --- FSDP2 ------------------------------------------------------------------------------------------------------------

_GATHER_TIMES = {"FORWARD": " before forward", "PRE_BACKWARD": " before backward"}
"""By an FSDP2 unit's training state, when its all-gather happens; in other states, the program unshards the unit."""


class OptimizerStepCounter:
    """Counts the steps of one rank's optimizers, in total and for each FSDP2 unit, given by one of its parameters."""

    def __init__(self) -> None:
        self._of_optimizers: Any = WeakIdKeyDictionary()
        self._of_units: Any = WeakTensorKeyDictionary()
        self._has_stepped = False

    def current_step(self, stepped: Optimizer | Tensor | None) -> int | None:
        """Return the step, from 1, of an optimizer, or of an FSDP2 unit given by a parameter; None if no optimizer that
        has stepped updates the unit."""
        if stepped is None:
            return None
        if isinstance(stepped, Optimizer):
            return int(self._of_optimizers.get(stepped, 0)) + 1
        steps: int = self._of_units.setdefault(stepped, 0)
        return steps + 1 if steps or not self._has_stepped else None

    def count_optimizer_step(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer, and of the FSDP2 units whose parameters it updates."""
        self._of_optimizers[optimizer] = self._of_optimizers.get(optimizer, 0) + 1
        self._has_stepped = True
        if not self._of_units:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in self._of_units:
                    self._of_units[parameter] += 1


def _read_fsdp_unit_gather(reading: StackFacts, frame: FrameType) -> None:
    unit = frame.f_locals.get("self")
    state = getattr(getattr(unit, "_training_state", None), "name", "")
    _set_fsdp_unit_part(reading, unit, "all-gather" + _GATHER_TIMES.get(state, ""), getattr(unit, "fsdp_params", ()))


def _read_fsdp_unit_reduction(reading: StackFacts, frame: FrameType) -> None:
    action = "all-reduce" if reading.operation == "all_reduce" else "reduce-scatter"
    _set_fsdp_unit_part(reading, frame.f_locals.get("self"), action, frame.f_locals.get("fsdp_params_with_grad", ()))


def _set_fsdp_unit_part(reading: StackFacts, unit: Any, action: str, parameters: Sequence[Any]) -> None:
    name = getattr(unit, "_module_fqn", None)
    if reading.part is not None or not isinstance(name, str):
        return
    what = f'unit "{name}"' if name else "root unit"
    if getattr(unit, "_num_param_groups", 1) > 1:
        what += f" parameter group {getattr(unit, '_param_group_index', '?')}"
    reading.part = CallPart(Parallelism.FSDP, what, action)
    reading.parameters = tuple([str(getattr(each, "_param_fqn", "?")) for each in parameters])
    reading.stepped = next((getattr(each, "sharded_param", None) for each in getattr(unit, "fsdp_params", ())), None)


# --- DTensor ----------------------------------------------------------------------------------------------------------


def _read_redistribution(reading: StackFacts, frame: FrameType) -> None:
    if reading.part is None:
        known = frame.f_locals
        current, target = known.get("current"), known.get("target")
        if current is not None and target is not None:
            what = f"{_placement_text(current)} -> {_placement_text(target)}"
            action = _dimension_text(known.get("mesh_to_use", known.get("device_mesh")), known.get("i"))
            reading.part = CallPart(Parallelism.DTENSOR, what, action)


def _reader_of_distribution(what: str) -> Reader:
    """Return a frame reader for a function that sends a tensor from one rank of a mesh dimension to the others."""

    def read(reading: StackFacts, frame: FrameType) -> None:
        if reading.part is None:
            action = _dimension_text(frame.f_locals.get("mesh"), frame.f_locals.get("mesh_dim"))
            reading.part = CallPart(Parallelism.DTENSOR, what, action)

    return read


def _dimension_text(mesh: Any, index: Any) -> str:
    names = getattr(mesh, "mesh_dim_names", None)
    return f'on "{names[index]}"' if names and isinstance(index, int) else ""


def _placement_text(placement: Any) -> str:
    """Return a DTensor placement as text: `Shard(0)`, `Replicate`, `Partial(sum)`; others as in torch."""
    kind = type(placement).__name__
    if kind == "Shard":
        return f"Shard({placement.dim})"
    if kind == "Partial":
        return f"Partial({placement.reduce_op})"
    if kind == "_NormPartial":
        return f"Partial({placement.norm_type:g}-norm)"
    return kind if kind == "Replicate" else str(placement)


def _read_dtensor_operation(reading: StackFacts, frame: FrameType) -> None:
    """Recognise, on the stack, a redistribution that an operation on DTensors needs: shown as `for mm`."""
    schema = frame.f_locals.get("suggested_input_schema")
    operation = getattr(getattr(schema, "op", None), "_schema", None)
    name = str(getattr(operation, "name", "")).rpartition("::")[2]
    _add_detail(reading, f"for {name}" if name else "")


def _read_parallel_layer(reading: StackFacts, frame: FrameType) -> None:
    """Recognise, on the stack, a redistribution of the inputs or outputs of a tensor-parallel layer."""
    known = frame.f_locals
    layer = known.get("mod", known.get("module"))
    if reading.part is not None and reading.part.parallelism is Parallelism.DTENSOR and isinstance(layer, Module):
        side = "outputs" if "output" in frame.f_code.co_name else "inputs"
        name = _layer_name(layer, frame)
        style = getattr(frame.f_code, "co_qualname", "tensor parallelism").partition(".")[0]  # from Python 3.11 on
        reading.part = reading.part._replace(note=f'{side} of layer "{name}" ({style})' if name else "")


def _layer_name(layer: Module, frame: FrameType | None) -> str:
    """Return the name of a layer within the outermost module whose forward is running."""
    root: Module = layer
    for each in frames_outwards(frame):
        owner = each.f_locals.get("self")
        if isinstance(owner, Module) and each.f_code.co_name == "_call_impl":
            root = owner
    return next((name for name, module in root.named_modules() if module is layer), "")


def _reader_of_detail(detail: str) -> Reader:
    return lambda reading, frame: _add_detail(reading, detail)


def _add_detail(reading: StackFacts, detail: str) -> None:
    if reading.part is not None and reading.part.parallelism is Parallelism.DTENSOR and not reading.part.detail:
        reading.part = reading.part._replace(detail=detail)


# --- pipelines --------------------------------------------------------------------------------------------------------

_MESSAGE_METHODS = {
    "get_fwd_recv_ops": ("activations", "fwd_chunk_id", -1, "before its forward"),
    "get_fwd_send_ops": ("activations", "fwd_chunk_id", 1, "after its forward"),
    "get_bwd_recv_ops": ("gradients", "bwd_chunk_id", 1, "before its backward"),
    "get_bwd_send_ops": ("gradients", "bwd_chunk_id", -1, "after its backward"),
}
"""By method of a pipeline stage: the contents of its messages, its argument for the micro-batch, the distance to the
other stage, and when the messages are exchanged."""

_GREETS = "_get_init_p2p_neighbors_ops"
_STAGE = "torch.distributed.pipelining.stage"


class PipelineMessages:
    """The messages that one rank's pipeline stages have made and not yet sent or received, by their tensors.

    A stage makes a P2POp of torch for one micro-batch. A schedule issues several P2POps later, when the stack does not
    show their micro-batches.
    """

    def __init__(self) -> None:
        self._parts: Any = WeakTensorKeyDictionary()

    def record_message(self, tensor: Tensor, frame: FrameType) -> None:
        """Record a message that the function of a frame, or its caller, creates."""
        for caller in (frame, frame.f_back):
            if caller is None or caller.f_globals.get("__name__") != _STAGE:
                return
            if caller.f_code.co_name == _GREETS:
                self._parts[tensor] = CallPart(Parallelism.PIPELINE, GREETING)
                return
            if caller.f_code.co_name in _MESSAGE_METHODS:
                part = _message_part(caller, frame)
                if part is not None:
                    self._parts[tensor] = part._replace(note=_schedule_action(caller))
                return

    def attribute_message(self, origin: Origin, payload: Payload) -> Origin:
        """Return the origin of a send or receive, with the pipeline message if a stage has made it."""
        if not self._parts or origin.part is not None:
            return origin
        tensor = (*payload.inputs, *payload.outputs)[0]
        part = self._parts.get(tensor)
        if part is not None and part.what != GREETING:  # several greetings share a tensor
            del self._parts[tensor]
        return origin if part is None else origin._replace(part=part)


_SCHEDULES = "torch.distributed.pipelining.schedules"


def _schedule_action(stage: FrameType) -> str:
    """Return the pipeline schedule in which a stage makes a message, with the current action if the schedule has it."""
    when, frame = _MESSAGE_METHODS[stage.f_code.co_name][3], stage.f_back
    while frame is not None and frame.f_globals.get("__name__") in (_STAGE, _SCHEDULES):
        schedule, action = frame.f_locals.get("self"), frame.f_locals.get("action")
        if frame.f_globals["__name__"] == _SCHEDULES and schedule is not None:
            name = type(schedule).__name__
            return f"{when}, {name}" if action is None else f"{when}, {name} action {action}"
        frame = frame.f_back
    return when


def _message_part(frame: FrameType, inner: FrameType) -> CallPart | None:
    """Describe a message that a stage's method makes; `inner` is the frame of the method or of its helper."""
    stage, name = frame.f_locals.get("self"), frame.f_code.co_name
    carried, argument, distance, _ = _MESSAGE_METHODS[name]
    own, batch = getattr(stage, "stage_index", None), frame.f_locals.get(argument)
    if not isinstance(own, int) or not isinstance(batch, int):
        return None
    known = inner.f_locals
    stages = [known.get("dst"), known.get("grad_recv_stage"), getattr(known.get("info"), "source", None)]
    other = next((each for each in stages if isinstance(each, int)), own + distance)
    source, target = (own, other) if name.endswith("send_ops") else (other, own)
    return CallPart(Parallelism.PIPELINE, f"{carried} of micro-batch {batch}", f"stage {source} to stage {target}")


def _read_shape_agreement(reading: StackFacts, frame: FrameType) -> None:
    """Recognise the messages by which pipeline stages agree whether shapes are known (before torch 2.15)."""
    if reading.part is None and reading.operation in ("all_reduce", "send", "recv"):
        reading.part = CallPart(Parallelism.PIPELINE, "agreement on how shapes are known")


def _read_metadata_message(reading: StackFacts, frame: FrameType) -> None:
    own = getattr(frame.f_locals.get("self"), "stage_index", None)
    _set_metadata_part(reading, frame.f_locals.get("src_stage", own), frame.f_locals.get("dst_stage", own))


def _read_shape_inference(reading: StackFacts, frame: FrameType) -> None:
    """Recognise shape inference (torch 2.11): a stage receives the shapes of the previous stage and sends its own."""
    own = getattr(frame.f_locals.get("self"), "stage_index", None)
    if isinstance(own, int) and reading.operation in ("send", "recv"):
        source = own if reading.operation == "send" else own - 1
        _set_metadata_part(reading, source, source + 1)


def _set_metadata_part(reading: StackFacts, source: Any, target: Any) -> None:
    if reading.part is None and isinstance(source, int) and isinstance(target, int):
        reading.part = CallPart(Parallelism.PIPELINE, "shapes", f"stage {source} to stage {target}")


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _read_checkpoint_step(reading: StackFacts, frame: FrameType) -> None:
    step = frame.f_locals.get("step")
    if reading.part is None and isinstance(step, str):
        reading.part = CallPart(Parallelism.CHECKPOINT, f'step "{step}"')


_UNIT = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_REDISTRIBUTE = "torch.distributed.tensor._redistribute"
_SENDING = "torch.distributed.tensor._collective_utils"
_STYLE = "torch.distributed.tensor.parallel.style"
_TO_OTHERS = "torch.distributed.checkpoint.utils"

PARALLELISM: dict[tuple[str, str], Reader] = {
    (_UNIT, "unshard"): _read_fsdp_unit_gather,
    (_UNIT, "post_backward"): _read_fsdp_unit_reduction,
    (_REDISTRIBUTE, "redistribute_local_tensor"): _read_redistribution,
    (_REDISTRIBUTE, "backward"): _reader_of_detail("in backward"),
    ("torch.distributed.tensor._dispatch", "redistribute_local_args"): _read_dtensor_operation,
    ("torch.distributed.tensor._api", "full_tensor"): _reader_of_detail("for full_tensor"),
    (_SENDING, "mesh_scatter"): _reader_of_distribution("scatter of shards"),
    (_SENDING, "mesh_broadcast"): _reader_of_distribution("broadcast of replicas"),
    **{(_STYLE, name): _read_parallel_layer for name in ("_prepare_input_fn", "_prepare_output_fn")},
    (_SCHEDULES, "_initialize_pipeline_distributed_state"): _read_shape_agreement,
    **{(_STAGE, name): _read_shape_agreement for name in ("_warmup_forward_vote", "_warmup_backward_result")},
    (_STAGE, "_send_meta"): _read_metadata_message,
    (_STAGE, "_recv_meta"): _read_metadata_message,
    (_STAGE, "_shape_inference"): _read_shape_inference,
    **{
        (_TO_OTHERS, name): _read_checkpoint_step
        for name in ("reduce_scatter", "all_reduce", "all_gather", "broadcast")
    },
}
"""Functions of torch and their frame readers, by module and name. Calls of a renamed one would count as the user's."""


def _read_parameter_update(reading: StackFacts, frame: FrameType) -> None:
    reading.stepped = frame.f_locals.get("self")
    _set_optimizer_part(reading, reading.stepped, "updated parameters")


def _read_state_collection(reading: StackFacts, frame: FrameType) -> None:
    _set_optimizer_part(reading, frame.f_locals.get("self"), COLLECTS_STATE)


def _read_parameter_average(reading: StackFacts, frame: FrameType) -> None:
    optimizer = frame.f_locals.get("self")
    done = getattr(getattr(optimizer, "averager", None), "step", None)
    reading.step = done + 1 if isinstance(done, int) else None
    _set_optimizer_part(reading, optimizer, "average of parameters")


def _set_optimizer_part(reading: StackFacts, optimizer: Any, action: str) -> None:
    """Name an optimizer as the origin of a call, with the optimizer that it wraps: `ZeroRedundancyOptimizer(Adam)`."""
    if reading.part is None:
        what = f"{type(optimizer).__name__}({type(getattr(optimizer, 'optim', None)).__name__})"
        reading.part = CallPart(Parallelism.OPTIMIZER, what, action)


def _read_gradient_norm(reading: StackFacts, frame: FrameType) -> None:
    """Recognise, on the stack, a redistribution for a norm of gradients; the outermost function is named."""
    part = reading.part
    if part is not None and part.parallelism in (Parallelism.DTENSOR, Parallelism.NORM):
        name = frame.f_code.co_name.removeprefix("_")
        reading.part = part._replace(parallelism=Parallelism.NORM, detail=f"for {name}")


_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
_CLIPPING = "torch.nn.utils.clip_grad"

OPTIMIZERS: dict[tuple[str, str], Reader] = {
    (_ZERO, "_sync_params"): _read_parameter_update,
    (_ZERO, "consolidate_state_dict"): _read_state_collection,
    ("torch.distributed.optim.post_localSGD_optimizer", "step"): _read_parameter_average,
    **{
        (_CLIPPING, name): _read_gradient_norm
        for name in ("_get_total_norm", "_clip_grads_with_norm_", "clip_grad_norm_")
    },
}
"""Functions of optimizers and their frame readers, by module and name. A renamed one would count as the user's."""
