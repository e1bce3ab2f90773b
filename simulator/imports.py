"""Imports: without garbage collection, and with a message for a torch that is too old. This module imports no torch.

The created objects stay alive, so a collection would find nothing. Collections take a tenth of the time of torch's
import, a third of what ddpsim imports in addition, and most of the time in which millions of values are read.
"""

import gc
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

OLDEST = (2, 11)

TESTED = (("3.11", "2.13"), ("3.13", "2.15"), ("3.11", "2.11"), ("3.10", "2.14"))
"""The versions of Python and torch that ddpsim was tested with, as listed in docs/versions.md."""


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Disable Python's garbage collection in this block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_public_name(module: str, name: str) -> Any:
    """Import a module and return its attribute `name`. If torch is too old, the ImportError names its version."""
    try:
        with pause_garbage_collection():
            return getattr(importlib.import_module(module), name)
    except ImportError:
        if line := torch_too_old_message():
            raise ImportError(line) from None
        raise


def importer_of_public_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__`, which imports a public name from its module when it is first asked for.

    torch takes a second to import, and neither `ddpsim --help`, a mistyped option nor a saved report needs it.
    """

    def import_when_asked_for(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = vars(sys.modules[package])[name] = import_public_name(homes[name], name)
        return value

    return import_when_asked_for


def installed_version(distribution: str) -> str:
    """Return the version of an installed package; "" if it is not installed."""
    from importlib import metadata  # slow to import

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def torch_too_old_message() -> str:
    """Return a message if the imported torch is too old, else "".

    Call it also on an ImportError, by which an old torch may first show.
    """
    found = str(getattr(sys.modules.get("torch"), "__version__", ""))
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return ""
    oldest = ".".join(map(str, OLDEST))
    return f"torch is {found}, expected {oldest} or newer: pip install 'torch>={oldest}'"
