"""The rows of the table of causes: each has two lines of text with braces, and the facts that fill the braces. mypy
reports a missing fact, and a test fills in each row.

`{its}`, `{has}` and `{is}` are singular or plural like `{who}`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, ParamSpec

from ddpsim.simulator.wording import LabelledLine

_SINGULAR = {"its": "its", "has": "has", "is": "is"}
_PLURAL = {"its": "their", "has": "have", "is": "are"}

P = ParamSpec("P")


class NoFacts(NamedTuple):
    """The facts of a cause whose text has no braces."""


class Ranks(NamedTuple):
    """Ranks, usually the ranks at fault, as text: `rank 2`, `ranks 0, 1` or `some ranks`."""

    who: str


class RanksAndCall(NamedTuple):
    """Ranks, and an operation (`barrier`) or call (`barrier #1`) of these or other ranks."""

    who: str
    operation: str


class RanksCallAndFact(NamedTuple):
    """Ranks, an operation or call, and one more fact about the ranks."""

    who: str
    operation: str
    fact: str


class PatternBreak(NamedTuple):
    """A call that breaks a pattern: its value (such as a peer), and the value that other calls usually have."""

    who: str
    operation: str
    site: str
    fact: str
    usual: str


class RanksAndParameters(NamedTuple):
    """Ranks and the names of parameters, if they are known."""

    who: str
    parameters: str = "some parameters"


class MatchedCallLines(NamedTuple):
    """Matched calls from different lines: the ranks of each line, and the line to blame."""

    operation: str
    sides: str
    site: str


class StepsOfLine(NamedTuple):
    """A line of the program that ranks reached in different training steps."""

    site: str
    ahead: str
    behind: str


class RanksAndFact(NamedTuple):
    """Ranks and one fact about them, such as a line, or the argument in which their calls differ."""

    who: str
    fact: str


class FactAndSite(NamedTuple):
    """One fact about the calls of a line of the program."""

    fact: str
    site: str


class OneFact(NamedTuple):
    """One fact as text."""

    fact: str


@dataclass(frozen=True, slots=True)
class Advice(Generic[P]):
    """A cause and what to try: the last two lines of a finding, with braces in place of facts."""

    facts: Callable[P, NamedTuple]
    cause: str
    remedy: str

    def is_text(self, text: str) -> bool:
        """Return True for a text that is this cause with some facts."""
        return bool(re.fullmatch(re.sub(r"\\{\w+\\}", ".*", re.escape(self.cause)), text))

    def lines(self, *args: P.args, **kwargs: P.kwargs) -> list[LabelledLine]:
        """Return the two lines, with these facts in place of the braces."""
        facts = self.facts(*args, **kwargs)._asdict()
        number = _PLURAL if facts.get("who", "").startswith(("ranks", "some")) else _SINGULAR
        cause, remedy = (text.format(**number, **facts) for text in (self.cause, self.remedy))
        return [LabelledLine("cause", cause), LabelledLine("try", remedy)]


def make_advice(facts: Callable[P, NamedTuple]) -> Callable[[str, str], Advice[P]]:
    """Return a row of the table from its cause and what to try. Braces in both name fields of the type `facts`."""
    return lambda cause, remedy: Advice(facts, cause, remedy)
