"""Storages of virtual GPUs, which torch makes and resizes by code that is compiled with CUDA alone."""

from typing import Any

import torch

from ddpsim.simulator.runtime.replaced import ReplacedAttributes


def replace_storages() -> None:
    """Make torch.UntypedStorage create and resize storages on virtual GPUs."""
    kind: Any = torch.UntypedStorage
    make, resize = kind.__new__, kind.resize_

    def new(cls: Any, *arguments: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return make(cls, *arguments, **options, **({} if device is None else {"device": device}))
        values = arguments[0] if arguments else 0
        if isinstance(values, int):
            return torch.empty(values, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(values, dtype=torch.uint8, device=device).untyped_storage()

    def resize_storage(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        torch.ops.ddpsim_gpu.resize_storage(torch.empty(0, dtype=torch.uint8, device=self.device).set_(self), size)
        return self

    replaced = ReplacedAttributes()
    replaced.set_attribute(kind, "__new__", staticmethod(new))
    replaced.set_attribute(kind, "resize_", resize_storage)
