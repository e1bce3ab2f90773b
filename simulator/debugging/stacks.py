"""Stacks as a debugger tells them: files as seen from where one works, and the frames of installed packages counted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from ddpsim.simulator.runtime.call_sites import package_of

_FRAME = re.compile(r'^(?=  File ")', re.MULTILINE)
_PATH = re.compile(r'  File "(.*?)", line ')


def brief_stack(stack: str, folder: str) -> str:
    """A stack as tracebacks have it, shorter."""
    frames = [frame for frame in _FRAME.split(stack) if frame]
    told: list[str] = []
    for is_package, same in groupby(frames, key=lambda frame: bool(_package(frame))):
        each = list(same)
        told += [f"{counted(map(_package, each))}\n"] if is_package else each
    return "".join(told).replace(f'  File "{os.path.join(folder, "")}', '  File "')


def counted(packages: Iterable[str]) -> str:
    """What stands in the place of frames of these packages, in a row."""
    names = list(packages)
    return f"  ... {len(names)} frame{'s' * (len(names) != 1)} of {', '.join(dict.fromkeys(names))}"


def _package(frame: str) -> str:
    found = _PATH.match(frame)
    return "" if found is None else package_of(found[1])


def alike(stacks: Iterable[tuple[int, str]]) -> Iterator[tuple[tuple[int, ...], str]]:
    """The stacks, each once, with the ranks that stand there."""
    ranks: dict[str, list[int]] = {}
    for rank, stack in stacks:
        ranks.setdefault(stack, []).append(rank)
    return ((tuple(those), stack) for stack, those in ranks.items())
