"""Notices what ranks that are threads change in modules: real ranks would each have a copy.

The values of all attributes of modules and of their classes are compared before and after a run, by identity, and
containers by their sizes, too. Modules of Python, torch and of what tests are run with are left out: their state is the
simulator's task, or no rank's.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_LEFT_OUT = sys.stdlib_module_names | {
    *("torch", "torchgen", "numpy", "sympy", "mpmath", "networkx", "ddpsim", "functorch", "triton"),
    *("pytest", "_pytest", "pluggy", "xdist", "execnet", "hypothesis", "expecttest", "typing_extensions"),
}
_CONTAINERS = (list, dict, set)


class ModuleStates:
    """The state of all modules at one moment."""

    def __init__(self) -> None:
        self._before = {name: dict(values) for name, values in _states()}

    def changed_names(self) -> list[str]:
        """Return the names of attributes that have changed since then."""
        return [
            f"{owner}.{name}"
            for owner, values in _states()
            if owner in self._before
            for name, value in values.items()
            if self._before[owner].get(name, (None, -1)) != value
        ]


class _Same:
    """A value that equals itself only, and is kept alive until it was compared."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def _states() -> Iterator[tuple[str, dict[str, tuple[_Same, int]]]]:
    """Yield the name of each module and class, and its attributes, each with the size if it is a container."""
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or name.partition(".")[0] in _LEFT_OUT:
            continue
        yield name, _attributes(vars(module))
        for own in list(vars(module).values()):
            if isinstance(own, type) and own.__module__ == name:
                yield f"{name}.{own.__qualname__}", _attributes(vars(own))


def _attributes(of: Any) -> dict[str, tuple[_Same, int]]:
    return {
        key: (_Same(value), len(value) if type(value) in _CONTAINERS else -1)
        for key, value in list(of.items())
        if not key.startswith("__") and not isinstance(value, ModuleType)
    }
