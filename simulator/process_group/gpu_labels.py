"""Records on which virtual GPU a tensor lies, in an attribute of the tensor, as its memory is the CPU's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

LABEL = "_ddpsim_gpu"
"""The name of the tensor attribute that has the number of the virtual GPU."""

ON_CPU = "_ddpsim_cpu"
"""The name of the tensor attribute that says that a tensor without a label lies on the CPU for certain. Without it, C++
may have made the tensor, on whichever device."""


def gpu_number_of(tensor: Tensor) -> int | None:
    """Return the number of the virtual GPU on which a tensor lies; None for a tensor on the CPU."""
    return tensor.__dict__.get(LABEL)


def is_surely_on_cpu(tensor: Tensor) -> bool:
    """Return whether a tensor is known to lie on the CPU, beside virtual GPUs."""
    return ON_CPU in tensor.__dict__ and LABEL not in tensor.__dict__


def put_on_cpu(tensor: Any) -> None:
    """Record that a tensor lies on the CPU for certain."""
    if isinstance(tensor, Tensor):
        tensor.__dict__[ON_CPU] = True


def put_on_gpu(tensor: Tensor, label: int | None) -> None:
    """Label a tensor as lying on a virtual GPU, or on the CPU with None."""
    if label is not None:
        tensor.__dict__[LABEL] = label
    else:
        tensor.__dict__.pop(LABEL, None)


def first_gpu_number(values: Iterable[Any]) -> int | None:
    """Return the virtual GPU of the first GPU tensor among arguments and lists of arguments; None if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            if (label := value.__dict__.get(LABEL)) is not None:
                return label  # type: ignore[no-any-return]
        elif isinstance(value, (list, tuple)) and (label := first_gpu_number(value)) is not None:
            return label
    return None


def gpu_of(values: Iterable[Any], world_size: int) -> str | None:
    """Return the machine and the number of the GPU on which tensors lie. None if it is not known: C++ made the tensors,
    or there are fewer GPUs than ranks, so that some rank is on another machine."""
    label = first_gpu_number(values)
    if label is None or torch.cuda.device_count() < world_size:
        return None
    visible = dict(enumerate(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
    return f"{os.environ.get('GROUP_RANK', 0)}:{visible.get(label, label)}"


def put_results_on_gpu(result: Any, label: int) -> None:
    """Label the results of a function with the virtual GPU of its arguments."""
    if isinstance(result, Tensor):
        result.__dict__[LABEL] = label
    elif isinstance(result, (list, tuple)):
        for each in result:
            put_results_on_gpu(each, label)


def put_all_on_gpu(value: Any, label: int) -> None:
    """Label all tensors of a loaded object with a virtual GPU."""
    if isinstance(value, Tensor):
        put_on_gpu(value, label)
    elif isinstance(value, nn.Module):
        put_all_on_gpu([*value.parameters(), *value.buffers()], label)
    elif isinstance(value, Mapping):
        put_all_on_gpu(list(value.values()), label)
    elif isinstance(value, (list, tuple)):
        for each in value:
            put_all_on_gpu(each, label)
