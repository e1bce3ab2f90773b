"""A pickle that is cut short, closed where it ends: what was whole before the cut can be read.

A pickle is a program for a stack. Its opcodes up to the cut are followed without doing them, to know what lies on the
stack then; what is half made is taken off it again, and the outer dict and the list in it are closed.
"""

from __future__ import annotations

import pickletools
from io import BytesIO

_MOST_BYTES = 2**24
"""Of a pickle that is worth it: opcodes are followed in Python."""
_MARK, _LIST, _DICT = "mark", "list", "dict"
_POP, _POP_MARK, _APPENDS, _SETITEMS, _STOP = b"0", b"1", b"e", b"u", b"."


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
    file, end = BytesIO(data), 0
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
