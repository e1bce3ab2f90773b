"""Finds the choice that makes a run fail: the end of the longest prefix of its choices after which a run can still
pass.

Two schedules of one exploration may differ in their first choice and in a hundred others. The deciding choice is found
by bisection: a run that can pass after a prefix can pass after every shorter prefix. After a prefix, three kinds of
continuation are tried: the choices of the run that passed, the defaults, and some random choices.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddpsim.simulator.result import Result
from ddpsim.simulator.transcript import TakenChoice
from ddpsim.simulator.verdict import Verdict

Run = Callable[[tuple[int, ...]], tuple[Result, Sequence[TakenChoice]]]
"""A function that runs the program under given choices (each clipped to its options), then the default; returns all
choices that the run offered."""


@dataclass(frozen=True, slots=True)
class DivergencePoint:
    """The first choice in which a failing and a passing run differ, and what comes before it."""

    before: tuple[TakenChoice, ...]
    """The equal choices before the choice that differs, in order."""
    failing: TakenChoice
    passing: TakenChoice


def find_closest_pass(
    failing: Result, passing: Result | None, run: Run, *, drawn: int = 0, is_over: Callable[[], bool] = lambda: False
) -> tuple[Result, DivergencePoint] | None:
    """Return a passing execution that shares the longest known prefix of choices with the failing one, and where the
    two differ.

    Without a passing execution, the default schedule is tried. Returns None if the default schedule does not pass, or
    if the failing schedule passes when it is repeated. `drawn` is the number of random continuations that are tried if
    other continuations fail. Once `is_over` returns True, the search ends with the best result so far.
    """
    failed = failing.schedule.choices
    passed = () if passing is None else passing.schedule.choices
    length = max(len(failed), len(passed))
    failed, passed = (each + (0,) * (length - len(each)) for each in (failed, passed))
    if failed == passed:
        return None
    found, choices = run(passed)
    ways = dict.fromkeys([passed, (0,) * length, *(_random_choices(seed, length) for seed in range(drawn))])
    shared, differs = _shared_prefix_length(failed, choices), length
    while found.verdict is Verdict.PASS and differs - shared > 1 and not is_over():
        middle = (shared + differs) // 2
        for way in ways:
            result, offered = run(failed[:middle] + way[middle:])
            if result.verdict is Verdict.PASS:
                found, choices, shared = result, offered, max(middle, _shared_prefix_length(failed, offered))
                break
        else:
            differs = middle
    point = _first_divergence(failed, choices)
    if found.verdict is not Verdict.PASS or point is None:
        return None
    again, _ = run(failed)  # a failure that does not only depend on the choices may pass now
    return None if again.verdict is Verdict.PASS else (found, point)


def _random_choices(seed: int, length: int) -> tuple[int, ...]:
    """Return random choices, used modulo the number of options, so that each of up to six options is equally likely."""
    numbers = random.Random(seed)
    return tuple(int(numbers.random() * 60) for _ in range(length))


def _shared_prefix_length(failed: Sequence[int], passing: Sequence[TakenChoice]) -> int:
    """Return how many choices a run has in common with the failed run, counted from the start."""
    pairs = enumerate(zip(failed, passing, strict=False))
    return next((number for number, (taken, choice) in pairs if taken != choice.taken), 0)


def _first_divergence(failed: Sequence[int], passing: Sequence[TakenChoice]) -> DivergencePoint | None:
    """Return the first choice in which a run differs from the failed run; None if there is none."""
    for number, (taken, choice) in enumerate(zip(failed, passing, strict=False)):
        if taken != choice.taken:
            if taken >= len(choice.options):
                return None  # the program offers other choices now
            return DivergencePoint(tuple(passing[:number]), choice._replace(taken=taken), choice)
    return None
