"""Marks: NaN values and integers that contain the number of a call, to find reads of a tensor before the wait.

Note [Marks]. Most bits of a NaN are free, and results computed from a NaN keep them: hardware copies an operand's bits,
and conversions between float32 and float64 keep the highest. So the NaN of Note [Poison] contains a signature of ddpsim
and the number of the call. If such a value is found later, the program has read the tensor of that call before the
wait; a NaN that a program computes has other bits. Floats of 16 bits have no room for the number, those of 8 bits none
for the signature. Integers of 64 bits have room for both, but results computed from one are other numbers. Shorter
integers are filled with the largest value of their type.
"""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

MOST = (1 << 16) - 1
"""The largest call number that a mark (in a NaN) can contain."""
UNKNOWN = 0
"""The number in the marks of types that have no room for a call's number."""

_OURS = 0b101101
_BITS = {
    torch.float32: (torch.int32, 0x7FC00000, 0),
    torch.float64: (torch.int64, 0x7FF8000000000000, 29),
    torch.float16: (torch.int16, 0x7E00, -13),
    torch.bfloat16: (torch.int16, 0x7FC0, -16),
}
"""By dtype: the integer type of the same size, a NaN, and the left shift of the mark's 22 bits."""
SHORT = frozenset({"float16", "bfloat16"})
"""Types of tensors that have room for ddpsim's signature, but not for a call's number."""
_LONG = 0x7FFF_FFFF_D1CE_0000
"""The 64-bit integer that is a mark; the call's number is added to it."""
_ITEMS = 10_000
"""The most numbers and tensors that are searched for marks in one value."""


def is_plain_tensor(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, and neither of a subclass nor on the meta device."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta


def fill_with_mark(tensor: Tensor, number: int) -> None:
    """Fill a tensor with the mark (NaN with call number) of a call, or with its type's largest value if too small."""
    if tensor.is_complex():
        fill_with_mark(torch.view_as_real(tensor.resolve_conj()), number)
    elif tensor.dtype in _BITS:
        integer, nan, shift = _BITS[tensor.dtype]
        bits = nan | _shift_bits(_OURS << 16 | number, shift)
        if tensor.is_neg():  # a lazy negation, of which no other dtype is a view
            tensor.copy_(torch.tensor(bits, dtype=integer, device=tensor.device).view(tensor.dtype))
        else:
            tensor.view(integer).fill_(bits)
    elif tensor.is_floating_point():
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(integer_mark(tensor.dtype, number))


def integer_mark(dtype: torch.dtype, number: int | None) -> int:
    """Return the mark of a call for integers or booleans; the type's largest value if it has no room for a number."""
    if dtype is torch.bool:
        return True
    return torch.iinfo(dtype).max if number is None or dtype is not torch.int64 else _LONG | number


def has_room_for_signature(tensor: Tensor) -> bool:
    """Return whether `fill_with_mark` would write a mark with ddpsim's signature into the tensor."""
    return tensor.dtype in _BITS or tensor.dtype is torch.int64 or tensor.is_complex()


def remove_marks(tensor: Tensor) -> None:
    """Replace the marks (call numbers) in a tensor by plain NaN or by the largest integer."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.masked_fill_(tensor != tensor, float("nan"))
        elif tensor.dtype is torch.int64:
            tensor.masked_fill_(tensor >> 16 == _LONG >> 16, torch.iinfo(torch.int64).max)


def may_hold_poison(tensor: Tensor) -> bool:
    """Return whether a tensor has a value that `fill_with_mark` or `remove_marks` may have written."""
    if tensor.is_floating_point() or tensor.is_complex():
        return bool((tensor != tensor).any())
    return bool((tensor >= _LONG).any())


def call_numbers_in(value: Any) -> set[int]:
    """Return the call numbers in the marks that a value contains: a number, a tensor, an array or a container."""
    found: set[int] = set()
    for each, _ in zip(_numbers_and_tensors_in(value, set()), range(_ITEMS), strict=False):
        if isinstance(each, float):
            each = torch.tensor(each, dtype=torch.float64, device="cpu")
        found |= _call_numbers_in_tensor(each) if isinstance(each, Tensor) else _call_numbers_in_integers([each])
    return found


def _numbers_and_tensors_in(value: Any, seen: set[int]) -> Iterator[float | int | Tensor]:
    """Yield the numbers and tensors in a value: a number, a tensor, an array or a container."""
    if isinstance(value, (float, int, Tensor)):
        yield value
    elif isinstance(value, complex):
        yield from (value.real, value.imag)
    elif id(value) not in seen:
        seen.add(id(value))
        for each in _children_of(value):
            yield from _numbers_and_tensors_in(each, seen)


def _children_of(value: Any) -> Iterable[Any]:
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


def may_hold_mark(tensor: Tensor) -> bool:
    """Return whether a tensor may contain a mark: a fast check, made for each tensor that is passed to a call.

    A tensor with NaN is not equal to itself; on a GPU this may return True for any tensor, because torch may not
    compare there.
    """
    if not is_plain_tensor(tensor):
        return False
    if tensor.dtype is torch.int64:
        return may_hold_poison(tensor)
    if not (tensor.dtype in _BITS or tensor.is_complex()):
        return False
    return not (tensor.is_cpu and tensor.equal(tensor))


def _call_numbers_in_tensor(tensor: Tensor) -> set[int]:
    if not may_hold_mark(tensor):
        return set()
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    if values.dtype is torch.int64:
        return _call_numbers_in_integers(values[values >> 16 == _LONG >> 16].unique().tolist())
    nans = values[values != values]
    integer, _, shift = _BITS[values.dtype]
    marks = [_shift_bits(bits, -shift) & 0x3FFFFF for bits in nans.view(integer).unique().tolist()]
    return {mark & MOST for mark in marks if mark >> 16 == _OURS}


def _call_numbers_in_integers(values: Iterable[int]) -> set[int]:
    return {value & MOST for value in values if value >> 16 == _LONG >> 16}


def _shift_bits(bits: int, by: int) -> int:
    return bits << by if by >= 0 else bits >> -by
