"""What virtual GPUs do not have: each says so in one line when a program asks for it."""

from __future__ import annotations

from typing import Any, NoReturn

_NCCL_OPTIONS = "leave pg_options out where torch.cuda.get_device_name() is 'ddpsim virtual GPU'"
_GRAPHS = "run without CUDA graphs where there is no GPU"

REFUSED = {
    "CUDAGraph": _GRAPHS,
    "graph": _GRAPHS,
    "make_graphed_callables": _GRAPHS,
    "CUDAPluggableAllocator": "leave the allocator as it is",
    "MemPool": "leave the allocator as it is",
}
"""Names in torch.cuda, and what to do instead."""


def refusing(name: str, advice: str) -> type:
    """A class, since programs name such in annotations, that only says that it is not there."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(f"virtual GPUs have no {name}: {advice}")

    return type(name.rpartition(".")[2], (), {"__new__": refuse})


class NoNccl:
    """Stands for torch.distributed.ProcessGroupNCCL."""

    Options = refusing("ProcessGroupNCCL.Options", _NCCL_OPTIONS)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        refusing("ProcessGroupNCCL", "make groups by init_process_group and new_group")()
