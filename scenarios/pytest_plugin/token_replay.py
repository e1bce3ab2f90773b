"""`--ddpsim-replay TOKEN`: select the test that the token was recorded for, and run it with the token's schedule."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ddpsim import ReplayError, Result, Schedule, simulate
from ddpsim.scenarios.cli.judgement import divergence_line
from ddpsim.scenarios.pytest_plugin.collecting import marked_tests
from ddpsim.scenarios.pytest_plugin.failure import RanksFailed, test_name_in_tokens
from ddpsim.simulator.choices import program_identity
from ddpsim.simulator.policies.schedule_replay import ReplayPolicy, divergence_error

_MOST_RANKS = 64
"""The largest world size of a test without marker that is found by its token."""

_KEPT = pytest.StashKey[int]()
"""The key in pytest's stash for the number of tests that match the replay token."""


def check_replay_token(token: str) -> None:
    """Raise UsageError if a replay token is damaged or of another version."""
    try:
        Schedule.is_recorded_for(token, "")
    except ReplayError as error:
        raise pytest.UsageError(f"--ddpsim-replay: {error}") from None


def keep_tests_of_token(config: pytest.Config, items: list[pytest.Item], token: str) -> None:
    """Deselect all tests except those that match a replay token. Possibly no test matches."""
    kept: list[pytest.Item] = [
        item
        for item, options in marked_tests(items)
        if Schedule.is_recorded_for(token, program_identity(test_name_in_tokens(item), options.world_size))
    ]
    if config.getoption("ddpsim") or config.getoption("ddpsim_ranks"):
        kept += [item for item in items if item not in kept and _may_be_of(token, item)]
    config.stash[_KEPT] = len(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _may_be_of(token: str, item: pytest.Item) -> bool:
    """Return whether a token was recorded for a test without marker, whose world size only a run shows."""
    if not isinstance(item, pytest.Function):
        return False
    name = test_name_in_tokens(item)
    return any(Schedule.is_recorded_for(token, program_identity(name, size)) for size in range(1, _MOST_RANKS + 1))


def replay_test(
    program: Callable[[int], Any], world_size: int, token: str, world: Mapping[str, Any], *, is_strict: bool
) -> tuple[Result, RanksFailed | None]:
    """Run a test with a recorded schedule. Return the result, and a failure if a strict replay differed."""
    recorded = ReplayPolicy(Schedule.parse(token, program=program_identity(world["name"], world_size)))
    result = simulate(program, world_size, policy=recorded, **world)
    if recorded.divergence is None or not is_strict:
        return result, None
    text = str(divergence_error(recorded.divergence, result.trace, recorded.choices))
    return result, RanksFailed(text, divergence_line(recorded.divergence))


def token_warning(config: pytest.Config, exitstatus: int | pytest.ExitCode, token: str) -> str | None:
    """Return a warning if no test or several tests matched a replay token; None if exactly one test matched."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        found = "matches none of the collected tests"
    elif config.stash.get(_KEPT, 1) > 1:
        found = f"matches {config.stash[_KEPT]} tests, which were all run"
    else:
        return None
    return f"ddpsim: replay token {token} {found}, expected one: give the file and the test as in the replay line"
