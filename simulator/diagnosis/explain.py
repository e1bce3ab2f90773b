"""What findings share: the parts of their text, from the heading to a line a rank, and whose lines come first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.wording import rank_list, ranks_by

MANY_RANKS = 8
"""More ranks than this with the same line share one."""


def heading(kind: str, code: Code, step: int | None) -> str:
    """The first line of a diagnosis; a record of a real job has no steps."""
    return f"{kind}  {code}" + ("" if step is None else f"  at step {step}")


def shortened(text: str, width: int = 72) -> str:
    """A line that fits into a table."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def elided(texts: Sequence[str]) -> list[str]:
    """A list that fits into a few lines: of more than 16, the first eight and the last four, with "..." between."""
    return list(texts) if len(texts) <= 2 * MANY_RANKS else [*texts[:MANY_RANKS], "...", *texts[-MANY_RANKS // 2 :]]


class Row(NamedTuple):
    """What a finding says of one rank, or of one of its threads."""

    rank: int
    what: str
    where: str = ""
    more: str = ""
    thread: str = ""
    """Its name; "" for the one that runs the rank's program."""
    coordinates: str = ""
    """Where the rank stands in the program's device mesh."""


def table(rows: Sequence[Row]) -> list[str]:
    """Rows in columns, by rank; where more than MANY_RANKS are equal they share a line, and it stays in its place."""
    shared = ranks_by((row.rank, row._replace(rank=0, coordinates="")) for row in rows)
    names = {row.rank: f"rank {row.rank}" + (f" ({row.coordinates})" if row.coordinates else "") for row in rows}
    if any(len(ranks) > MANY_RANKS for ranks in shared.values()):
        cells = [cell for row, ranks in shared.items() for cell in _shared(row, ranks, names)]
    else:
        cells = [(names[row.rank], row) for row in sorted(rows, key=lambda row: (row.rank, row.thread, row))]
    lines = [(label + _of_thread(row.thread), row.what, row.where, row.more) for label, row in cells]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, [*widths, 0], strict=True)).rstrip()
        for line in lines
    ]


def _shared(row: Row, ranks: Sequence[int], names: Mapping[int, str]) -> list[tuple[str, Row]]:
    if len(ranks) > MANY_RANKS:
        return [(rank_list(ranks), row._replace(what=of_many(row.what)))]
    return [(names[rank], row) for rank in ranks]


_VERBS = frozenset({"waits", "changes", "sets", "starts", "reads"})


def of_many(what: str) -> str:
    """What one rank does, as said of several: `waits in recv`, `is over, and waits for`, `was killed` follow suit."""
    first, space, rest = what.partition(" ")
    words = {"is": "are", "was": "were", "has": "have"}
    plain = first.removesuffix("s") if first in _VERBS else first
    return words.get(first, plain) + space + rest.replace("over, and waits", "over, and wait", 1)


def _of_thread(name: str) -> str:
    return f', thread "{name}"' if name else ""


# --- whose fault it is ------------------------------------------------------------------------------------------------


def minority(sides: Iterable[Collection[int]]) -> tuple[int, ...]:
    """The ranks outside the largest side; all of them if no side is the largest."""
    by_size = sorted(sides, key=len)
    has_largest = len(by_size) > 1 and len(by_size[-2]) < len(by_size[-1])
    return tuple(sorted({rank for side in (by_size[:-1] if has_largest else by_size) for rank in side}))


def sites_of(calls: Iterable[Call], culprits: Collection[int]) -> tuple[Site, ...]:
    """The lines that made calls, the culprits' first."""
    ordered = sorted(calls, key=lambda call: (call.rank not in culprits, call.rank))
    return with_callers([call.site for call in ordered], ordered)


def with_callers(sites: Iterable[Site], calls: Sequence[Call]) -> tuple[Site, ...]:
    """Lines, each once; one that calls came to from several others, which tell these apart, is followed by them."""
    callers: dict[Site, dict[Site, None]] = {}
    for call in calls:
        if call.caller is not None:
            callers.setdefault(call.site, {})[call.caller] = None
    several = {site: own for site, own in callers.items() if len(own) > 1}
    return tuple(dict.fromkeys(each for site in sites for each in (site, *several.get(site, ()))))
