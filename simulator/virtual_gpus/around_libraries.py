"""Libraries that make tensors on a GPU in native code of their own; what is replaced once a program imports them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE = "safetensors"


def replace_when_imported() -> None:
    """Heed imports of this process."""
    if _MODULE in sys.modules:
        _read_on_cpu(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the one module as others do, and gets it ready when it has been run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)  # it is found once
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = _then(loader.exec_module, _read_on_cpu)
        return spec


def _then(run: Callable[[ModuleType], None], change: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        run(module)
        change(module)

    return exec_module


def _read_on_cpu(module: Any) -> None:
    """A file is read into the memory of the CPU, whatever device is named."""
    original = module.safe_open

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        is_gpu = isinstance(device, int) or str(device).startswith("cuda")
        return original(filename, framework, device="cpu" if is_gpu else device, **options)

    module.safe_open = safe_open
