"""The marker `@pytest.mark.crashes(2, "train.py")`: before the test, a program is ended at each of its operations."""

from dataclasses import replace
from typing import Any

import pytest

CRASHES = "crashes"
CRASHES_DESCRIPTION = (
    f"{CRASHES}(world_size, program, *, seconds, points, ...): first end a program, such as 'train.py --fast', at each "
    "of its operations, and fail unless it resumes well (ddpsim)"
)


def check_crashes(world_size: int, program: str, *, seconds: float = 60.0, points: Any = (), **options: Any) -> None:
    """Sweep the crashes of a program. Fails the test by what is wrong after one, by the points that were not tried, or
    by what `ddpsim.crash` refuses."""
    __tracebackhide__ = True
    from ddpsim import UsageError, crash
    from ddpsim.scenarios.cli.crash import sweep_text
    from ddpsim.scenarios.files.loader import load

    try:
        scenario = replace(load(program), **options)
        sweep = crash(scenario.program, world_size, seconds=seconds, points=points, **options)
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)
    if sweep.bad or sweep.unstable or sweep.tried < sweep.differing:
        pytest.fail(sweep_text(scenario, world_size, sweep), pytrace=False)
