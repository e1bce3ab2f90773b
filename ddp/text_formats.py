"""How errors and descriptions spell what is no word: dtypes, shapes, ranks, callables. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence


def dtype_text(dtype: object) -> str:
    """A torch.dtype, as in "float32"."""
    return str(dtype).removeprefix("torch.")


def tensor_text(dtype: object, shape: Sequence[int]) -> str:
    """As in "float32[2, 3]"."""
    return f"{dtype_text(dtype)}{list(shape)}"


def ranks_text(ranks: Sequence[int]) -> str:
    """As in "rank 3" or "ranks 0, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def callable_name(function: object) -> str:
    """What a function or method is called, or the class of another callable."""
    return str(getattr(function, "__qualname__", type(function).__name__))
