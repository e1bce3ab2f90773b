"""The markers `@pytest.mark.crashes(2, "train.py")` and `compares(2, "train.py")`: before the test, a program is ended
at each of its operations, or held against one rank."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest


def crash_of_marker(world_size: int, program: str, *, seconds: float = 60.0, points: Any = (), **options: Any) -> str:
    """Sweep the crashes of a program, and return what is wrong after one, or that points were not tried; else ""."""
    from ddpsim import crash
    from ddpsim.scenarios.cli.crash import sweep_text
    from ddpsim.scenarios.files.loader import load

    scenario = replace(load(program), **options)
    sweep = crash(scenario.program, world_size, seconds=seconds, points=points, **options)
    is_good = not (sweep.bad or sweep.unstable or sweep.tried < sweep.differing)
    return "" if is_good else sweep_text(scenario, world_size, sweep)


def _compare(world_size: int, program: str, **options: Any) -> str:
    """Compare the training of a program with its reference, and return the answer; "" for "the same"."""
    from ddpsim import compare
    from ddpsim.scenarios.files.loader import load
    from ddpsim.scenarios.running.run_as import run_keywords

    scenario = load(program)
    own: dict[str, Any] = {**run_keywords(scenario, "memory"), "alike": scenario.alike}
    found = compare(scenario.program, world_size, **own | options)
    return "" if found.is_same else str(found)


CHECKS: Mapping[str, Callable[..., str]] = {
    "crashes(world_size, program, *, seconds, points, ...): first end a program, such as 'train.py --fast', at each of "
    "its operations, and fail unless it resumes well (ddpsim)": crash_of_marker,
    "compares(world_size, program, *, against, steps, ...): first run a program on several ranks and on one, and fail "
    "unless it is the same training (ddpsim)": _compare,
}
"""By the line that describes a marker, what is done for it."""


def check_programs(item: pytest.Item) -> None:
    """Do what these markers of a test say. Fails the test by what is wrong, or by what is refused."""
    __tracebackhide__ = True
    for line, check in CHECKS.items():
        for mark in item.iter_markers(line.partition("(")[0]):
            from ddpsim import UsageError

            try:
                wrong = check(*mark.args, **mark.kwargs)
            except UsageError as error:
                wrong = str(error)
            if wrong:
                pytest.fail(wrong, pytrace=False)
