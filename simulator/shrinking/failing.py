"""When does something fail in the same way as something else?"""

from __future__ import annotations

from simulator.errors import UsageError
from simulator.result import Result
from simulator.verdict import Code, Verdict


def failure_of(result: Result, name: str) -> Code:
    """The code of the finding that leads a failure; what fails in the same way has it, too.

    Raises UsageError for a run that did not fail.
    """
    if result.verdict is not Verdict.FAIL:
        raise UsageError(
            f"{name} comes to {result.verdict.value} under this schedule, expected a failure to shrink: give the "
            "schedule it fails under"
        )
    return result.findings[0].code


def fails_with(result: Result, code: Code) -> bool:
    """True if the run failed, and this is what leads its text."""
    return result.verdict is Verdict.FAIL and result.findings[0].code is code
