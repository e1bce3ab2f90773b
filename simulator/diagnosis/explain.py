"""Shared parts of findings: the heading, the table of ranks, the culprits of a majority vote, the order of lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.wording import rank_list, ranks_by

MANY_RANKS = 8
"""More ranks than this with equal rows share one row."""


def heading(kind: str, code: Code, step: int | None) -> str:
    """Return the first line of a diagnosis; a record of a real job has no step."""
    return f"{kind}  {code}" + ("" if step is None else f"  at step {step}")


def shortened(text: str, width: int = 72) -> str:
    """Return a text cut to `width` characters."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def elided(texts: Sequence[str]) -> list[str]:
    """Return a short list: of more than 16 texts, the first eight and the last four, with "..." between."""
    return list(texts) if len(texts) <= 2 * MANY_RANKS else [*texts[:MANY_RANKS], "...", *texts[-MANY_RANKS // 2 :]]


class Row(NamedTuple):
    """A row of a finding's table: what one rank, or one of its threads, does."""

    rank: int
    what: str
    where: str = ""
    more: str = ""
    thread: str = ""
    """The thread's name; "" for the thread that runs the rank's program."""
    coordinates: str = ""
    """The rank's coordinates in the program's device mesh."""


def table(rows: Sequence[Row]) -> list[str]:
    """Return the rows as aligned lines, by rank; more than MANY_RANKS equal rows share one line."""
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
    """Return a rank's text in the plural: "waits in recv" becomes "wait in recv", "was killed" "were killed"."""
    first, space, rest = what.partition(" ")
    words = {"is": "are", "was": "were", "has": "have"}
    plain = first.removesuffix("s") if first in _VERBS else first
    return words.get(first, plain) + space + rest.replace("over, and waits", "over, and wait", 1)


def _of_thread(name: str) -> str:
    return f', thread "{name}"' if name else ""


# --- ranks at fault ---------------------------------------------------------------------------------------------------


def minority(sides: Iterable[Collection[int]]) -> tuple[int, ...]:
    """Return the ranks outside the largest side; all ranks if no side is larger than the others."""
    by_size = sorted(sides, key=len)
    has_largest = len(by_size) > 1 and len(by_size[-2]) < len(by_size[-1])
    return tuple(sorted({rank for side in (by_size[:-1] if has_largest else by_size) for rank in side}))


def sites_of(calls: Iterable[Call], culprits: Collection[int]) -> tuple[Site, ...]:
    """Return the lines that made the calls, the culprits' lines first."""
    ordered = sorted(calls, key=lambda call: (call.rank not in culprits, call.rank))
    return with_callers([call.site for call in ordered], ordered)


def with_callers(sites: Iterable[Site], calls: Sequence[Call]) -> tuple[Site, ...]:
    """Return each line once; a line called from several other lines is followed by those."""
    callers: dict[Site, dict[Site, None]] = {}
    for call in calls:
        if call.caller is not None:
            callers.setdefault(call.site, {})[call.caller] = None
    several = {site: own for site, own in callers.items() if len(own) > 1}
    return tuple(dict.fromkeys(each for site in sites for each in (site, *several.get(site, ()))))
