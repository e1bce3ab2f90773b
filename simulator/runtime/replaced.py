"""Replaces attributes of modules, classes and objects, and restores them later."""

import os
from collections.abc import Callable
from typing import Any, Protocol

Replacement = tuple[Any, str, Callable[[Any], Any]]
"""(owner, name of its attribute, function that makes the replacement from the original)."""

_OS, _POSIX = os.__name__, os.stat.__module__  # pickle finds a function of `os` by the first only


class RankThreads(Protocol):
    """What knows whether a rank runs here, such as a host."""

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank."""


def on_ranks(host: RankThreads, instead: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return what makes the replacement of a function: ranks call `instead(original, ...)`, and others the original."""

    def replacement_of(original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if host.is_rank_thread():
                return instead(original, *arguments, **options)
            return original(*arguments, **options)

        # By its names pickle finds it. `functools.wraps` takes ten times as long, in each run.
        call.__name__, call.__qualname__ = original.__name__, original.__qualname__
        call.__module__ = _OS if original.__module__ == _POSIX else original.__module__
        call.__wrapped__ = original  # type: ignore[attr-defined]
        return call

    return replacement_of


_ABSENT: Any = object()
"""Stands for an attribute that the owner itself does not have: it was inherited, or a builtin name."""


class ReplacedAttributes:
    """Attributes that are replaced now, with their originals, until `restore_attributes` is called."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def __bool__(self) -> bool:
        """True while any attribute is replaced."""
        return bool(self._originals)

    def replace_attribute(self, owner: Any, name: str, made_of: Callable[[Any], Any]) -> None:
        """Replace an owner's attribute by `made_of(original)`; the original is None if there is no such attribute."""
        self._originals.append((owner, name, owner.__dict__.get(name, _ABSENT)))  # quicker than set_attribute
        setattr(owner, name, made_of(getattr(owner, name, None)))

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Replace an owner's attribute by a value."""
        self._originals.append((owner, name, owner.__dict__.get(name, _ABSENT)))
        setattr(owner, name, value)

    def restore_attributes(self) -> None:
        """Restore all attributes, the last replaced first. May be called twice."""
        originals, self._originals = self._originals, []
        for owner, name, original in reversed(originals):
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
