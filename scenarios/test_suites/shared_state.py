"""Notices what ranks that are threads change in modules, of which real ranks would each have a copy, and takes it back.

What is compared, before and after a run, are the attributes of modules, of their classes and of the objects that they
name, and what is in lists, dicts and sets. Objects further down are not looked at. Modules of Python, torch and of what
tests are run with are left out: their state is the simulator's task, or no rank's. Of torch, what libraries patch is
compared. A module that ranks import is compared with what its import has made.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import torch

from ddpsim.simulator.runtime.late_modules import ImportWatch

_LEFT_OUT = sys.stdlib_module_names | {
    *("torch", "torchgen", "numpy", "sympy", "mpmath", "networkx", "ddpsim", "functorch", "triton"),
    *("pytest", "_pytest", "pluggy", "xdist", "execnet", "hypothesis", "expecttest", "typing_extensions", "iniconfig"),
    *("pygments", "rich", "typer", "click", "shellingham", "msgspec", "tomlkit", "jinja2", "markupsafe", "joblib"),
    *("setuptools", "_distutils_hack", "pkg_resources", "jaraco", "more_itertools", "backports", "packaging"),
    *("tqdm", "colorama", "sortedcontainers", "filelock", "fsspec", "yaml", "psutil", "numba", "scipy", "pandas"),
}
_OF_TORCH = "torch.distributed.distributed_c10d"
"""The module of torch whose state is taken back, too: ranks that are processes would end with it."""
_PATCHED = {
    "torch": torch,
    "torch.distributed": torch.distributed,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.autograd.Function": torch.autograd.Function,
    "torch.nn.Module": torch.nn.Module,
    "torch.optim.Optimizer": torch.optim.Optimizer,
}
"""What libraries patch in torch, each rank for itself."""


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


_NO_VALUE = _Value(object(), None)
"""Stands for the value of an attribute that does not exist."""


class ModuleStates:
    """The state of modules at one moment."""

    def __init__(self, *, only_torch: bool = False) -> None:
        """With `only_torch`, only the state of torch.distributed, such as the backends that a test registers."""
        self._before: list[tuple[str, Any, dict[str, _Value]]] = []
        for name, module in list(sys.modules.items()):
            if not only_torch or name.startswith(_OF_TORCH):
                self._note(name, module)
        self._watch = ImportWatch(
            lambda name: not _is_left_out(name), lambda module: self._note(module.__name__, module)
        )
        if not only_torch:
            self._before += [(name, owner, _values(owner)) for name, owner in _PATCHED.items()]
            self._watch.install()

    def _note(self, name: str, module: ModuleType) -> None:
        self._before += [(own, owner, _values(owner)) for own, owner in _owners(name, module)]

    def take_back(self) -> list[str]:
        """Give all attributes their values of then. Return the names of those that had changed, but for torch's."""
        self._watch.uninstall()
        changed = []
        for name, owner, values in self._before:
            now = _values(owner)
            for attribute in [*now, *(each for each in values if each not in now)]:
                before = values.get(attribute, _NO_VALUE)
                if before.is_same(now.get(attribute, _NO_VALUE)):
                    continue
                changed += [] if name.startswith(_OF_TORCH) else [f"{name}.{attribute}"]
                with suppress(AttributeError, TypeError):  # an attribute may be read-only
                    if before is _NO_VALUE:
                        delattr(owner, attribute)
                    else:
                        setattr(owner, attribute, before.restored())
        return changed


def _owners(name: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield a module, its classes and the objects that it names and whose class is no module's left out."""
    if not isinstance(module, ModuleType) or _is_left_out(name):
        return
    yield name, module
    for key, own in list(vars(module).items()):
        kind = type(own)  # an attribute of the object may be computed, and warn
        if issubclass(kind, type):
            if own.__module__ == name:
                yield f"{name}.{own.__qualname__}", own
        elif kind.__dictoffset__ and not callable(own) and not _is_left_out(kind.__module__):
            yield f"{name}.{key}", own


def _is_left_out(module: str) -> bool:
    return module.partition(".")[0] in _LEFT_OUT and module != _OF_TORCH


def _values(owner: Any) -> dict[str, _Value]:
    return {
        key: _Value.of(value)
        for key, value in list(object.__getattribute__(owner, "__dict__").items())
        if type(key) is str and not key.startswith("__") and not issubclass(type(value), ModuleType)
    }
