"""The warning filters, and the functions that show a warning.

`warnings.catch_warnings` replaces these three attributes and puts them back on exit, so interleaved ranks would put
back each other's.

Which warnings were shown already is noted in `__warningregistry__`, a global of each module that warns; there are too
many to swap. Ranks with the filters and functions that the host had at `install` share those notes: what one of them
has shown is not shown again by the next, as in one process (1,024 ranks do not each print the same deprecation). As
soon as a rank has others, every switch from or to it makes Python forget the notes, so that inside `catch_warnings`
each rank meets its warnings as if it were alone; a rank may then meet one again after a context switch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


class WarningFilters:
    """`warnings.filters`, a list of its own for each rank, and when Python has to forget what it has shown.

    The functions that `catch_warnings` swaps along with it are settings (`settings.py`).
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
    """Return the function that tells C that the filters are others, which voids every `__warningregistry__`."""
    if "_filters_mutated" in module:
        forget: Callable[[], None] = module["_filters_mutated"]
        return forget

    def forget_under_lock() -> None:  # Python 3.14 on
        with module["_lock"]:
            module["_filters_mutated_lock_held"]()

    return forget_under_lock
