"""The virtual GPUs of a rank: how many there are, and which one is current."""

from __future__ import annotations

from typing import Any

import torch

CPU = torch.device("cpu")


class Gpus:
    """Numbers of GPUs, as a program writes them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = 0
        self.times_seeded = 0
        """How often the program has seeded their generator."""

    def index_of(self, device: Any = None) -> int:
        """The number of the GPU that is meant. Raises what torch does if there is none of that number."""
        index = self._index(device)
        if not 0 <= index < self.count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: the program asks for cuda:{index}, and there are {self.count} "
                f"virtual GPUs, numbered from 0: run with --gpus {index + 1}, or take another one"
            )
        return index

    def _index(self, device: Any) -> int:
        if device is None:
            return self.current
        if isinstance(device, int):
            return self.current if device == -1 else device
        device = torch.device(device)
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return self.current if device.index is None else device.index

    def label_for(self, device: Any) -> int | None:
        """The number of the GPU, if a device is one; None if it is another device."""
        if isinstance(device, bool):
            return None
        if isinstance(device, int):
            return self.index_of(device)
        if isinstance(device, str):
            return self.index_of(device) if device.startswith("cuda") else None
        if isinstance(device, torch.device):
            return self.index_of(device) if device.type == "cuda" else None
        return None
