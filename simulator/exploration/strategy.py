"""Strategies: which schedules an exploration runs, and when they are all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ddpsim.simulator.choices import Policy
from ddpsim.simulator.policies.pct import CHOICES
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Finding


class Strategy(Protocol):
    """Chooses the schedules. `next_policy` and `take` are called in turns; after a RedundantRun `take` is left out.

    `take` may raise RedundantRun, too.
    """

    def next_policy(self) -> Policy | None:
        """The policy of the next execution; None when there is none left."""

    def take(self, result: Result) -> Finding | None:
        """Learn from an execution; a finding if something is wrong with it that it does not tell itself."""

    @property
    def is_complete(self) -> bool:
        """True once what was run stands for every schedule there is."""

    @property
    def coverage(self) -> float | None:
        """An estimate of the share of all schedules that is covered, from 0 to 1; None if there is no saying."""

    @property
    def limits(self) -> str:
        """What holds of the schedules that are run at all, such as "with at most 2 preemptions"; "" for no limits."""

    @property
    def outside(self) -> str:
        """What ranks may do to each other, or hang on, that is not seen when schedules are taken for the same."""


class Wrapped:
    """Another strategy as it is; subclasses say what of it is not."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def next_policy(self) -> Policy | None:
        """That of the strategy."""
        return self._strategy.next_policy()

    def take(self, result: Result) -> Finding | None:
        """What the strategy says."""
        return self._strategy.take(result)

    @property
    def is_complete(self) -> bool:
        """That of the strategy."""
        return self._strategy.is_complete

    @property
    def coverage(self) -> float | None:
        """That of the strategy."""
        return self._strategy.coverage

    @property
    def limits(self) -> str:
        """That of the strategy."""
        return self._strategy.limits

    @property
    def outside(self) -> str:
        """That of the strategy."""
        return getattr(self._strategy, "outside", "")


class Walks:
    """Draws one execution from each of the seeds `seed`, `seed + 1`, ... without end; most are drawn more than once.

    So it covers nothing for certain, except where the first execution shows that nothing is open.
    """

    coverage = None
    limits = ""
    outside = ""

    def __init__(self, seed: int, policy: Callable[[int, int], Policy]) -> None:
        self._seed = seed
        self._policy = policy
        """Made from a seed and the number of choices to expect."""
        self._choices = 0
        """The most that an execution has had so far."""
        self.is_complete = False

    def next_policy(self) -> Policy | None:
        """The policy of the next seed."""
        if self.is_complete:
            return None
        self._seed += 1
        return self._policy(self._seed - 1, self._choices or CHOICES)

    def take(self, result: Result) -> Finding | None:
        """Learn how many choices there are."""
        self._choices = max(self._choices, len(result.schedule.choices))
        self.is_complete = self._choices == 0
        return None
