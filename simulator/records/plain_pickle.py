"""Pickles of plain values: dicts, lists, tuples, texts and numbers. Whatever else is in one is refused, and never run.

A pickle is a program. What it can do beyond building plain containers begins with an import, and every import is
refused here, so there is nothing that it could call. What is left is memory: a pickle of ten bytes can ask for
gigabytes, so it is read under a limit of what the process may take (where the platform has one).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ddpsim.simulator.records.record import RecordError
from ddpsim.simulator.records.texts import plain

_ROOM_PER_BYTE = 64
"""A plain value of Python's takes at most so many times what it takes in a pickle."""
_ROOM = 2**28
_BUFFER = 2**20


class CutShortError(RecordError):
    """A pickle that ends before it is whole."""


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain containers, and refuses the rest."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse an import."""
        raise RecordError(
            f"a pickle that wants to import {plain(module)}.{plain(name)}, expected plain values; nothing of it was run"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse what lies outside the pickle."""
        raise RecordError("a pickle that refers to something outside, expected plain values")


def loads(data: bytes) -> Any:
    """The plain value in a pickle. Raises RecordError for one that is damaged, cut short, or wants more than that."""
    with _bounded_memory(_ROOM + _ROOM_PER_BYTE * len(data)):
        try:
            # Buffered, as else each number and text of it is a call of a method in Python.
            return _PlainUnpickler(io.BufferedReader(io.BytesIO(data), _BUFFER)).load()
        except RecordError:
            raise
        except MemoryError as error:
            raise RecordError(f"a pickle of {len(data)} bytes that wants more memory than it can need") from error
        except Exception as error:  # what a damaged pickle raises is anything
            why = plain(str(error)) or type(error).__name__
            if isinstance(error, EOFError) or "truncated" in why or "exhausted" in why:
                raise CutShortError(f"a pickle that is cut short ({why})") from error
            raise RecordError(f"a pickle that is damaged ({why})") from error


@contextmanager
def _bounded_memory(more: int) -> Iterator[None]:
    """Let the process take so many bytes more than it has, where that can be limited (on Linux)."""
    taken = _address_space()
    if taken is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = taken + more
    for bound in (soft, hard):
        limit = limit if bound == resource.RLIM_INFINITY else min(limit, bound)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """The bytes of address space that the process has taken; None where nobody says."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return None
