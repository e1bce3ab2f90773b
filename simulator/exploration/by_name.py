"""Builds the exploration strategy for a policy's name."""

from __future__ import annotations

from collections.abc import Callable

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.exploration.strategy import Strategy, Walks
from ddpsim.simulator.policies.dfs import Dfs
from ddpsim.simulator.policies.named import EXPLORING, POLICIES

COVERING: dict[str, Callable[[int, int | None], Strategy]] = {
    "dpor": lambda world_size, option: Dpor(world_size),
    "dfs": lambda world_size, option: Dfs(preemptions=option),
}
"""Strategies that learn from executions and can be complete; each is made from a world size and its option."""


def strategy_of(
    policy: str | Strategy,
    world_size: int,
    *,
    seed: int = 0,
    depth: int | None = None,
    preemptions: int | None = None,
) -> Strategy:
    """Return the strategy of a name, with its options. Raises UsageError for an unknown name or option."""
    given = {"depth": depth, "preemptions": preemptions}
    for owner, option in ((each.name, each.option) for each in POLICIES.values() if each.option is not None):
        value = given[option.name]
        if value is not None and policy != owner:
            raise UsageError(
                f"{option.name} is {value!r}, which only policy {owner!r} has, not {policy!r}: leave it out"
            )
    if not isinstance(policy, str):
        if isinstance(policy, type) or not callable(getattr(policy, "next_policy", None)):
            raise UsageError(f"policy is {policy!r}, expected a name or an object with next_policy() and take(result)")
        return policy
    if policy not in EXPLORING:
        raise UsageError(f"policy is {policy!r}, expected one of {', '.join(EXPLORING)}: give one of these names")
    row = POLICIES[policy]
    wanted = None if row.option is None else given[row.option.name]
    if policy in COVERING:
        return COVERING[policy](world_size, wanted)
    row.policy(seed, wanted)  # so that a wrong option raises now
    return Walks(seed, lambda seed, choices: row.policy(seed, wanted, choices))
