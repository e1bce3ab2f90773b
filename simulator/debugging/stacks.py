"""Selects the stack frames that a debugger in a rank shows: those of the program, not of what runs it.

Stacks are shown in short: paths relative to the working folder, and frames of installed packages only counted.
"""

import os
import re
from collections.abc import Iterable
from itertools import groupby
from types import FrameType, TracebackType
from typing import Any

from ddpsim.simulator.runtime.call_sites import STARTS, frames_outwards, installed_package_of, is_user_code

_FRAME = re.compile(r'^(?=  File ")', re.MULTILINE)
_PATH = re.compile(r'  File "(.*?)", line ')
_DEBUGGERS = ("bdb", "cmd", "pdb", "contextlib", "runpy")


def shorten_stack(stack: str, folder: str) -> str:
    """Shorten a stack that is formatted as in a traceback."""
    frames = [frame for frame in _FRAME.split(stack) if frame]
    lines: list[str] = []
    for is_package, same in groupby(frames, key=lambda frame: bool(_package_of_entry(frame))):
        each = list(same)
        lines += [f"{frame_count_line(map(_package_of_entry, each))}\n"] if is_package else each
    return "".join(lines).replace(f'  File "{os.path.join(folder, "")}', '  File "')


def frame_count_line(packages: Iterable[str]) -> str:
    """Return the line that replaces consecutive stack frames of installed packages."""
    names = list(packages)
    return f"  ... {len(names)} frame{'s' * (len(names) != 1)} of {', '.join(dict.fromkeys(names))}"


def _package_of_entry(frame: str) -> str:
    found = _PATH.match(frame)
    return "" if found is None else installed_package_of(found[1])


def program_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program that a rank runs; None if the rank's program is not running."""
    found = None
    for each in frames_outwards(frame):
        if each.f_globals.get("__name__") in STARTS:
            return found
        if found is None and is_user_code(each.f_code) and each.f_globals.get("__name__") not in _DEBUGGERS:
            found = each
    return None


def frame_that_raised(error: BaseException | TracebackType | None = None, *rest: Any) -> FrameType | None:
    """Return the frame that raised an error, for post-mortem debugging; None without a traceback."""
    traceback = error.__traceback__ if isinstance(error, BaseException) else error
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else traceback.tb_frame


def traceback_in_program(error: BaseException | None) -> TracebackType | None:
    """Return the part of an error's traceback that begins with the program's first frame."""
    traceback = None if error is None else error.__traceback__
    while traceback is not None and not is_user_code(traceback.tb_frame.f_code):
        traceback = traceback.tb_next
    return traceback


def outermost_program_frame(frame: FrameType | None) -> FrameType | None:
    """Return the outermost frame of the user's program; the frames outside this one run the program."""
    found = None
    for each in frames_outwards(frame):
        if each.f_globals.get("__name__") in STARTS:
            break
        if is_user_code(each.f_code) and each.f_globals.get("__name__") != "runpy":
            found = each
    return found
