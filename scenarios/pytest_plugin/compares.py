"""The marker `@pytest.mark.compares(2, "train.py")`: before the test, a program on N ranks is held against one rank."""

from typing import Any

import pytest

COMPARES = "compares"
COMPARES_DESCRIPTION = (
    f"{COMPARES}(world_size, program, *, against=1, steps, ...): first run a program, such as 'train.py --fast', on "
    "several ranks and on one, and fail unless it is the same training (ddpsim)"
)


def check_same_training(world_size: int, program: str, **options: Any) -> None:
    """Compare a program's training with its reference. Fails the test by the answer, if that is not "the same"."""
    __tracebackhide__ = True
    from ddpsim import UsageError, compare
    from ddpsim.scenarios.files.loader import load

    try:
        found = compare(load(program).program, world_size, **options)
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)
    if not found.is_same:
        pytest.fail(str(found), pytrace=False)
