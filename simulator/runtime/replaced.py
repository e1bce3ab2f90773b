"""Attributes that are replaced, and put back in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Replacement = tuple[Any, str, Callable[[Any], Any]]
"""An owner, the name of its attribute, and what makes the replacement of what is there."""

_ABSENT: Any = object()
"""In the place of what an owner does not have itself, but from a class above it, or built in."""


class Replaced:
    """What stands in the place of attributes, until `put_back`."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def __bool__(self) -> bool:
        """True while something is replaced."""
        return bool(self._originals)

    def replace(self, owner: Any, name: str, made_of: Callable[[Any], Any]) -> None:
        """Put what is made of an attribute in its place; it is made of None where there is no such attribute."""
        self.put(owner, name, made_of(getattr(owner, name, None)))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Put a value in the place of an attribute."""
        self._originals.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def put_back(self) -> None:
        """Put everything back, the last first. May be called twice."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
