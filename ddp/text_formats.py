"""How messages show dtypes, shapes, ranks and callables, without importing torch."""

from collections.abc import Sequence


def dtype_text(dtype: object) -> str:
    """Format a torch.dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def tensor_text(dtype: object, shape: Sequence[int]) -> str:
    """Format a dtype and shape, such as "float32[2, 3]"."""
    return f"{dtype_text(dtype)}{list(shape)}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Format ranks, such as "rank 3" or "ranks 0, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def callable_name(function: object) -> str:
    """Return the name of a function or method, or the class of another callable."""
    return str(getattr(function, "__qualname__", type(function).__name__))
