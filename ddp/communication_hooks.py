"""Communication hooks, which reduce a bucket in place of the plain all_reduce.

The interface is torch's (`torch.distributed.GradBucket`, "Note [DDP Communication Hook]" in reducer.cpp): a hook gets
its state and a bucket and returns a future of the reduced flat tensor. torch's own hooks (fp16, bf16, PowerSGD, noop,
allreduce) run unmodified. With a hook the engine does not divide, since the hook averages.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ddpsim.ddp.errors import UsageError
from ddpsim.ddp.text_formats import callable_name

CommunicationHook: TypeAlias = "Callable[[object, GradBucket], torch.futures.Future[Tensor]]"


class GradBucket:
    """A bucket as a hook sees it, with the methods of torch.distributed.GradBucket."""

    def __init__(
        self, index: int, buffer: Tensor, gradients: Sequence[Tensor], parameters: Sequence[Tensor], *, is_last: bool
    ) -> None:
        self._index = index
        self._buffer = buffer
        self._gradients = gradients
        self._parameters = parameters
        self._is_last = is_last

    def index(self) -> int:
        """Return the bucket's number; buckets are reduced in this order."""
        return self._index

    def buffer(self) -> Tensor:
        """Return the flat gradients, undivided; a sparse gradient is not flattened."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace the flat tensor, for later steps of the hook, by one with as many elements."""
        self._gradients = _move_views(self._gradients, self._buffer, buffer)
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        """Return for each parameter a view into the flat tensor, of the parameter's shape."""
        return list(self._gradients)

    def parameters(self) -> list[Tensor]:
        """Return the parameters, in the order of the flat tensor."""
        return list(self._parameters)

    def is_last(self) -> bool:
        """Return whether this is the last bucket of the backward."""
        return self._is_last


def _move_views(views: Sequence[Tensor], old: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    """Return views of the new flat tensor at the same places that `views` have in the old flat tensor."""
    if old.is_sparse:
        return (new,)
    shift = new.storage_offset() - old.storage_offset()
    return tuple(new.as_strided(view.shape, view.stride(), view.storage_offset() + shift) for view in views)


def check_hook_result(future: object, hook: CommunicationHook) -> torch.futures.Future[Tensor]:
    """Return `future` if it is a valid result of a communication hook; else raise UsageError."""
    if isinstance(future, (torch.futures.Future, torch._C.Future)):
        return future  # type: ignore[return-value]
    raise UsageError(
        f"communication hook {callable_name(hook)} returned {type(future).__name__}, expected a torch.futures.Future "
        "of the reduced flat tensor: return dist.all_reduce(..., async_op=True).get_future(), or a Future with its "
        "result set"
    )


def reduced_tensor(value: object, expected: Tensor, *, seen: GradBucket, hook: CommunicationHook) -> Tensor:
    """Return the reduced tensor in a hook's future; its dtype may be that of a tensor put into the bucket."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        (value,) = value
    dtypes = (expected.dtype, seen.buffer().dtype)
    if isinstance(value, Tensor) and value.shape == expected.shape and value.dtype in dtypes:
        return value
    found = f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise UsageError(
        f"communication hook {callable_name(hook)} gave {found} for bucket {seen.index()}, expected the reduced "
        f"gradients as {expected.dtype}{list(expected.shape)}: decompress before the future completes"
    )
