"""Which virtual GPU a tensor is on: an attribute of the tensor, since its memory is the CPU's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

LABEL = "_ddpsim_gpu"
"""The attribute's name."""


def label_of(tensor: Tensor) -> int | None:
    """The number of its GPU; None for a tensor of the CPU."""
    return tensor.__dict__.get(LABEL)


def put(tensor: Tensor, label: int | None) -> None:
    """Put a tensor on a GPU, or with None on the CPU."""
    if label is not None:
        tensor.__dict__[LABEL] = label
    else:
        tensor.__dict__.pop(LABEL, None)


def first_label(values: Iterable[Any]) -> int | None:
    """That of the first tensor on a GPU among arguments and what they list."""
    for value in values:
        if isinstance(value, Tensor):
            if (label := value.__dict__.get(LABEL)) is not None:
                return label  # type: ignore[no-any-return]
        elif isinstance(value, (list, tuple)) and (label := first_label(value)) is not None:
            return label
    return None


def hand_on(result: Any, label: int) -> None:
    """Put what a function made on the GPU of its arguments."""
    if isinstance(result, Tensor):
        result.__dict__[LABEL] = label
    elif isinstance(result, (list, tuple)):
        for each in result:
            hand_on(each, label)


def put_all(value: Any, label: int) -> None:
    """Put all tensors of what was loaded on a GPU."""
    if isinstance(value, Tensor):
        put(value, label)
    elif isinstance(value, nn.Module):
        put_all([*value.parameters(), *value.buffers()], label)
    elif isinstance(value, Mapping):
        put_all(list(value.values()), label)
    elif isinstance(value, (list, tuple)):
        for each in value:
            put_all(each, label)
