"""Values of a user's program on their way from a rank: what it returned, and what it raised.

They are pickled. A class that pickle would not find, as of a test's own body, is named by its place in memory: where it
was there before the rank was forked, it has the same place in both processes. The reader takes it only from among the
classes that it has, and only under the same name.
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
    """The value. Raises what pickle does where something of it is not here."""
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
