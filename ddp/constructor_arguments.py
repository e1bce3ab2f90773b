"""Checks of the DDP constructor's arguments.

Each raises UsageError, which names the argument, the value and what to do.
"""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from ddpsim.ddp.bucket_plan import DEFAULT_CAP_MB
from ddpsim.ddp.errors import UsageError
from ddpsim.ddp.unused import find_tensors


def trainable_parameters(module: nn.Module, ignored: frozenset[str]) -> dict[str, Parameter]:
    """Return the parameters whose gradients are reduced, by name; a shared parameter has its first name only."""
    if not isinstance(module, nn.Module):
        raise UsageError(f"module is {type(module).__name__}, expected a torch.nn.Module")
    named = {name: p for name, p in module.named_parameters() if name not in ignored}
    buffers = {name: b for name, b in module.named_buffers() if name not in ignored}
    for what, tensors in (("parameter", named), ("buffer", buffers)):
        for name, tensor in tensors.items():
            if nn.parameter.is_lazy(tensor):
                raise UsageError(
                    f"module has an uninitialized {what}, {name}: run a forward with a batch once before wrapping"
                )
    trainable = {name: p for name, p in named.items() if p.requires_grad}
    if not trainable:
        raise UsageError(
            f"module {type(module).__name__} has no parameter that requires a gradient, expected at least one: call it "
            "unwrapped, or unfreeze parameters before wrapping"
        )
    return trainable


def common_device(parameters: Mapping[str, Parameter]) -> torch.device:
    """Return the device of all parameters."""
    names_by_device: dict[torch.device, str] = {}
    for name, parameter in parameters.items():
        names_by_device.setdefault(parameter.device, name)
    if len(names_by_device) > 1:
        found = ", ".join(f"{name} on {device}" for device, name in names_by_device.items())
        raise UsageError(
            f"module has parameters on several devices ({found}), expected one: move the module to one device"
        )
    return next(iter(names_by_device))


def device_for_messages(module: object, group: ProcessGroup) -> torch.device:
    """Return a device for messages about a module that cannot be wrapped: the device of its parameters, if any."""
    parameters = module.parameters() if isinstance(module, nn.Module) else ()
    found = (parameter.device for parameter in parameters if parameter.device.type != "meta")
    return next(found, torch.device(dist.distributed_c10d._get_object_coll_device(group)))


def checked_bucket_cap(bucket_cap_mb: float | None) -> float:
    """Return the largest size of a bucket in MiB: the given one or the default. Raise UsageError if it is invalid."""
    if bucket_cap_mb is None:
        return DEFAULT_CAP_MB
    is_number = isinstance(bucket_cap_mb, (int, float)) and not isinstance(bucket_cap_mb, bool)
    if not is_number or not 0 < bucket_cap_mb < math.inf:
        raise UsageError(
            f"bucket_cap_mb is {bucket_cap_mb!r}, expected a number of MiB above 0: the default is {DEFAULT_CAP_MB:.0f}"
        )
    return bucket_cap_mb


def checked_group(group: ProcessGroup | None) -> ProcessGroup:
    """Return the given group, or the default group."""
    if group is None:
        return dist.distributed_c10d._get_default_group()
    # For a group without this rank, torch returns a number.
    if not isinstance(group, ProcessGroup) and group is not dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError(
            f"process_group is {group!r}, expected a ProcessGroup or None: make one by torch.distributed.new_group"
        )
    if dist.get_rank(group) < 0:
        raise UsageError(
            f"process_group does not contain this rank, {dist.get_rank()}, expected a group that does: construct the "
            "wrapper on the group's ranks only"
        )
    return group


def checked_devices(
    device_ids: Sequence[int | torch.device] | None, output_device: int | torch.device | None, device: torch.device
) -> tuple[list[torch.device] | None, torch.device | None]:
    """Return the devices for inputs and outputs, if the caller gave any. Each must be the parameters' device."""
    if device_ids is None or (isinstance(device_ids, Sequence) and not device_ids):
        if output_device is not None:
            raise UsageError(
                f"output_device is {output_device}, expected None without device_ids: outputs stay where they are"
            )
        return None, None
    named = _parse_devices(device_ids, device.type)
    if device.type == "cpu" or named != [device]:
        raise UsageError(
            f"device_ids is {list(device_ids)}, expected None or the one device of the parameters: they are on {device}"
        )
    return named, named[0]


def _parse_devices(device_ids: Sequence[int | torch.device], kind: str) -> list[torch.device]:
    try:
        if isinstance(device_ids, Sequence) and not isinstance(device_ids, str):
            return [torch.device(kind, d) if isinstance(d, int) else torch.device(d) for d in device_ids]
    except (RuntimeError, TypeError):
        pass
    raise UsageError(
        f"device_ids is {device_ids!r}, expected None or a list of one device: give [torch.device('cuda', 0)], for "
        "instance"
    )


def sparse_parameters(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters with sparse gradients."""
    sparse = {
        id(owner.weight)
        for owner in module.modules()
        if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) and owner.sparse
    }
    return frozenset(name for name, parameter in module.named_parameters() if id(parameter) in sparse)


def count_samples(arguments: object, dim: int) -> int:
    """Return a forward's number of samples: the size along `dim` of the first tensor that has this dimension."""
    for tensor in find_tensors(arguments):
        if tensor.dim() > dim:
            return tensor.shape[dim]
    raise UsageError(
        f"a forward got no tensor with a dimension {dim}, expected one to count samples by (weight_by_samples=True): "
        "pass the batch as a tensor, or set the constructor's dim"
    )
