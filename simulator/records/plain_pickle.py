"""Unpickle plain values only: dicts, lists, tuples, texts and numbers. Anything else is refused, and never run.

A pickle is a program. To do more than build plain containers, it has to import something first, and every import is
refused here. So it can call nothing. Memory remains: a pickle of ten bytes can ask for gigabytes, so it is read under a
memory limit (where the platform has one).
"""

import io
import pickle
import pickletools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ddpsim.simulator.records.rank_record import RecordError
from ddpsim.simulator.records.record_texts import printable_text

_ROOM_PER_BYTE = 64
"""The most bytes that a plain Python value needs, for each byte of its pickle."""
_ROOM = 2**28
_BUFFER = 2**20
_MOST_BYTES = 2**24
"""The largest cut-off pickle that is repaired, in bytes: its opcodes are followed in Python, which is slow."""
_MARK, _LIST, _DICT = "mark", "list", "dict"
_POP, _POP_MARK, _APPENDS, _SETITEMS, _STOP = b"0", b"1", b"e", b"u", b"."


class CutShortError(RecordError):
    """A pickle ends too early."""


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that builds plain containers, and refuses everything else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse a class or function that the pickle wants to import."""
        raise RecordError(
            f"a pickle that tries to import {printable_text(module)}.{printable_text(name)}, "
            "expected plain values; nothing was run"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse a reference to a value outside the pickle."""
        raise RecordError("a pickle that refers to something outside, expected plain values")


def load_plain(data: bytes) -> Any:
    """Return the plain value in a pickle. Raises RecordError if the pickle is damaged, cut off, or not plain."""
    with _bounded_memory(_ROOM + _ROOM_PER_BYTE * len(data)):
        try:
            # Buffered: otherwise each number and text in it costs a call of a Python method.
            return _PlainUnpickler(io.BufferedReader(io.BytesIO(data), _BUFFER)).load()
        except RecordError:
            raise
        except MemoryError as error:
            raise RecordError(f"a pickle of {len(data)} bytes that asks for more memory than it can need") from error
        except Exception as error:  # a damaged pickle can raise anything
            why = printable_text(str(error)) or type(error).__name__
            if isinstance(error, EOFError) or "truncated" in why or "exhausted" in why:
                raise CutShortError(f"a pickle that is cut short ({why})") from error
            raise RecordError(f"a pickle that is damaged ({why})") from error


@contextmanager
def _bounded_memory(more: int) -> Iterator[None]:
    """Limit the process to `more` bytes of address space above what it uses, if the system allows it (Linux does)."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = min([taken + more, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


#
# A pickle is a program for a stack machine. Its opcodes up to the cut are followed without executing them, to know the
# stack at the cut. Incomplete values are popped, and the outer dict and its list are closed.


def complete_cut_pickle(data: bytes) -> bytes | None:
    """Return a complete pickle made from a cut-off pickle of a dict; None if no entry can be saved."""
    if len(data) > _MOST_BYTES:
        return None
    stack, end = _stack_at_cut(data)
    if not stack or stack[0] != _DICT:
        return None
    closing = _closing_opcodes(stack)
    return None if closing is None else data[:end] + closing + _STOP


def _stack_at_cut(data: bytes) -> tuple[list[str], int]:
    """Return the unpickler's stack after the last complete opcode, and where that ends; [] and 0 if all are."""
    stack: list[str] = []
    file, end = io.BytesIO(data), 0
    try:
        for opcode, _, _ in pickletools.genops(file):
            if opcode.name == "STOP" or not _apply_opcode(stack, opcode):
                return [], 0
            end = file.tell()
    except Exception:  # cut-off or damaged data can raise anything
        pass
    return stack, end


def _apply_opcode(stack: list[str], opcode: pickletools.OpcodeInfo) -> bool:
    """Apply an opcode to a model of the unpickler's stack; return False if the stack is too short."""
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


def _closing_opcodes(stack: list[str]) -> bytes | None:
    """Return the opcodes that leave only the outer dict, with the complete entries of its unfinished list."""
    marks = [index for index, each in enumerate(stack) if each == _MARK]
    if not marks or marks[0] != 1:
        return None
    closing, left = b"", len(stack)
    if len(marks) > 1:
        is_list = stack[marks[1] - 1] == _LIST
        closing = _POP_MARK * len(marks[2:])  # the incomplete parts of an entry
        closing += (_POP * (len(marks) > 2) + _APPENDS) if is_list else _POP_MARK + _POP
        left = marks[1] - (not is_list)
    return closing + _POP * (left % 2) + _SETITEMS
