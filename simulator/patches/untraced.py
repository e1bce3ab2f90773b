"""Dynamo, which torch.compile traces programs by, leaves the simulator's own functions as they are.

Below torch's own DDP there is C++, which is not traced. In its place there is Python here: traced, it would be compiled
with the program, and what it asks of the kernel with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.nn.modules import module as modules

from ddpsim import simulator


def leave_untraced() -> None:
    """Tell dynamo, if it is loaded; late_dynamo.py does when it is."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not any(simulator.__file__.startswith(folder) for folder in rules.SKIP_DIRS):
        rules.add(simulator.__name__)


def has_hook_of_others(ours: int, original: Callable[[], Any]) -> Callable[[], Any]:
    """For `_has_any_global_hook`, by which compiled modules warn of hooks on all modules; `ours` is told by its id."""
    hooks: Any = modules._global_forward_pre_hooks

    def has_any_global_hook() -> Any:
        hook = hooks.pop(ours)
        try:
            return original()
        finally:
            hooks[ours] = hook
            hooks.move_to_end(ours, last=False)

    return has_any_global_hook
