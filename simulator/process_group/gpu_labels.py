"""Records on which virtual GPU a tensor lies, in an attribute of the tensor, as its memory is the CPU's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

LABEL = "_ddpsim_gpu"
"""The name of the tensor attribute that has the number of the virtual GPU."""


def gpu_number_of(tensor: Tensor) -> int | None:
    """Return the number of the virtual GPU on which a tensor lies; None for a tensor on the CPU."""
    return tensor.__dict__.get(LABEL)


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
