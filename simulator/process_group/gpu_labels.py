"""Which virtual GPU a tensor is on: an attribute of the tensor, since its memory is the CPU's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

LABEL = "_ddpsim_gpu"
"""The attribute's name."""


MADE_ON_CPU = "_ddpsim_made_on_cpu"
"""The name of an attribute of tensors that the program has certainly made on the CPU."""


def is_surely_on_cpu(tensor: Tensor) -> bool:
    """True for what the program made there, and did not move; of other tensors without a label nobody knows."""
    known = tensor.__dict__
    return MADE_ON_CPU in known and LABEL not in known


def label_of(tensor: Tensor) -> int | None:
    """The number of its GPU; None for a tensor of the CPU."""
    return tensor.__dict__.get(LABEL)


def put(tensor: Tensor, label: int | None) -> None:
    """Put a tensor on a GPU, or with None on the CPU."""
    tensor.__dict__.pop(MADE_ON_CPU, None)
    if label is not None:
        tensor.__dict__[LABEL] = label
    else:
        tensor.__dict__.pop(LABEL, None)


def put_on_cpu(tensor: Tensor) -> None:
    """Say that a tensor is on the CPU, since the program has said so, or made it without a word of a device."""
    tensor.__dict__[MADE_ON_CPU] = True


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
