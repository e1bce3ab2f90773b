"""Outcomes: the result of an execution as a short text, equal for all executions with equal results.

An outcome has the verdict and the findings with their ranks, but no times. So equivalent schedules have the same
outcome, whichever schedule was run.

Numbers in returned values have six digits, since further digits depend on the processor. A value of an unknown type is
shown as its type: its repr may contain an id(), which differs between runs.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from math import prod
from typing import Any, NamedTuple

from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Code, Finding, Verdict
from ddpsim.simulator.wording import rank_list


class Outcome(NamedTuple):
    """The result of one execution, as text."""

    judgement: str
    """The verdict and the findings."""
    returned: str
    """The values that the ranks returned, if the execution passed."""


def outcome_of_result(result: Result) -> Outcome:
    """Return the outcome of an execution."""
    judgement = "  ".join([result.verdict.value, *sorted({_finding_text(each) for each in _stable_findings(result)})])
    return Outcome(judgement, value_text(result.returns) if result.verdict is Verdict.PASS else "")


def count_outcomes(outcomes: Counter[Outcome]) -> Counter[str]:
    """Count outcomes by their text. The text has the returned values only if executions differ in them."""
    variants = Counter(outcome.judgement for outcome in outcomes)
    counts = Counter[str]()
    for (judgement, returned), count in outcomes.items():
        counts[judgement if variants[judgement] == 1 else f"{judgement}  returned {returned}"] = count
    return counts


def _stable_findings(result: Result) -> list[Finding]:
    """Return the findings (errors) that do not depend on the progress of other ranks.

    A mismatch ends a run at once, so it is chance whether an uninvolved rank raised an error before: such errors are
    left out. So are the hazards of a run that did not pass.
    """
    mismatches = [each for each in result.findings if each.code.value.startswith("mismatch.")]
    if mismatches:
        return [each for each in result.findings if each in mismatches or each.code is Code.NONDETERMINISM]
    is_pass = result.verdict is Verdict.PASS
    return [each for each in result.findings if is_pass or not each.code.value.startswith("hazard.")]


def _finding_text(finding: Finding) -> str:
    return f"{finding.code} {rank_list(finding.ranks)}" if finding.ranks else str(finding.code)


_LONGEST = 80
_MOST_NUMBERS = 4096
"""A tensor with more numbers than this is shown by its first numbers and their sum."""
_DEEPEST = 20


def value_text(value: Any) -> str:
    """Return a value that a rank returned as text; a long text is cut, and ends in a digest of the whole text."""
    text = _nested_value_text(value, 0)
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{text[: _LONGEST - 15].rstrip()}... #{digest}"


def _nested_value_text(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        return "..."
    inside = partial(_nested_value_text, depth=depth + 1)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (bool, int, complex, str, bytes)):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(inside, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{inside(key)}: {inside(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(inside, value))) + "}"
    try:
        return _object_text(value, inside)
    except Exception:  # the user's code raised, or a tensor has no numbers (meta)
        return type(value).__name__


def _object_text(value: Any, inside: Callable[[Any], str]) -> str:
    """Return an object as text; `inside` is a function that returns the text of a value inside the object."""
    name = type(value).__name__
    if isinstance(value, BaseException):
        return f"{name}({value})"
    if is_dataclass(value) and not isinstance(value, type):
        inner = ", ".join(f"{field.name}={inside(getattr(value, field.name))}" for field in fields(value))
        return f"{name}({inner})"
    if callable(getattr(value, "tolist", None)):  # a tensor, or an array or number of numpy's
        shape = list(value.shape)
        if prod(shape) <= _MOST_NUMBERS:
            return inside(value.tolist())
        return f"{inside(value.flatten()[:8].tolist())[:-1]}, ...] of {shape} with sum {inside(value.sum().item())}"
    if callable(getattr(value, "state_dict", None)):
        return f"{name}({inside(dict(value.state_dict()))})"
    return name
