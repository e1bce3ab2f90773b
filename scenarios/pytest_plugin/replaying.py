"""`--ddpsim-replay TOKEN`: which tests a token belongs to."""

from __future__ import annotations

import pytest

from scenarios.pytest_plugin.collecting import marked
from scenarios.pytest_plugin.failure import program_name
from simulator import ReplayError, Schedule
from simulator.choices import program_on


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
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
