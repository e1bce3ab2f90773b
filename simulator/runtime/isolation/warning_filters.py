"""The warning filters, and the functions that show a warning.

`warnings.catch_warnings` replaces these three attributes and puts them back on exit, so interleaved ranks would put
back each other's.

Python records the warnings that were shown in `__warningregistry__`, a global of each module that warns; these are too
many to swap. Ranks that still have the host's filters and functions share these records: a warning that one rank has
shown is not shown by the next (1,024 ranks do not each print the same deprecation). If a rank has changed its filters,
every switch from or to it clears the records. So inside `catch_warnings` each rank gets its warnings as if it were
alone; it may get one again after a context switch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


class WarningFilters:
    """The host's `warnings.filters`, of which each rank gets a copy, and a function that clears the shown warnings.

    The functions that `catch_warnings` swaps as well are in `settings.py`.
    """

    def __init__(self) -> None:
        module: dict[str, Any] = vars(warnings)
        self.base: list[Any] = module["filters"].copy()
        self.base_functions = (module["showwarning"], module["_showwarnmsg_impl"])
        self.forget_shown = _forgetter(module)

    def initial(self) -> list[Any]:
        """Return the filters of the host, in a new list."""
        return self.base.copy()


def _forgetter(module: dict[str, Any]) -> Callable[[], None]:
    """Return the function that notifies C code of changed filters, which invalidates every `__warningregistry__`."""
    if "_filters_mutated" in module:
        forget: Callable[[], None] = module["_filters_mutated"]
        return forget

    def forget_under_lock() -> None:  # Python 3.14 on
        with module["_lock"]:
            module["_filters_mutated_lock_held"]()

    return forget_under_lock
