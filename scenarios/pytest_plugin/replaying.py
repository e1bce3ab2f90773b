"""`--ddpsim-replay TOKEN`: which tests a token belongs to."""

from __future__ import annotations

import pytest

from scenarios.pytest_plugin.collecting import marked
from scenarios.pytest_plugin.failure import program_name
from simulator import ReplayError, Schedule
from simulator.choices import program_on

_KEPT = pytest.StashKey[int]()
"""How many tests a token may belong to."""


def check_token(token: str) -> None:
    """Raise UsageError for a token that is damaged, or of another version."""
    try:
        Schedule.is_recorded_for(token, "")
    except ReplayError as error:
        raise pytest.UsageError(f"--ddpsim-replay: {error}") from None


def keep_replayed(config: pytest.Config, items: list[pytest.Item], token: str) -> None:
    """Deselect all tests but those that a token was recorded for; there may be none."""
    kept: list[pytest.Item] = [
        item
        for item, options in marked(items)
        if Schedule.is_recorded_for(token, program_on(program_name(item), options.world_size))
    ]
    config.stash[_KEPT] = len(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def replay_summary(config: pytest.Config, exitstatus: int | pytest.ExitCode, token: str) -> str | None:
    """If there was nothing to replay, or more than one test; None if there was one."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        found = "belongs to none of the tests that were collected"
    elif config.stash.get(_KEPT, 1) > 1:
        found = f"may belong to each of {config.stash[_KEPT]} tests, which were all run"
    else:
        return None
    return f"ddpsim: replay token {token} {found}: name the file and the test as the replay line does"
