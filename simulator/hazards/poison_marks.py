"""NaN that says which call it stands for.

Note [Marks]. Of a NaN most bits are free, and what is computed from one keeps them: hardware hands an operand's on, and
conversions between float32 and float64 keep the highest. So the NaN of Note [Poison] is not just any: it holds a sign
that it is ours, and the number of the call. Where one comes to light, somebody has read before the wait, and it says
which wait; a NaN that a program computes itself has other bits. Floats of 16 bits have no room for the number, those
of 8 none for the sign. Integers of 64 bits have room for both, and nobody counts as far; but what is computed from one
is another number. A shorter one can only be the largest of its type.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

MOST = (1 << 16) - 1
"""The largest number."""
UNKNOWN = 0
"""Stands for the number where there is no room for it."""

_OURS = 0b101101
_BITS = {
    torch.float32: (torch.int32, 0x7FC00000, 0),
    torch.float64: (torch.int64, 0x7FF8000000000000, 29),
    torch.float16: (torch.int16, 0x7E00, -13),
    torch.bfloat16: (torch.int16, 0x7FC0, -16),
}
"""Of each dtype the integer of its size, a NaN, and how far 22 bits, sign and number, are to be shifted into it."""
SHORT = frozenset({"float16", "bfloat16"})
"""Of these only the sign has room."""
_LONG = 0x7FFF_FFFF_D1CE_0000
"""With the number of a call, an integer of 64 bits that nobody else has."""
_ITEMS = 10_000
"""So many values are looked at."""


def fill(tensor: Tensor, number: int) -> None:
    """Overwrite a tensor with what shows: the NaN of a call, or the largest number of the type."""
    if tensor.is_complex():
        fill(torch.view_as_real(tensor.resolve_conj()), number)
    elif tensor.dtype in _BITS:
        integer, nan, shift = _BITS[tensor.dtype]
        bits = nan | _shifted(_OURS << 16 | number, shift)
        if tensor.is_neg():  # a lazy negation, of which no other dtype is a view
            tensor.copy_(torch.tensor(bits, dtype=integer, device=tensor.device).view(tensor.dtype))
        else:
            tensor.view(integer).fill_(bits)
    elif tensor.is_floating_point():
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(whole_number(tensor.dtype, number))


def whole_number(dtype: torch.dtype, number: int | None) -> int:
    """What stands for a call in a tensor of integers, or of truth values; after `unmark`, for none."""
    if dtype is torch.bool:
        return True
    return torch.iinfo(dtype).max if number is None or dtype is not torch.int64 else _LONG | number


def is_told(tensor: Tensor) -> bool:
    """True if what it is filled with says that it is ours."""
    return tensor.dtype in _BITS or tensor.dtype is torch.int64 or tensor.is_complex()


def unmark(tensor: Tensor) -> None:
    """Let any NaN stand where that of a call does."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.masked_fill_(tensor != tensor, float("nan"))
        elif tensor.dtype is torch.int64:
            tensor.masked_fill_(tensor >> 16 == _LONG >> 16, torch.iinfo(torch.int64).max)


def holds_poison(tensor: Tensor) -> bool:
    """True if something in it may be a call's, be it marked or not."""
    if tensor.is_floating_point() or tensor.is_complex():
        return bool((tensor != tensor).any())
    return bool((tensor >= _LONG).any())


def numbers_in(value: Any) -> set[int]:
    """The numbers of the calls whose marks a value holds: a number, a tensor or array, or what contains them."""
    found: set[int] = set()
    for each, _ in zip(_parts(value, set()), range(_ITEMS), strict=False):
        if isinstance(each, Tensor):
            found |= _in_tensor(each)
        else:
            found |= _in_float(each) if isinstance(each, float) else _in_integers([each])
    return found


def _parts(value: Any, seen: set[int]) -> Iterator[float | int | Tensor]:
    """The numbers and tensors of a value."""
    if isinstance(value, (float, int, Tensor)):
        yield value
    elif isinstance(value, complex):
        yield from (value.real, value.imag)
    elif id(value) not in seen:
        seen.add(id(value))
        for each in _inside(value):
            yield from _parts(each, seen)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return list(getattr(value, "__dict__", {}).values())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "fci":
        return [torch.from_numpy(numpy.atleast_1d(value).copy())]
    return ()


def _in_float(value: float) -> set[int]:
    if value == value:
        return set()
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return _numbers([bits >> 29 & 0x3FFFFF])


def may_hold_mark(tensor: Tensor) -> bool:
    """False for a tensor that holds no NaN, and no integer of ours, as most do: asked of each, in one call of torch.

    Not of one on a GPU, where a tensor may be equal to itself whatever it holds.
    """
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided or tensor.is_meta:
        return False
    if tensor.dtype is torch.int64:
        return holds_poison(tensor)
    if not (tensor.dtype in _BITS or tensor.is_complex()):
        return False
    return not (tensor.is_cpu and tensor.equal(tensor))


def _in_tensor(tensor: Tensor) -> set[int]:
    if not may_hold_mark(tensor):
        return set()
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    if values.dtype is torch.int64:
        return _in_integers(values[values >> 16 == _LONG >> 16].unique().tolist())
    nans = values[values != values]
    integer, _, shift = _BITS[values.dtype]
    return _numbers(_shifted(bits, -shift) & 0x3FFFFF for bits in nans.view(integer).unique().tolist())


def _in_integers(values: Iterable[int]) -> set[int]:
    return {value & MOST for value in values if value >> 16 == _LONG >> 16}


def _numbers(marks: Iterable[int]) -> set[int]:
    return {mark & MOST for mark in marks if mark >> 16 == _OURS}


def _shifted(bits: int, by: int) -> int:
    return bits << by if by >= 0 else bits >> -by
