"""Tensors in transit: a rank copies the tensors of a call into memory that it shares with the coordinator.

Each rank has an arena: shared memory, mapped before the fork. Only used pages take memory. An arena is cleared when its
rank has no open call. Tensors that are not strided are pickled.
"""

import math
import mmap
import os
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddpsim.simulator.transport.modes import suspend_modes
from ddpsim.simulator.transport.payload import Payload

ARENA_BYTES = 1 << 36
"""The size of an arena: address space, not memory."""

_ALIGNMENT = 64
_KEPT_BYTES = 1 << 24
"""The part of an arena that keeps its memory when it is cleared."""

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class TensorPlace(NamedTuple):
    """The place of a contiguous tensor in an arena, the shared memory of a rank."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class PackedPayload(NamedTuple):
    """The tensors of a call (a `Payload`) in transit: places in shared memory instead of tensors."""

    inputs: tuple[TensorPlace | Tensor, ...]
    outputs: tuple[TensorPlace | Tensor, ...] | None
    """The output tensors; None if they are the inputs."""
    factor: Any = None
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    gathers: bool = False
    on_nccl: bool = False
    gpu: str | None = None
    order: tuple[int, ...] = ()


class SharedArena:
    """The memory that one rank shares with the coordinator. The rank fills it, and both read it."""

    def __init__(self, size: int = ARENA_BYTES, *, file: int | None = None) -> None:
        """Map the shared memory, in `file` if given. Raises OSError if the system has no address space left."""
        if file is None:
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        else:
            os.ftruncate(file, size)
            self._memory = mmap.mmap(file, size, flags=mmap.MAP_SHARED | _NO_RESERVE)
        self._size = size
        self._top = 0

    def close(self) -> None:
        """Unmap the memory; it lives on while tensors still lie in it."""
        with suppress(BufferError):
            self._memory.close()

    def free_all(self) -> None:
        """Free all space, because no call of the rank is open any more."""
        if self._top > _KEPT_BYTES:
            self._memory.madvise(mmap.MADV_REMOVE, 0, -(-self._top // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._top = 0

    def reserve_place(self, tensor: Tensor) -> TensorPlace | Tensor:
        """Reserve space for a tensor, without copying it; a tensor that is not strided is returned unchanged."""
        if tensor.layout is not torch.strided:
            return tensor.detach()
        size = tensor.numel() * tensor.element_size()
        if self._top + size > self._size:
            raise MemoryError(
                f"the tensors of this rank's open calls need more than {self._size} bytes: wait for some calls first"
            )
        piece = TensorPlace(tensor.dtype, tuple(tensor.shape), self._top)
        self._top += -(-size // _ALIGNMENT) * _ALIGNMENT
        return piece

    def tensor_at(self, piece: TensorPlace | Tensor) -> Tensor:
        """Return the tensor at this place."""
        if isinstance(piece, Tensor):
            return piece
        dtype, shape, offset = piece
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).view(shape)

    def pack_payload(self, payload: Payload) -> PackedPayload:
        """Copy the tensors that a rank passes to a call into the shared memory."""
        with torch.no_grad():
            inputs = tuple([self._copy_in(tensor) for tensor in payload.inputs])
            if payload.outputs is payload.inputs:
                outputs = None
            else:
                known = {id(tensor): piece for tensor, piece in zip(payload.inputs, inputs, strict=True)}
                outputs = tuple([known.get(id(tensor)) or self.reserve_place(tensor) for tensor in payload.outputs])
        gathers = payload.gathered is not None
        return PackedPayload(inputs, outputs, payload.factor, payload.splits, gathers, *payload[5:])

    def _copy_in(self, tensor: Tensor) -> TensorPlace | Tensor:
        piece = self.reserve_place(tensor)
        if isinstance(piece, TensorPlace):
            self.tensor_at(piece).copy_(tensor.detach())
        return piece

    def unpack_payload(self, parcel: PackedPayload) -> Payload:
        """Return the tensors that `pack_payload` has copied, as views of the shared memory."""
        inputs = [self.tensor_at(piece) for piece in parcel.inputs]
        outputs = inputs if parcel.outputs is None else [self.tensor_at(piece) for piece in parcel.outputs]
        gathered: list[Tensor] | None = [] if parcel.gathers else None
        return Payload(inputs, outputs, parcel.factor, parcel.splits, gathered, *parcel[5:])

    def copy_result_out(self, payload: Payload, parcel: PackedPayload, left: Any) -> None:
        """Copy the result of a call from the shared memory into the rank's tensors."""
        pieces = parcel.inputs if parcel.outputs is None else parcel.outputs
        left = left or {}
        with suspend_modes(), torch._C._AutoDispatchBelowADInplaceOrView():
            for index, (tensor, piece) in enumerate(zip(payload.outputs, pieces, strict=True)):
                tensor.copy_(left[index] if index in left else self.tensor_at(piece))
        if payload.gathered is not None:
            payload.gathered.append(left[_GATHERED])


_GATHERED = -1


def outputs_outside_arena(payload: Payload) -> dict[int, Tensor] | None:
    """Return the output tensors of a call that are not in shared memory, by index; None if there are none."""
    left = {index: tensor for index, tensor in enumerate(payload.outputs) if tensor.layout is not torch.strided}
    if payload.gathered:
        left[_GATHERED] = payload.gathered[0]
    return left or None
