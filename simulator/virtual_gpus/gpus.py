"""The virtual GPUs of a rank: how many there are, and which one is current."""

from __future__ import annotations

from typing import Any

import torch

CPU = torch.device("cpu")


class VirtualDevices:
    """Converts the devices that a program names to numbers of virtual GPUs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = 0
        self.is_used = False
        """True once the program has named a GPU, or asked for the current one: torch initializes CUDA then."""
        self.times_seeded = 0
        """How often the program has seeded the generator of the GPUs."""

    def index_of(self, device: Any = None) -> int:
        """Return the number of a virtual GPU, by default the current one. Raises torch's error if the number is too
        large."""
        self.is_used = True
        index = self._requested_index(device)
        if not 0 <= index < self.count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: the program asks for cuda:{index}, and there are {self.count} "
                f"virtual GPUs, numbered from 0: run with --gpus {index + 1}, or take another one"
            )
        return index

    def _requested_index(self, device: Any) -> int:
        if device is None:
            return self.current
        if isinstance(device, int):
            return self.current if device == -1 else device
        device = torch.device(device)
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return self.current if device.index is None else device.index

    def label_for(self, device: Any) -> int | None:
        """Return the number of the virtual GPU that `device` is; None if it is another device."""
        is_number = isinstance(device, int) and not isinstance(device, bool)
        is_named = isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
        return self.index_of(device) if is_number or is_named else None
