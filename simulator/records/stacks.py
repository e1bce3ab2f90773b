"""Which line of a recorded stack is the user's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ddpsim.simulator.calls import NOWHERE, Site

_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[.]\d+[/\\]|[/\\]torch[/\\]|[/\\]ddpsim[/\\]|^<frozen|[.]so$|^$"
)
"""Files of installed packages and of Python itself, as their paths end wherever they were installed."""
_IN_TORCH = re.compile(r"[/\\]torch[/\\]|[.](?:so|cpp|h)(?:$|[.])|^<frozen|^$|\?\?")


def site_of(frames: Sequence[Any]) -> Site:
    """The innermost line that lies in no installed package, or else the innermost outside torch; NOWHERE without one.

    `frames` are dicts with name, filename and line, the innermost first.
    """
    outside_torch = None
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        path, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
        if not isinstance(path, str) or not isinstance(line, int) or not isinstance(name, str):
            continue
        if not _LIBRARY.search(path):
            return _site(path, line, name)
        if outside_torch is None and not _IN_TORCH.search(path):
            outside_torch = _site(path, line, name)
    return outside_torch or NOWHERE


@lru_cache(maxsize=4096)
def _site(path: str, line: int, function: str) -> Site:
    return Site(path, line, function)
