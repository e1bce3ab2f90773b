"""The debug level of torch.distributed, a global of C++ that DDP's Reducer reads, too.

To read it at each context switch would take as long as several other settings, so the functions that set it take a note
while a simulation runs. Whoever has bound one of them by name before is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._C._distributed_c10d as _c10d
import torch.distributed as dist

from ddpsim.simulator.runtime.replaced import Replaced

_SETTERS = ("set_debug_level", "set_debug_level_from_env")


class DebugLevel:
    """What it is, and who sets it."""

    __slots__ = ("_replaced", "_set", "value")

    def __init__(self) -> None:
        self.value: Any = _c10d.get_debug_level()
        """The one in place; always the same object for it."""
        self._set = _c10d.set_debug_level
        self._replaced = Replaced()

    def install(self) -> None:
        """Take note of what sets it."""
        for module in (dist, _c10d):
            for name in _SETTERS:
                self._replaced.replace(module, name, self._noting)

    def uninstall(self) -> None:
        """Put the functions back."""
        self._replaced.put_back()

    def write(self, value: Any) -> None:
        """Set it, if it is another."""
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
