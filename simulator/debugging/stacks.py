"""Short stacks for a debugger: paths relative to the working folder; frames of installed packages only counted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from ddpsim.simulator.runtime.call_sites import package_of

_FRAME = re.compile(r'^(?=  File ")', re.MULTILINE)
_PATH = re.compile(r'  File "(.*?)", line ')


def brief_stack(stack: str, folder: str) -> str:
    """Shorten a stack that is formatted as in a traceback."""
    frames = [frame for frame in _FRAME.split(stack) if frame]
    lines: list[str] = []
    for is_package, same in groupby(frames, key=lambda frame: bool(_package(frame))):
        each = list(same)
        lines += [f"{counted(map(_package, each))}\n"] if is_package else each
    return "".join(lines).replace(f'  File "{os.path.join(folder, "")}', '  File "')


def counted(packages: Iterable[str]) -> str:
    """Return the line that replaces consecutive frames of these packages."""
    names = list(packages)
    return f"  ... {len(names)} frame{'s' * (len(names) != 1)} of {', '.join(dict.fromkeys(names))}"


def _package(frame: str) -> str:
    found = _PATH.match(frame)
    return "" if found is None else package_of(found[1])


def equal_stacks(stacks: Iterable[tuple[int, str]]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield each different stack once, with the ranks that have it."""
    ranks: dict[str, list[int]] = {}
    for rank, stack in stacks:
        ranks.setdefault(stack, []).append(rank)
    return ((tuple(those), stack) for stack, those in ranks.items())
