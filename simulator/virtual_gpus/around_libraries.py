"""Replacements in modules when a program imports them: safetensors, and parts of torch's DTensor.

torch's DTensor draws random numbers with a tracker of generator states. The state of a GPU's generator is a seed and an
offset, and each shard begins at its own offset. The CPU's generator, which virtual GPUs use, has states of another
form. So the tracker here keeps a seed and an offset, and seeds the CPU's generator from both at each region: shards
draw different numbers and replicas equal ones, but not those of a real GPU.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ddpsim.simulator.process_group.gpu_labels import put_on_gpu
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.virtual_gpus.gpus import VirtualDevices


def replace_when_imported(gpus: VirtualDevices) -> None:
    """Change safetensors and parts of torch's DTensor now if they are imported, otherwise at their import."""
    changes: dict[str, Callable[[ModuleType], None]] = {
        "safetensors": _replace_safe_open,
        "torch.distributed.tensor._random": partial(replace_rng_tracker, gpus),
        "torch.distributed.tensor._op_schema": replace_shape_tensors,
    }
    for name in [name for name in changes if name in sys.modules]:
        changes.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _ChangingFinder(changes))


class _ChangingFinder(MetaPathFinder):
    """Import hook that finds modules as usual, and changes each module after it has been executed."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.pop(fullname, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(fullname)  # by the other finders: this one has removed the name
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                change(module)

            loader.exec_module = exec_module
        return spec


def _replace_safe_open(module: Any) -> None:
    """Make safetensors read files into the memory of the CPU when a program names a GPU."""
    original = module.safe_open

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        is_gpu = isinstance(device, int) or str(device).startswith("cuda")
        return original(filename, framework, device="cpu" if is_gpu else device, **options)

    ReplacedAttributes().set_attribute(module, "safe_open", safe_open)


def replace_rng_tracker(gpus: VirtualDevices, random: ModuleType) -> None:
    """Make the tracker of `torch.distributed.tensor._random` seed the generator of the CPU."""
    kind: Any = random.OffsetBasedRNGTracker
    make = kind.__init__

    @functools.wraps(make)
    def make_rng_tracker(self: Any, device_mesh: Any, run_state_sync: bool = True) -> None:
        self._states = _RngTrackerState(gpus)
        make(self, device_mesh, run_state_sync)
        if self._device.type == "cuda":
            self._device_handle = _DeviceModule

    def get_state(self: Any) -> Tensor:
        state: Tensor = self._states.current_state
        put_on_gpu(state, self._device.index)
        return state

    replaced = ReplacedAttributes()
    replaced.set_attribute(kind, "__init__", make_rng_tracker)
    replaced.set_attribute(kind, "_get_device_state", get_state)
    replaced.set_attribute(kind, "_set_device_state", lambda self, state: self._states.set_state(state))


def replace_shape_tensors(op_schema: ModuleType) -> None:
    """Make `torch.distributed.tensor._op_schema` compute shapes with fake tensors of the CPU.

    A build for CPUs lacks some CUDA kernels that fake tensors of a GPU would need, such as `uniform_`.
    """

    def make_cpu_shape_tensor(spec: Any) -> Tensor:
        meta = spec.tensor_meta
        made: Tensor = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")
        return made

    ReplacedAttributes().set_attribute(op_schema, "_rebuild_tensor_from_dtensor_meta", make_cpu_shape_tensor)


class _RngTrackerState:
    """The generator state of a rank's tracker of random numbers; seeding a generator resets it."""

    def __init__(self, gpus: VirtualDevices) -> None:
        self._gpus = gpus
        self._kept = torch.zeros(2, dtype=torch.int64)
        self._times_seeded = -1

    @property
    def current_state(self) -> Tensor:
        """The seed and the offset of the tracker, as sixteen bytes."""
        if self._times_seeded != self._gpus.times_seeded:
            self._times_seeded = self._gpus.times_seeded
            self._kept = torch.tensor([torch.default_generator.initial_seed() % 2**63, 0])
        state: Tensor = self._kept.view(torch.uint8).clone()
        return state

    def set_state(self, state: Tensor) -> None:
        """Set the seed and the offset of the tracker, given as sixteen bytes."""
        self._kept = state.detach().clone().view(torch.int64)


class _DeviceModule:
    """Replaces the device module (such as torch.cuda) that the tracker of random numbers uses."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def set_rng_state(state: Tensor) -> None:
        """Seed the CPU's generator from a seed and an offset."""
        digest = hashlib.blake2b(bytes(state.tolist()), digest_size=8).digest()
        torch.default_generator.manual_seed(int.from_bytes(digest, "little") >> 1)
