"""Notices what ranks that are threads change in modules, of which real ranks would each have a copy, and takes it back.

What is compared, before and after a run, are the attributes of modules, of their classes and of the objects that they
name, and what is in lists, dicts and sets. Objects further down are not looked at. Modules of Python, torch and of what
tests are run with are left out: their state is the simulator's task, or no rank's.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

_LEFT_OUT = sys.stdlib_module_names | {
    *("torch", "torchgen", "numpy", "sympy", "mpmath", "networkx", "ddpsim", "functorch", "triton"),
    *("pytest", "_pytest", "pluggy", "xdist", "execnet", "hypothesis", "expecttest", "typing_extensions", "iniconfig"),
    *("pygments", "rich", "typer", "click", "shellingham", "msgspec", "tomlkit", "jinja2", "markupsafe", "joblib"),
    *("setuptools", "_distutils_hack", "pkg_resources", "jaraco", "more_itertools", "backports", "packaging"),
    *("tqdm", "colorama", "sortedcontainers", "filelock", "fsspec", "yaml", "psutil", "numba", "scipy", "pandas"),
}
_ABSENT: Any = object()


class _Value(NamedTuple):
    """The value of an attribute, and a copy of its elements if it is a list, dict or set."""

    value: Any
    elements: Any

    @classmethod
    def of(cls, value: Any) -> "_Value":
        return cls(value, value.copy() if type(value) in (list, dict, set) else None)

    def is_same(self, other: "_Value") -> bool:
        """True if both are the same object with the same elements."""
        mine, theirs = self.elements, other.elements
        if self.value is not other.value or mine is None:
            return self.value is other.value
        if type(mine) is dict:
            return mine.keys() == theirs.keys() and all(value is theirs[key] for key, value in mine.items())
        if type(mine) is list:
            return len(mine) == len(theirs) and all(one is two for one, two in zip(mine, theirs, strict=True))
        return bool(mine == theirs)

    def restored(self) -> Any:
        """Return the value, with its elements of then."""
        if self.elements is not None:
            self.value.clear()
            add = self.value.extend if type(self.elements) is list else self.value.update
            add(self.elements)
        return self.value


class ModuleStates:
    """The state of all modules at one moment."""

    def __init__(self) -> None:
        self._before = {id(owner): (owner, _values(owner)) for _, owner in _owners()}

    def changed_names(self) -> list[str]:
        """Return the names of attributes that have changed since then."""
        return [f"{name}.{attribute}" for name, owner in _owners() for attribute in self._changed(owner)]

    def restore(self) -> None:
        """Give the attributes that have changed their values of then."""
        for owner, values in self._before.values():
            for attribute in self._changed(owner):
                with suppress(AttributeError, TypeError):  # an attribute may be read-only
                    if attribute in values:
                        setattr(owner, attribute, values[attribute].restored())
                    else:
                        delattr(owner, attribute)

    def _changed(self, owner: Any) -> list[str]:
        if id(owner) not in self._before:
            return []
        before, now = self._before[id(owner)][1], _values(owner)
        absent = _Value(_ABSENT, None)
        both = [*now, *(name for name in before if name not in now)]
        return [name for name in both if not before.get(name, absent).is_same(now.get(name, absent))]


def _owners() -> Iterator[tuple[str, Any]]:
    """Yield each module, its classes and the objects that it names and whose class is no module's left out."""
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or _is_left_out(name):
            continue
        yield name, module
        for key, own in list(vars(module).items()):
            if isinstance(own, type):
                if own.__module__ == name:
                    yield f"{name}.{own.__qualname__}", own
            elif hasattr(own, "__dict__") and not callable(own) and not _is_left_out(type(own).__module__):
                yield f"{name}.{key}", own


def _is_left_out(module: str) -> bool:
    return module.partition(".")[0] in _LEFT_OUT


def _values(owner: Any) -> dict[str, _Value]:
    return {
        key: _Value.of(value)
        for key, value in list(vars(owner).items())
        if isinstance(key, str) and not key.startswith("__") and not isinstance(value, ModuleType)
    }
