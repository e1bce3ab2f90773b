"""The virtual GPU of a tensor, kept as an attribute of the tensor, since its memory is the CPU's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

LABEL = "_ddpsim_gpu"
"""The name of the attribute."""


def gpu_number_of(tensor: Tensor) -> int | None:
    """Return the number of a tensor's GPU; None for a tensor on the CPU."""
    return tensor.__dict__.get(LABEL)


def put_on_gpu(tensor: Tensor, label: int | None) -> None:
    """Put a tensor on a GPU, or on the CPU with None."""
    if label is not None:
        tensor.__dict__[LABEL] = label
    else:
        tensor.__dict__.pop(LABEL, None)


def first_gpu_number(values: Iterable[Any]) -> int | None:
    """Return the number of the first GPU tensor's GPU among arguments and their lists; None if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            if (label := value.__dict__.get(LABEL)) is not None:
                return label  # type: ignore[no-any-return]
        elif isinstance(value, (list, tuple)) and (label := first_gpu_number(value)) is not None:
            return label
    return None


def put_results_on_gpu(result: Any, label: int) -> None:
    """Put the results of a function on the GPU of its arguments."""
    if isinstance(result, Tensor):
        result.__dict__[LABEL] = label
    elif isinstance(result, (list, tuple)):
        for each in result:
            put_results_on_gpu(each, label)


def put_all_on_gpu(value: Any, label: int) -> None:
    """Put all tensors of a loaded object on a GPU."""
    if isinstance(value, Tensor):
        put_on_gpu(value, label)
    elif isinstance(value, nn.Module):
        put_all_on_gpu([*value.parameters(), *value.buffers()], label)
    elif isinstance(value, Mapping):
        put_all_on_gpu(list(value.values()), label)
    elif isinstance(value, (list, tuple)):
        for each in value:
            put_all_on_gpu(each, label)
