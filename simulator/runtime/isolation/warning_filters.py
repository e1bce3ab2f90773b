"""The warning filters, and the functions that show a warning.

`warnings.catch_warnings` replaces these three attributes and puts them back on exit, so interleaved ranks would put
back each other's.

Which warnings were shown already is noted in `__warningregistry__`, a global of each module that warns; there are too
many to swap. Ranks with the filters and functions that the host had at `install` share those notes: what one of them
has shown is not shown again by the next, as in one process (1,024 ranks do not each print the same deprecation). As
soon as a rank has others, every hand-over from or to it makes Python forget the notes, so that inside `catch_warnings`
each rank meets its warnings as if it were alone; a rank may then meet one again after a hand-over.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

FilterState = tuple[list[Any], object, object]


class WarningFilters:
    """`warnings.filters`, a list of its own for each rank, and what `catch_warnings` swaps along with it."""

    def __init__(self) -> None:
        self._module: dict[str, Any] = vars(warnings)
        filters, show, implementation = (
            self._module["filters"],
            self._module["showwarning"],
            self._module["_showwarnmsg_impl"],
        )
        self._base: FilterState = (filters.copy(), show, implementation)
        self._outgoing = self._base
        self._forget_shown = _forgetter(self._module)

    def install(self) -> None:
        """Nothing to prepare."""

    def initial(self, rank: int) -> FilterState:
        """Return the filters of the host, in a new list."""
        filters, show, implementation = self._base
        return (filters.copy(), show, implementation)

    def save(self) -> FilterState:
        """Return what is in place."""
        module = self._module
        state = (module["filters"], module["showwarning"], module["_showwarnmsg_impl"])
        self._outgoing = state
        return state

    def load(self, state: FilterState) -> None:
        """Put filters and functions in place."""
        module = self._module
        module["filters"], module["showwarning"], module["_showwarnmsg_impl"] = state
        if state != self._base or self._outgoing != self._base:
            self._forget_shown()

    def uninstall(self) -> None:
        """Nothing to undo."""


def _forgetter(module: dict[str, Any]) -> Callable[[], None]:
    """Return the function that tells C that the filters are others, which voids every `__warningregistry__`."""
    if "_filters_mutated" in module:
        forget: Callable[[], None] = module["_filters_mutated"]
        return forget

    def forget_under_lock() -> None:  # Python 3.14 on
        with module["_lock"]:
            module["_filters_mutated_lock_held"]()

    return forget_under_lock
