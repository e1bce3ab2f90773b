"""Installs virtual GPUs in the process of a rank: because of `--gpus`, or when a program asks for a GPU."""

import functools
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ddpsim.simulator.patches.not_simulated import NCCL_TIMEOUT, NCCL_VERSION
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.virtual_gpus import cuda_module
from ddpsim.simulator.virtual_gpus.announcement import FirstUseAnnouncement
from ddpsim.simulator.virtual_gpus.building import load_device
from ddpsim.simulator.virtual_gpus.gpu_kernels import register_kernels
from ddpsim.simulator.virtual_gpus.storages import replace_storages

_NCCL_OPTIONS = "leave pg_options out where torch.cuda.get_device_name() is 'ddpsim virtual GPU'"
_GRAPHS = "run without CUDA graphs where there is no GPU"

_UNSUPPORTED = {
    "CUDAGraph": _GRAPHS,
    "graph": _GRAPHS,
    "graph_pool_handle": _GRAPHS,
    "make_graphed_callables": _GRAPHS,
    "_compile_kernel": "run without kernels of CUDA source where there is no GPU",
    "CUDAPluggableAllocator": "leave the allocator as it is",
    "MemPool": "leave the allocator as it is",
}
"""Names in torch.cuda that virtual GPUs do not support, each with the advice in its error message."""


_TENSOR_KINDS = (
    *("FloatTensor", "HalfTensor", "BFloat16Tensor", "DoubleTensor", "LongTensor", "IntTensor", "ShortTensor"),
    *("CharTensor", "ByteTensor", "BoolTensor"),
)
"""The old constructors in torch.cuda."""


def _make_unsupported_class(name: str, remedy: str) -> type:
    """Return a class that raises when it is called: a class, because programs use such names in annotations."""

    def raise_unsupported(*arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(f"virtual GPUs have no {name}: {remedy}")

    return type(name.rpartition(".")[2], (), {"__new__": raise_unsupported})


class _NcclKind(type):
    """The kind of the classes of NCCL's groups: a simulated group counts as one of the class that torch would make."""

    def __instancecheck__(cls, value: Any) -> bool:
        plugins: Any = dist.Backend._plugins
        if not isinstance(value, dist.ProcessGroup) or "nccl" not in value.name():
            return False
        maker = getattr(plugins.get(value.name().upper()), "creator_fn", None)
        return cls.__name__ == _MADE_BY.get(getattr(maker, "__name__", ""), "ProcessGroupNCCL")


_MADE_BY = {
    "_create_nccl2_process_group": "ProcessGroupNCCL2",
    "_create_nccl_lazy_process_group": "ProcessGroupNCCLLazy",
}
"""torch's functions that make groups of other classes than ProcessGroupNCCL, since torch 2.14."""


class UnsupportedNccl(metaclass=_NcclKind):
    """Replaces torch.distributed.ProcessGroupNCCL and its successors."""

    Options = _make_unsupported_class("ProcessGroupNCCL.Options", _NCCL_OPTIONS)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        _make_unsupported_class("ProcessGroupNCCL", "make groups by init_process_group and new_group")()


def are_installed() -> bool:
    """Return whether this process, or one that it was forked from, has virtual GPUs."""
    return hasattr(torch.ops.ddpsim_gpu, "install")


class VirtualGpus:
    """The virtual GPUs of a rank, which has none until they are installed."""

    def __init__(self, announcement: FirstUseAnnouncement) -> None:
        self._announcement = announcement
        self._kernels: Any = None
        """The operators that are registered with torch as long as this object is there."""

    def install(self, count: int) -> None:
        """Give the program of this process `count` virtual GPUs."""
        is_installed = are_installed()
        load_device(self._announcement.announce_build)
        torch.ops.ddpsim_gpu.install(count, cuda_module.MEMORY_BYTES)
        if is_installed:  # in the server that this process was forked from
            return
        self._kernels = register_kernels()
        replaced = ReplacedAttributes()
        for name, value in (cuda_module.cuda_functions(count) | cuda_module.data_parallel_functions()).items():
            replaced.set_attribute(torch._C, name, value)
        unsupported = {name: _make_unsupported_class(f"torch.cuda.{name}", do) for name, do in _UNSUPPORTED.items()}
        for name, value in (cuda_module.cuda_module() | unsupported).items():
            for module in _imported_modules("torch.cuda"):
                if module is torch.cuda or name in vars(module):
                    replaced.set_attribute(module, name, value)
        for name in _TENSOR_KINDS:
            replaced.set_attribute(torch.cuda, name, _TensorKind(name, (), {"__module__": "torch.cuda"}))
        replaced.set_attribute(torch, "set_default_tensor_type", _set_default_tensor_type)
        torch.backends.mha.set_fastpath_enabled(False)  # it makes nested tensors, which have no form here
        replace_storages()
        _replace_libraries(self._announcement)


def _replace_libraries(announcement: FirstUseAnnouncement) -> None:
    replaced = ReplacedAttributes()
    replaced.set_attribute(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    replaced.set_attribute(dist, "is_nccl_available", lambda: True)
    for name in ("ProcessGroupNCCL", *(each for each in _MADE_BY.values() if hasattr(dist, each))):
        replaced.set_attribute(dist, name, _NcclKind(name, (UnsupportedNccl,), {}))
    replaced.set_attribute(dist.distributed_c10d, "default_pg_nccl_timeout", NCCL_TIMEOUT)
    replaced.set_attribute(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    replaced.set_attribute(torch.cuda.nccl, "is_available", lambda tensors: True)
    marks = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA", "deviceRangeStart", "deviceRangeEnd")
    replaced.set_attribute(torch.cuda.nvtx, "_nvtx", SimpleNamespace(**dict.fromkeys(marks, lambda *arguments: 0)))
    replaced.set_attribute(torch.version, "cuda", torch.version.cuda or cuda_module.CUDA_VERSION)
    _leave_out_compilation(announcement.announce_no_compilation)
    _leave_out_gpu_profiles()


def _leave_out_compilation(announce: Callable[[], None]) -> None:
    """Make torch.compile return its function unchanged, and run what a preloaded module has compiled as it is written:
    code for GPUs is compiled by triton."""

    def compile(model: Any = None, **options: Any) -> Any:
        announce()
        return model if model is not None else lambda function: function

    ReplacedAttributes().set_attribute(torch, "compile", compile)
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("force_eager")


def _leave_out_gpu_profiles() -> None:
    """Make the profiler ignore GPUs, because virtual GPUs run no kernels."""
    kind: Any = torch.autograd.profiler.profile
    begin = kind.__init__

    @functools.wraps(begin)
    def init_profiler_without_gpu(self: Any, *arguments: Any, **options: Any) -> None:
        options = {name: value for name, value in options.items() if name != "use_cuda"}
        begin(self, *arguments, **options | ({"use_device": None} if options.get("use_device") == "cuda" else {}))

    ReplacedAttributes().set_attribute(kind, "__init__", init_profiler_without_gpu)


def _imported_modules(name: str) -> list[ModuleType]:
    """Return a module and its imported submodules, which contain functions under the same names."""
    return [module for key, module in list(sys.modules.items()) if key == name or key.startswith(f"{name}.")]


def _set_default_tensor_type(kind: Any) -> None:
    """Set the default dtype and device, as torch's function does, which knows no types of a torch without CUDA."""
    path = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    torch.set_default_dtype(getattr(torch, path.rpartition(".")[2]).dtype)
    torch.set_default_device("cuda" if ".cuda." in path else None)


class _TensorKind(type):
    """The class of an old constructor of GPU tensors, such as torch.cuda.FloatTensor."""

    def __call__(cls, *arguments: Any) -> Any:
        return getattr(torch, cls.__name__)(*arguments).cuda()

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.type() == f"torch.cuda.{cls.__name__}"
