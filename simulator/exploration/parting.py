"""What differs between an execution that failed and one that passed: the first choice, with as many as can be the same.

Two schedules that an exploration happened to meet may part at their first choice, and differ in a hundred others. How
many of the failing one's choices can be kept, such that a run still passes if what follows is another? If some way on
passes after so many, one passes after fewer. So a search by halves finds the choice after which none does, as far as a
few ways on can tell: those of the run that passed, the defaults, and some that are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddpsim.simulator.result import Result
from ddpsim.simulator.transcript import Choice
from ddpsim.simulator.verdict import Verdict

Run = Callable[[tuple[int, ...]], tuple[Result, Sequence[Choice]]]
"""One execution under these choices, made to fit, and the default after them; with all that it was offered."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first choice that differs, at one point with the same options."""

    before: tuple[Choice, ...]
    """Those that are the same, in order."""
    failing: Choice
    passing: Choice


def closest_pass(
    failing: Result,
    passing: Result | None,
    run: Run,
    *,
    drawn: int = 0,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[Result, Parting] | None:
    """An execution that passes and shares as many of the failing one's first choices as can be found; where they part.

    Without one that passed, the default is tried. None where that does not pass, or a run does not repeat itself.
    `drawn` is how many ways on are drawn; each is an execution more where the others fail. Once `is_over` says so, what
    was found until then counts.
    """
    failed = failing.schedule.choices
    passed = () if passing is None else passing.schedule.choices
    length = max(len(failed), len(passed))
    failed, passed = (each + (0,) * (length - len(each)) for each in (failed, passed))
    if failed == passed:
        return None
    found, choices = run(passed)
    ways = dict.fromkeys([passed, (0,) * length, *(_drawn(seed, length) for seed in range(drawn))])
    shared, differs = _in_common(failed, choices), length
    while found.verdict is Verdict.PASS and differs - shared > 1 and not is_over():
        middle = (shared + differs) // 2
        for way in ways:
            result, offered = run(failed[:middle] + way[middle:])
            if result.verdict is Verdict.PASS:
                found, choices, shared = result, offered, max(middle, _in_common(failed, offered))
                break
        else:
            differs = middle
    parting = _parting(failed, choices)
    if found.verdict is not Verdict.PASS or parting is None:
        return None
    again, _ = run(failed)  # one that fails by chance, or by what runs leave behind, may pass by the same choices
    return None if again.verdict is Verdict.PASS else (found, parting)


def _drawn(seed: int, length: int) -> tuple[int, ...]:
    """A schedule that takes each of up to six options as often as the others."""
    numbers = random.Random(seed)
    return tuple(int(numbers.random() * 60) for _ in range(length))


def _in_common(failed: Sequence[int], passing: Sequence[Choice]) -> int:
    """How many of its first choices a run took as the one that failed."""
    pairs = enumerate(zip(failed, passing, strict=False))
    return next((number for number, (taken, choice) in pairs if taken != choice.taken), 0)


def _parting(failed: Sequence[int], passing: Sequence[Choice]) -> Parting | None:
    """Where a run left the choices of the one that failed; None if it took what those take as far as they go."""
    for number, (taken, choice) in enumerate(zip(failed, passing, strict=False)):
        if taken != choice.taken:
            if taken >= len(choice.options):
                return None  # the program offers other choices now
            return Parting(tuple(passing[:number]), choice._replace(taken=taken), choice)
    return None
