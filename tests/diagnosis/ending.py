"""How a finding ends, as the tests of causes share it."""

import re

from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.wording import rank_list

TABLE = {name: row for family in Cause.__bases__ for name, row in vars(family).items() if isinstance(row, Advice)}
"""All causes, by name."""

_ANY = "@"


def end(finding):
    """Cause and remedy, without their labels."""
    *_, cause, remedy = finding.body.splitlines()
    assert cause.startswith("  cause   ")
    assert remedy.startswith("  try     ")
    return cause[10:], remedy[10:]


def ends_with(finding, advice, **facts):
    """That it ends with a row of the table, about its culprits; what `facts` leave out of the other braces is open."""
    facts = {"who": rank_list(finding.ranks)} | facts
    expected = "\n".join(map(str, advice.lines(*[facts.get(name, _ANY) for name in advice.facts._fields])))
    found = "\n".join(finding.body.splitlines()[-2:])
    assert re.fullmatch(re.escape(expected).replace(_ANY, ".+"), found), f"{found}\ninstead of\n{expected}"
