"""The finding for collectives that combine tensors of different names: ranks loop over them in different orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import (
    TableRow,
    format_table,
    ranks_outside_largest,
    sites_culprits_first,
    summarized_finding,
)
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import rank_list, ranks_by_value

MOST_NAMED = 256
"""The most tensors of one line whose names are looked up; a look-up takes as long as half a call."""


class TensorName(NamedTuple):
    """The name that a tensor has on a rank."""

    text: str
    is_sure: bool
    """True if the tensor belongs to a module or an optimizer."""


NamedCall = tuple[Call, TensorName]
"""A call, with the name of its tensor."""


def exchanged_names_finding(named: Mapping[int, Sequence[NamedCall]]) -> Finding | None:
    """Return the finding for the calls of one line and group, if ranks used the same names in different orders.

    Different names may be intended. So all ranks must have the same names, equally often, in matched calls.
    """
    ranks = list(named.values())
    names = [[name.text for _, name in calls] for calls in ranks]
    sequences = [[call.sequence for call, _ in calls] for calls in ranks]
    if len(ranks) < 2 or any(each != sequences[0] for each in sequences) or all(each == names[0] for each in names):
        return None
    # All calls are compared; or only the first, if later ones have no names, without the last round.
    longest = len(names[0])
    for length in range(longest, longest // 2 if longest >= MOST_NAMED else longest - 1, -1):
        if all(sorted(each[:length]) == sorted(names[0][:length]) for each in names):
            break
    else:
        return None
    names = [each[:length] for each in names]
    if all(each == names[0] for each in names):
        return None
    first = next(index for index, met in enumerate(zip(*names, strict=True)) if len(set(met)) > 1)
    return _make_finding([calls[first] for _, calls in sorted(named.items())])


def _make_finding(met: Sequence[NamedCall]) -> Finding:
    sides = ranks_by_value((call.rank, name.text) for call, name in met)
    culprits = ranks_outside_largest(sides.values())
    calls = [call for call, _ in met]
    code = Code.MISMATCH_ORIGIN if all(name.is_sure for _, name in met) else Code.HAZARD_TENSOR_ORDER
    names = " meets ".join(f"{name} of {rank_list(ranks)}" for name, ranks in sides.items())
    summary = f'{calls[0].title} on group "{calls[0].group}": {names}'
    rows = format_table([TableRow(call.rank, f"{call}  {name.text}", call.location) for call, name in met])
    sites, advice = sites_culprits_first(calls, culprits), Cause.NAMES_MEET.lines()
    return summarized_finding(code, culprits, summary, rows, advice, sites=sites, calls=calls)
