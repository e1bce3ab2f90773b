"""A window on memory that native code owns, for state which its own interface copies too slowly."""

from __future__ import annotations

import ctypes


def window(address: int, size: int) -> memoryview:
    """Return a writable view of `size` bytes at `address`. Keeping the memory alive is the caller's business."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
