"""What a call with wrong arguments must end in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ErrorCase:
    """A call that raises `error`, with `message` somewhere in its text, on the given ranks; on all if there are none.

    The other ranks do not call. After a call that `loses_connections`, gloo's group is of no use any more.
    """

    id: str
    call: Callable[[int], object]
    error: type[Exception]
    message: str
    world_size: int = 2
    ranks: tuple[int, ...] = ()
    loses_connections: bool = False

    def program(self, rank: int) -> tuple[type[Exception], str] | None:
        """Make the call, and return what it raised."""
        if self.ranks and rank not in self.ranks:
            return None
        try:
            self.call(rank)
        except Exception as error:
            return type(error), str(error)
        return None

    def complaint(self, rank: int, raised: object) -> str | None:
        """Say what is wrong with what the program returned on `rank`."""
        if self.ranks and rank not in self.ranks:
            return None if raised is None else f"rank {rank} raised {raised!r}"
        if not isinstance(raised, tuple):
            return f"rank {rank} raised nothing"
        error, text = raised
        if error is not self.error or self.message not in text:
            return f"rank {rank} raised {error.__name__}: {text}"
        return None


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Some tensor, where only its kind matters."""
    return torch.zeros(shape, dtype=dtype)
