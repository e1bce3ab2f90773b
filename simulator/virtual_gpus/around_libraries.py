"""Replacements in modules when a program imports them: safetensors, and parts of torch's DTensor."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ddpsim.simulator.runtime.replaced import Replaced
from ddpsim.simulator.virtual_gpus.gpus import Gpus
from ddpsim.simulator.virtual_gpus.sharded_random import replace_fakes, replace_tracker


def replace_when_imported(gpus: Gpus) -> None:
    """Change these modules now if they are imported, otherwise when they are."""
    changes: dict[str, Callable[[ModuleType], None]] = {
        "safetensors": _read_on_cpu,
        "torch.distributed.tensor._random": partial(replace_tracker, gpus),
        "torch.distributed.tensor._op_schema": replace_fakes,
    }
    for name in [name for name in changes if name in sys.modules]:
        changes.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Finder(changes))


class _Finder(MetaPathFinder):
    """Finds the modules as the other finders do, and changes each after it has been executed."""

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
            loader.exec_module = _then(loader.exec_module, change)
        return spec


def _then(run: Callable[[ModuleType], None], change: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        run(module)
        change(module)

    return exec_module


def _read_on_cpu(module: Any) -> None:
    """Make safetensors read files into the memory of the CPU when a program names a GPU."""
    original = module.safe_open

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        is_gpu = isinstance(device, int) or str(device).startswith("cuda")
        return original(filename, framework, device="cpu" if is_gpu else device, **options)

    Replaced().put(module, "safe_open", safe_open)
