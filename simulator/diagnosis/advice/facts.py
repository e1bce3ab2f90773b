"""What a row of the table of causes is made of: the facts that it speaks of, and two lines with braces for them.

mypy tells of a fact that is forgotten, and a test that each row can be filled in with its facts. `{its}`, `{has}` and
`{is}` follow their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, ParamSpec

from ddpsim.simulator.wording import Line

_SINGULAR = {"its": "its", "has": "has", "is": "is"}
_PLURAL = {"its": "their", "has": "have", "is": "are"}

P = ParamSpec("P")


# --- facts, as words that stand in a sentence -------------------------------------------------------------------------


class Nothing(NamedTuple):
    """A cause that is the same wherever it applies."""


class Ranks(NamedTuple):
    """`rank 2`, `ranks 0, 1` or `some ranks`: mostly those to blame."""

    who: str


class RanksAt(NamedTuple):
    """With a line of the program: `train.py:7`."""

    who: str
    site: str


class Made(NamedTuple):
    """With an operation, of theirs or others: `barrier`, or one call, as `barrier #1`."""

    who: str
    operation: str


class MadeAt(NamedTuple):
    """With the line, too."""

    who: str
    operation: str
    site: str


class MadeBecause(NamedTuple):
    """With what had happened to them, as `raised KeyError`."""

    who: str
    operation: str
    fact: str


class Breaks(NamedTuple):
    """A call that breaks a rule of the others: what it has, and what they have."""

    who: str
    operation: str
    site: str
    fact: str
    usual: str


class Argument(NamedTuple):
    """With what differs in a call: `shape`."""

    who: str
    field: str


class Parameters(NamedTuple):
    """With the names of parameters, if they are known."""

    who: str
    parameters: str = "some parameters"


class Lines(NamedTuple):
    """Where calls of different lines met: who was where, and the line of those to blame."""

    operation: str
    sides: str
    site: str


class Steps(NamedTuple):
    """A line that ranks came to in different steps."""

    site: str
    ahead: str
    behind: str


class CallAt(NamedTuple):
    """A call and its line."""

    operation: str
    site: str


class Messages(NamedTuple):
    """What a message is on the side that sends it, and on the other."""

    sent: str
    expected: str


class Told(NamedTuple):
    """With the one thing to tell of them."""

    who: str
    fact: str


class Fact(NamedTuple):
    """The one thing that the cause speaks of."""

    fact: str


# --- rows of the table ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advice(Generic[P]):
    """The last two lines of a finding, with braces for the facts."""

    facts: Callable[P, NamedTuple]
    cause: str
    remedy: str

    def lines(self, *args: P.args, **kwargs: P.kwargs) -> list[Line]:
        """The two lines for these facts."""
        facts = self.facts(*args, **kwargs)._asdict()
        number = _PLURAL if facts.get("who", "").startswith(("ranks", "some")) else _SINGULAR
        cause, remedy = (text.format(**number, **facts) for text in (self.cause, self.remedy))
        return [Line("cause", cause), Line("try", remedy)]


def about(facts: Callable[P, NamedTuple]) -> Callable[[str, str], Advice[P]]:
    """Makes a row of the table, of cause and remedy, whose braces are the fields of `facts`."""
    return lambda cause, remedy: Advice(facts, cause, remedy)
