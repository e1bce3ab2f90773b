"""Tiers of tests: what runs at every change, what runs in CI besides, and what runs at night.

A test without a mark is of the default tier. `@pytest.mark.tier("ci")` marks what needs processes, a browser, pages or
a compiler, or is slow; `@pytest.mark.tier("nightly")` a full sweep. Of several marks (of a module, a test, a case) the
last tier counts. What does not run is deselected. A mark that is wrong fails its test in every tier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest


class Tier(IntEnum):
    """In the order in which they run."""

    DEFAULT = 0
    CI = 1
    NIGHTLY = 2


MARKED = {"ci": Tier.CI, "nightly": Tier.NIGHTLY}
"""The tiers that a mark or the option may name."""

RUN = {None: {Tier.DEFAULT}, "ci": {Tier.CI}, "nightly": set(Tier)}
"""What each value of the option runs. CI runs the default tier apart, by the command of the README."""


def sweep(cases: Iterable[Any], by_default: Callable[[Any], bool]) -> list[Any]:
    """The cases of a sweep, for `parametrize`: those for which `by_default` says so run always, the others at night.

    A tuple stands for the values of several arguments, as in `parametrize`.
    """
    return [case if by_default(case) else _nightly(case) for case in cases]


def _nightly(case: Any) -> Any:
    mark = pytest.mark.tier("nightly")
    if hasattr(case, "marks"):  # it is a pytest.param already
        return case._replace(marks=(*case.marks, mark))
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)


def pytest_addoption(parser):
    parser.addoption(
        "--tier",
        choices=sorted(MARKED),
        help="ci: only what CI runs besides the default; nightly: everything, full sweeps included",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "tier(name): runs with --tier NAME: ci or nightly")


def pytest_ignore_collect(collection_path, config):
    """With `--tier ci` three files of four are not even imported."""
    if config.getoption("tier") == "ci" and collection_path.name.startswith("test_"):
        folders = [folder for folder in collection_path.parents if folder.is_relative_to(config.rootpath)]
        if not any(map(may_mark_for_ci, [collection_path, *(folder / "conftest.py" for folder in folders)])):
            return True
    return None


@cache
def may_mark_for_ci(file: Path) -> bool:
    """False for a file whose text has no mark but that of the nightly tier; `tests/test_tiers.py` looks at helpers."""
    return file.exists() and re.search(r'"ci"|tier\((?!"nightly"\))', file.read_text(encoding="utf-8")) is not None


def pytest_collection_modifyitems(config, items):
    run = RUN[config.getoption("tier")]
    chosen = {item: _wrong(item) is not None or _tier(item) in run for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not chosen[item]])
    items[:] = [item for item in items if chosen[item]]


def pytest_runtest_setup(item):
    # Not at collection: pytest-xdist tells of an error there by the crash of a worker.
    if (wrong := _wrong(item)) is not None:
        pytest.fail(f"tier{wrong.args}, expected tier('ci') or tier('nightly')", pytrace=False)


def _tier(item: pytest.Item) -> Tier:
    return max((MARKED[mark.args[0]] for mark in item.iter_markers("tier")), default=Tier.DEFAULT)


def _wrong(item: pytest.Item) -> pytest.Mark | None:
    return next(
        (mark for mark in item.iter_markers("tier") if mark.kwargs or mark.args not in {(name,) for name in MARKED}),
        None,
    )
