"""Strategies: they choose the schedules that an exploration runs, and know when all are covered."""

from collections.abc import Callable
from copy import copy
from typing import Any, Protocol

from ddpsim.simulator.choices import Policy
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.policies.dfs import Dfs
from ddpsim.simulator.policies.named import EXPLORING, POLICIES
from ddpsim.simulator.policies.pct import CHOICES
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Finding


class Strategy(Protocol):
    """The interface of strategies. `next_policy` and `take` are called in turn. If an execution raises RedundantRun,
    `take` is not called for it; `take` may raise RedundantRun, too."""

    def next_policy(self) -> Policy | None:
        """Return the policy of the next execution; None if no schedule is left."""

    def take(self, result: Result) -> Finding | None:
        """Learn from the result of an execution; return a finding if the strategy finds a further error in it."""

    @property
    def is_complete(self) -> bool:
        """True once the executions cover every schedule."""

    @property
    def coverage(self) -> float | None:
        """An estimate of the covered share of all schedules, from 0 to 1; None if unknown."""

    @property
    def limits(self) -> str:
        """A limit on all schedules that the strategy runs, such as "with at most 2 preemptions"; "" for none."""

    @property
    def outside(self) -> str:
        """Effects between ranks that the strategy ignores when it takes schedules as equivalent, such as "files"."""


class ForwardingStrategy:
    """A strategy that forwards to another one; subclasses override some of its methods."""

    is_complete: bool
    coverage: float | None
    limits: str
    outside: str

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def next_policy(self) -> Policy | None:
        """Return the wrapped strategy's next policy."""
        return self._strategy.next_policy()

    def take(self, result: Result) -> Finding | None:
        """Give an execution's result to the wrapped strategy."""
        return self._strategy.take(result)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle asks for some before there is a strategy
            raise AttributeError(name)
        return getattr(self._strategy, name)


class RandomSchedules:
    """The strategy that runs random schedules, one for each seed from `seed` on, without end; schedules may repeat.

    It is complete only if the first execution had no choice.
    """

    coverage = None
    limits = ""
    outside = ""
    parts_of_task = 1

    def __init__(self, seed: int, policy: str, option: int | None) -> None:
        self._seed = seed
        self._policy = policy
        self._option = option
        self._choices = 0
        """The largest number of choices that an execution had so far."""
        self.is_complete = False
        self._end: int | None = None
        """The seed before which a part ends."""

    def next_policy(self) -> Policy | None:
        """Return the policy of the next seed."""
        if self.is_complete or self._seed == self._end:
            return None
        return POLICIES[self._policy].make_policy(self._seed, self._option, self._choices or CHOICES)

    def take(self, result: Result) -> Finding | None:
        """Learn the number of choices of an execution, and go on to the next seed."""
        self._seed += 1
        self._choices = max(self._choices, len(result.schedule.choices))
        self.is_complete = self._choices == 0
        return None

    def next_part(self, most: int) -> "RandomSchedules | None":
        """Return the next `most` seeds."""
        part = copy(self)
        part._end = self._seed + most
        return None if self.is_complete else part

    def absorb(self, end: "RandomSchedules") -> None:
        """Go on with the seed at which a part ended."""
        self._seed, self._choices = end._seed, max(self._choices, end._choices)
        self.is_complete = end.is_complete and self._choices == 0  # a part in which nothing ran is not complete

    def skip(self, part: "RandomSchedules") -> None:
        """Go on with the seed at which a part will end."""
        assert part._end is not None
        self._seed = part._end

    @property
    def key(self) -> tuple[object, ...]:
        """The first seed, and what earlier executions tell the policy."""
        return self._seed, self._choices if self._policy == "pct" else 0


class CoveringThenDrawn(ForwardingStrategy):
    """A strategy that could cover all schedules, and draws them once it is told that the budget will not suffice: those
    that it has run until then may all be alike."""

    def __init__(self, strategy: Strategy, drawn: Strategy) -> None:
        super().__init__(strategy)
        self._drawn = drawn

    def draw_from_now_on(self) -> None:
        """Run random schedules from now on. Optional in a strategy: called for the last tenth of a budget."""
        self._strategy = self._drawn


COVERING: dict[str, Callable[[int, int | None], Strategy]] = {
    "dpor": lambda world_size, option: Dpor(world_size),
    "dfs": lambda world_size, option: Dfs(preemptions=option),
}
"""By policy name, a function that makes a strategy, which can cover all schedules, from world size and option."""


def strategy_by_name(
    policy: str | Strategy, world_size: int, *, seed: int = 0, depth: int | None = None, preemptions: int | None = None
) -> Strategy:
    """Return the strategy with a given name and options. Raises UsageError for an unknown name or option."""
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
        strategy = COVERING[policy](world_size, wanted)
        return CoveringThenDrawn(strategy, RandomSchedules(seed, "random", None)) if policy == "dpor" else strategy
    row.make_policy(seed, wanted)  # a wrong option raises now
    return RandomSchedules(seed, policy, wanted)
