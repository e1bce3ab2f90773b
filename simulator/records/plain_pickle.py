"""Pickles of plain values: dicts, lists, tuples, texts and numbers. Whatever else is in one is refused, and never run.

A pickle is a program. What it can do beyond building plain containers begins with an import, and every import is
refused here, so there is nothing that it could call. What is left is memory: a pickle of ten bytes can ask for
gigabytes, so it is read under a limit of what the process may take (where the platform has one).
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ddpsim.simulator.records.rank_record import RecordError
from ddpsim.simulator.records.record_texts import plain

_ROOM_PER_BYTE = 64
"""A plain value of Python's takes at most so many times what it takes in a pickle."""
_ROOM = 2**28
_BUFFER = 2**20
_MOST_BYTES = 2**24
"""Of a pickle that is worth it: opcodes are followed in Python."""
_MARK, _LIST, _DICT = "mark", "list", "dict"
_POP, _POP_MARK, _APPENDS, _SETITEMS, _STOP = b"0", b"1", b"e", b"u", b"."


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


# --- a pickle that is cut short --------------------------------------------------------------------------------------
#
# A pickle is a program for a stack. Its opcodes up to the cut are followed without doing them, to know what lies on the
# stack then; what is half made is taken off it again, and the outer dict and the list in it are closed.


def closed(data: bytes) -> bytes | None:
    """The pickle of a dict, cut short, as one that is whole; None where there is nothing to be saved."""
    if len(data) > _MOST_BYTES:
        return None
    stack, end = _followed(data)
    if not stack or stack[0] != _DICT:
        return None
    closing = _closing(stack)
    return None if closing is None else data[:end] + closing + _STOP


def _followed(data: bytes) -> tuple[list[str], int]:
    """What is on the stack after the last whole opcode, and where that ends; nothing for a pickle that is not cut."""
    stack: list[str] = []
    file, end = io.BytesIO(data), 0
    try:
        for opcode, _, _ in pickletools.genops(file):
            if opcode.name == "STOP" or not _is_done(stack, opcode):
                return [], 0
            end = file.tell()
    except Exception:  # what is cut or damaged raises anything
        pass
    return stack, end


def _is_done(stack: list[str], opcode: pickletools.OpcodeInfo) -> bool:
    """Do an opcode on the stack; False for one that finds too little there."""
    before = [each.name for each in opcode.stack_before]
    if opcode.name == "MEMOIZE":
        return True
    if _MARK in before:
        while stack and stack.pop() != _MARK:
            pass
        before = before[: before.index(_MARK)]
    if len(before) > len(stack) or _MARK in stack[len(stack) - len(before) :]:
        return False
    del stack[len(stack) - len(before) :]
    stack += [each.name for each in opcode.stack_after]
    return True


def _closing(stack: list[str]) -> bytes | None:
    """The opcodes that leave the outer dict only, with what is whole in the list that was being made."""
    marks = [index for index, each in enumerate(stack) if each == _MARK]
    if not marks or marks[0] != 1:
        return None
    closing, left = b"", len(stack)
    if len(marks) > 1:
        is_list = stack[marks[1] - 1] == _LIST
        closing = _POP_MARK * len(marks[2:])  # what is half made in an entry
        closing += (_POP * (len(marks) > 2) + _APPENDS) if is_list else _POP_MARK + _POP
        left = marks[1] - (not is_list)
    return closing + _POP * (left % 2) + _SETITEMS
