"""The debug level of torch.distributed, a C++ global that DDP's Reducer also reads.

Reading it at each context switch would take as long as several other settings. So the functions that set it are
replaced by ones that also record the value. A call of an original function that was bound earlier is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._C._distributed_c10d as _c10d
import torch.distributed as dist

from ddpsim.simulator.runtime.replaced import Replaced

_SETTERS = ("set_debug_level", "set_debug_level_from_env")


class DebugLevel:
    """The current debug level, kept up to date by replacing the functions that set it."""

    __slots__ = ("_replaced", "_set", "value")

    def __init__(self) -> None:
        self.value: Any = _c10d.get_debug_level()
        """The level in place. Equal levels are the same object."""
        self._set = _c10d.set_debug_level
        self._replaced = Replaced()

    def install(self) -> None:
        """Replace the functions that set the level."""
        for module in (dist, _c10d):
            for name in _SETTERS:
                self._replaced.replace(module, name, self._noting)

    def uninstall(self) -> None:
        """Restore the functions."""
        self._replaced.put_back()

    def write(self, value: Any) -> None:
        """Set the level if it differs."""
        if value is not self.value:
            self._set(value)
            self.value = value

    def _noting(self, original: Callable[..., None]) -> Callable[..., None]:
        def set_level(*arguments: Any) -> None:
            original(*arguments)
            level = _c10d.get_debug_level()
            if level != self.value:
                self.value = level

        return set_level
