"""The strategies that have a name."""

from __future__ import annotations

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.exploration.strategy import Strategy, Walks
from ddpsim.simulator.policies.dfs import Dfs
from ddpsim.simulator.policies.pct import DEPTH, Pct
from ddpsim.simulator.policies.random_walk import RandomWalk

NAMES = ("dpor", "dfs", "random", "pct")


def strategy_of(
    policy: str | Strategy,
    world_size: int,
    *,
    seed: int = 0,
    depth: int | None = None,
    preemptions: int | None = None,
) -> Strategy:
    """The strategy of a name, with its options. Raises UsageError for an unknown one, or an option that it lacks."""
    for option, value, owner in (("depth", depth, "pct"), ("preemptions", preemptions, "dfs")):
        if value is not None and policy != owner:
            raise UsageError(f"{option} is {value!r}, which only policy {owner!r} has, not {policy!r}: leave it out")
    if not isinstance(policy, str):
        if isinstance(policy, type) or not callable(getattr(policy, "next_policy", None)):
            raise UsageError(f"policy is {policy!r}, expected a name or an object with next_policy() and take(result)")
        return policy
    if policy == "dpor":
        return Dpor(world_size)
    if policy == "dfs":
        return Dfs(preemptions=preemptions)
    if policy == "random":
        return Walks(seed, lambda seed, choices: RandomWalk(seed))
    if policy == "pct":
        wanted = DEPTH if depth is None else depth
        Pct(seed, depth=wanted)  # so that a depth that is wrong is told now
        return Walks(seed, lambda seed, choices: Pct(seed, depth=wanted, choices=choices))
    raise UsageError(f"policy is {policy!r}, expected one of {', '.join(NAMES)}: give one of these names")
