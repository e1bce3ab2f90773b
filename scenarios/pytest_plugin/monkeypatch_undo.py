"""Undo of pytest's `monkeypatch` on ranks: all ranks share one such object, which undoes its patches after the run.

This is right for state that ranks share, such as module attributes. State that each rank has of its own, such as
`os.environ`, ends with the rank; an undo after the run would write the rank's old values into the process.
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
"""The attributes that each rank has of its own, because the simulator swaps them at every context switch."""


@contextmanager
def no_undo_of_rank_state(item: pytest.Function) -> Iterator[None]:
    """Around a run: keep `monkeypatch` from undoing patches of rank-local state that ranks made."""
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
    """Return the patches to undo after the run; a rank may have called `monkeypatch.undo()`, which empties the list."""
    kept = [each for each in before if _is_of_each_rank(each) or any(each is other for other in now)]
    return kept + [each for each in now if not _is_of_each_rank(each) and not any(each is other for other in kept)]


def _is_of_each_rank(record: tuple[Any, ...]) -> bool:
    target, name, _ = record
    is_environ = target is os.environ or target is getattr(os, "environb", None)
    return is_environ or any(target is module and name == attribute for module, attribute in _OF_EACH_RANK)
