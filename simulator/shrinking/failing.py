"""Decides whether two runs fail in the same way."""

from __future__ import annotations

from typing import NamedTuple

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Code, Verdict


class Failure(NamedTuple):
    """The features that equal failures share."""

    code: Code
    """The code of the first finding."""
    error: type[BaseException] | None
    """What was raised, where that is the finding: of the many errors that a rank can raise, no other will do."""

    def is_that_of(self, result: Result) -> bool:
        """True if the run failed in this way."""
        return result.verdict is Verdict.FAIL and _failure(result) == self


def failure_of(result: Result, name: str) -> Failure:
    """How a run failed. Raises UsageError if it did not; `name` is what the user calls it."""
    if result.verdict is not Verdict.FAIL:
        not_struck = f" ({result.not_struck})" if result.not_struck else ""
        raise UsageError(
            f"{name} comes to {result.verdict.value} under this schedule{not_struck}, expected a failure to shrink: "
            "give the schedule that it fails under"
        )
    return _failure(result)


def _failure(result: Result) -> Failure:
    code = result.findings[0].code
    error = next(iter(result.errors.values()), None) if code is Code.RANK_ERROR else None
    return Failure(code, None if error is None else type(error))
