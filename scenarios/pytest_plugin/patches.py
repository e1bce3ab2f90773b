"""What ranks patch with pytest's `monkeypatch`, which is one object for them all and takes back outside, after the run.

That is right for what ranks share, such as attributes of a module. What each rank has of its own, such as `os.environ`,
went with the rank; taken back outside, the rank's old values would stand in the process.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_OF_EACH_RANK = (
    *((sys, name) for name in ("argv", "excepthook", "stdin", "stdout", "stderr")),
    *((warnings, name) for name in ("filters", "showwarning", "_showwarnmsg_impl")),
)
"""The attributes that the simulator swaps when another rank runs, and a test may patch."""


@contextmanager
def ranks_own_left_alone(item: pytest.Function) -> Iterator[None]:
    """Around a run: let what ranks patched of their own be, and what was patched outside be taken back, there."""
    patchers = [value for value in item.funcargs.values() if isinstance(value, pytest.MonkeyPatch)]
    before = [(patcher, _records(patcher)) for patcher in patchers]
    try:
        yield
    finally:
        for patcher, (items, attributes) in before:
            patcher._setitem[:] = _merged(items, patcher._setitem)
            patcher._setattr[:] = _merged(attributes, patcher._setattr)


def _records(patcher: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    return list(patcher._setitem), list(patcher._setattr)


def _merged(before: list[Any], now: list[Any]) -> list[Any]:
    """What is to be taken back outside; a rank may have called `monkeypatch.undo()`, for all."""
    kept = [each for each in before if _is_of_each_rank(each) or any(each is other for other in now)]
    return kept + [each for each in now if not _is_of_each_rank(each) and not any(each is other for other in kept)]


def _is_of_each_rank(record: tuple[Any, ...]) -> bool:
    target, name, _ = record
    is_environ = target is os.environ or target is getattr(os, "environb", None)
    return is_environ or any(target is module and name == attribute for module, attribute in _OF_EACH_RANK)
