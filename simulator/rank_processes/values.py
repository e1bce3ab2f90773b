"""Pickles values of a user's program that a rank sends: its return value and its exception.

A class that pickle cannot find, such as one in a function's body, is identified by its address and its name. A class
from before the fork has the same address in both processes. The reader accepts only classes that it has.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any


def packed(value: Any) -> bytes:
    """Pickle a value. Raises pickle's error if it does not pickle."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """Unpickle a value. Raises pickle's error if a class or function is missing here."""
    return _Unpickler(io.BytesIO(data)).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, type) or _can_be_found(value):
            return None
        return id(value), value.__qualname__


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, named: Any) -> Any:
        place, name = named
        for each in _classes(object):
            if id(each) == place and each.__qualname__ == name:
                return each
        raise pickle.UnpicklingError(f"class {name} was made after the ranks were forked")


def _can_be_found(value: type) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _classes(root: type) -> Iterator[type]:
    seen: set[type] = {root}
    todo = [root]
    while todo:
        subclasses: list[type] = type.__subclasses__(todo.pop())
        for each in subclasses:
            if each not in seen:
                seen.add(each)
                todo.append(each)
                yield each
