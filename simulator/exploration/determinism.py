"""The determinism check: each schedule runs twice, and both runs must offer the same choices and do the same.

Everything else relies on it: a replay, a search that repeats the start of an execution, and shrinking.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ddpsim.simulator.choices import ChoicePoint, Policy
from ddpsim.simulator.diagnosis.nondeterminism import Offer, RecordedRun, runs_differ
from ddpsim.simulator.result import Result


def run_twice(run: Callable[[Policy], Result], policy: Policy) -> Result:
    """Run twice under the same choices; return the first result, with a `nondeterminism` finding if they differ."""
    first = _Recorder(policy)
    result = run(first)
    second = _Recorder(_Recorded(first.choices))
    again = run(second)
    finding = runs_differ(
        RecordedRun(tuple(first.offers), result.trace), RecordedRun(tuple(second.offers), again.trace)
    )
    if finding is None:
        return result
    return dataclasses.replace(result, findings=(finding, *result.findings)).with_replay(result.replay)


class _Recorder:
    """Wraps a policy and records its choice points and its choices."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.observer = getattr(policy, "observer", None)
        self.offers: list[Offer] = []
        self.choices: list[int] = []

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        self.offers.append(Offer(point, tuple(options)))
        choice = self._policy.choose(point, options)
        self.choices.append(choice)
        return choice


class _Recorded:
    """A policy that repeats recorded choices; takes the default if an option is missing (the runs differ then)."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = iter(choices)

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        choice = next(self._choices, 0)
        return choice if choice < len(options) else 0
