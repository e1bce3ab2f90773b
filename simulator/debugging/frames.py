"""Selects the stack frames that a debugger in a rank shows: the program's, not those of the code that runs it."""

from __future__ import annotations

from types import FrameType, TracebackType
from typing import Any

from ddpsim.simulator.runtime.call_sites import STARTS, is_users

_DEBUGGERS = ("bdb", "cmd", "pdb", "contextlib", "runpy")


def program_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program that a rank runs; None if the rank does not run its program now."""
    found = None
    while frame is not None and frame.f_globals.get("__name__") not in STARTS:
        if found is None and is_users(frame.f_code) and frame.f_globals.get("__name__") not in _DEBUGGERS:
            found = frame
        frame = frame.f_back
    return None if frame is None else found


def last_frame(error: BaseException | TracebackType | None = None, *rest: Any) -> FrameType | None:
    """Return the frame that raised an error, for post-mortem debugging; None without a traceback."""
    traceback = error.__traceback__ if isinstance(error, BaseException) else error
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else traceback.tb_frame


def within_program(error: BaseException | None) -> TracebackType | None:
    """Return the part of an error's traceback that begins with the program's first frame."""
    traceback = None if error is None else error.__traceback__
    while traceback is not None and not is_users(traceback.tb_frame.f_code):
        traceback = traceback.tb_next
    return traceback


def outermost(frame: FrameType | None) -> FrameType | None:
    """Return the outermost frame of the user's program. Frames outside it belong to the code that runs it."""
    found = None
    while frame is not None and frame.f_globals.get("__name__") not in STARTS:
        if is_users(frame.f_code) and frame.f_globals.get("__name__") != "runpy":
            found = frame
        frame = frame.f_back
    return found
