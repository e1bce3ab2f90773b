"""Replaces attributes of modules, classes and objects, and restores them later."""

from collections.abc import Callable
from typing import Any

Replacement = tuple[Any, str, Callable[[Any], Any]]
"""(owner, name of its attribute, function that makes the replacement from the original)."""

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
