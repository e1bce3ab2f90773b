"""Kernels that only a GPU has, told in a line that says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import resolve_name

_SIGNS = (
    "Could not run '",
    "not implemented for '",
    "no kernel",
    "only supported on CUDA",
    "PyTorch is not linked with",
)
"""What torch's errors say where there is no kernel for the CPU."""


def explained(func: Callable[..., Any], error: RuntimeError) -> NotImplementedError | None:
    """What to raise instead of torch's error, if a kernel is what is missing."""
    text = str(error)
    if not any(sign in text for sign in _SIGNS):
        return None
    name = resolve_name(func) or getattr(func, "__name__", repr(func))
    reason = text.splitlines()[0].strip()
    return NotImplementedError(
        f"{name} has no form on the CPU, where virtual GPUs compute ({reason}): take another dtype or implementation"
    )
