"""The finding for `agree()` calls to which ranks passed different values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import Row, heading, minority, table
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, rank_list, ranks_by


class AgreedValue(NamedTuple):
    """The value that one rank passed to `agree()`."""

    rank: int
    value: str
    """Equal texts for equal values."""
    site: Site


def values_differ(name: str, number: int, said: Sequence[AgreedValue], step: int) -> Finding:
    """Return the finding for call `number` of `agree(name)`, given the values of the ranks that made it."""
    said = sorted(said)
    sides = ranks_by((each.rank, each.value) for each in said)
    culprits = minority(sides.values())
    values = " against ".join(f"{value} on {rank_list(ranks)}" for value, ranks in sides.items())
    summary = f"agree({name!r}) #{number}: {values}"
    rows = [Row(each.rank, f"{name} = {each.value}", str(each.site)) for each in said]
    lines: list[str | Line] = [heading("MISMATCH", Code.MISMATCH_VALUE, step), *table(rows)]
    lines += Cause.VALUES_DIFFER.lines(fact=name)
    ordered = sorted(said, key=lambda each: (each.rank not in culprits, each.rank))
    sites = tuple(dict.fromkeys(each.site for each in ordered))
    return Finding(Code.MISMATCH_VALUE, culprits, summary, tuple(lines), sites)
