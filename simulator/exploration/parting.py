"""What differs between an execution that failed and one that passed: the first choice, with as many as can be the same.

Two schedules that an exploration happened to meet may part at their first choice, and differ in a hundred others. Of
the schedules that take the failing one's first choices and the passing one's others there are two neighbours, of which
one passes and the other does not: a search by halves finds them in a few executions. They part at one choice, which
decides.
"""

from __future__ import annotations

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


def closest_pass(failing: Result, passing: Result | None, run: Run) -> tuple[Result, Parting] | None:
    """An execution that passes and shares as many of the failing one's first choices as can be found; where they part.

    Without one that passed, the default is tried. None where that does not pass, or a run does not repeat itself.
    """
    failed = failing.schedule.choices
    passed = () if passing is None else passing.schedule.choices
    length = max(len(failed), len(passed))
    failed, passed = (each + (0,) * (length - len(each)) for each in (failed, passed))
    shared = next((number for number in range(length) if failed[number] != passed[number]), None)
    if shared is None:
        return None
    found, choices = run(passed)
    differs = length
    while found.verdict is Verdict.PASS and differs - shared > 1:
        middle = (shared + differs) // 2
        result, offered = run(failed[:middle] + passed[middle:])
        if result.verdict is Verdict.PASS:
            found, choices, shared = result, offered, middle
        else:
            differs = middle
    parting = _parting(failed, choices)
    return None if found.verdict is not Verdict.PASS or parting is None else (found, parting)


def _parting(failed: Sequence[int], passing: Sequence[Choice]) -> Parting | None:
    """Where a run left the choices of the one that failed; None if it took what those take as far as they go."""
    for number, (taken, choice) in enumerate(zip(failed, passing, strict=False)):
        if taken != choice.taken:
            if taken >= len(choice.options):
                return None  # the program offers other choices now
            return Parting(tuple(passing[:number]), choice._replace(taken=taken), choice)
    return None
