"""Shared parts of findings: their first line, the table of ranks, ranks that differ from most, lines of the program."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import LabelledLine, rank_list, ranks_by_value

T = TypeVar("T")

MANY_RANKS = 8
"""If more ranks than this have equal table rows, these ranks share one row."""

_KINDS = {Code.RANK_ERROR: "ERROR", Code.UNCHECKED: "UNKNOWN"}


def finding_heading(code: Code, step: int | None = None) -> str:
    """Return the first line of a finding: kind, code, and the step if there is one (a job's records have none)."""
    kind = _KINDS.get(code) or code.value.partition(".")[0].upper()
    return f"{kind}  {code}" + ("" if step is None else f"  at step {step}")


def finding_lines(
    code: Code, *parts: Iterable[str | LabelledLine], step: int | None = None
) -> tuple[str | LabelledLine, ...]:
    """Return a finding's text: its first line, then these parts."""
    return (finding_heading(code, step), *chain.from_iterable(parts))


def summarized_finding(
    code: Code,
    ranks: tuple[int, ...],
    summary: str,
    *parts: Iterable[str | LabelledLine],
    sites: tuple[Site, ...] = (),
    calls: Sequence[Call] = (),
) -> Finding:
    """Return a finding whose text is a first line, this summary and these parts."""
    return Finding(code, ranks, summary, finding_lines(code, [f"  {summary}"], *parts), sites, calls=tuple(calls))


def shorten_text(text: str, width: int = 72) -> str:
    """Return a text cut to `width` characters."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def shorten_list(texts: Sequence[str]) -> list[str]:
    """Return a short list: of more than 16 texts, the first eight and the last four, with "..." between."""
    return list(texts) if len(texts) <= 2 * MANY_RANKS else [*texts[:MANY_RANKS], "...", *texts[-MANY_RANKS // 2 :]]


class TableRow(NamedTuple):
    """A row of a finding's table: what one rank, or one of its threads, does."""

    rank: int
    what: str
    where: str = ""
    more: str = ""
    thread: str = ""
    """The thread's name; "" for the thread that runs the rank's program."""
    coordinates: str = ""
    """The rank's coordinates in the program's device mesh."""


def format_call_table(calls: Iterable[Call]) -> list[str]:
    """Return a table with a row for each call: its rank, its arguments and its line."""
    return format_table([TableRow(call.rank, str(call), call.location, coordinates=call.coordinates) for call in calls])


def format_table(rows: Sequence[TableRow]) -> list[str]:
    """Return the table as aligned lines, by rank; more than MANY_RANKS ranks with equal rows share one line."""
    shared = ranks_by_value((row.rank, row._replace(rank=0, coordinates="")) for row in rows)
    names = {row.rank: f"rank {row.rank}" + (f" ({row.coordinates})" if row.coordinates else "") for row in rows}
    if any(len(ranks) > MANY_RANKS for ranks in shared.values()):
        cells = []
        for row, ranks in shared.items():
            if len(ranks) > MANY_RANKS:
                cells.append((rank_list(ranks), row._replace(what=put_verb_in_plural(row.what))))
            else:
                cells += [(names[rank], row) for rank in ranks]
    else:
        cells = [(names[row.rank], row) for row in sorted(rows, key=lambda row: (row.rank, row.thread, row))]
    cells = [(f'{label}, thread "{row.thread}"' if row.thread else label, row) for label, row in cells]
    lines = [(label, row.what, row.where, row.more) for label, row in cells]
    widths = [max((len(line[column]) for line in lines), default=0) for column in range(3)]
    rows_of_cells = (zip(line, [*widths, 0], strict=True) for line in lines)
    return ["  " + "  ".join(f"{cell:<{width}}" for cell, width in row).rstrip() for row in rows_of_cells]


_VERBS = frozenset({"waits", "changes", "sets", "starts", "reads"})


def put_verb_in_plural(what: str) -> str:
    """Return a rank's text in the plural: "waits in recv" becomes "wait in recv", "was killed" "were killed"."""
    first, space, rest = what.partition(" ")
    words = {"is": "are", "was": "were", "has": "have"}
    plain = first.removesuffix("s") if first in _VERBS else first
    return words.get(first, plain) + space + rest.replace("over, and waits", "over, and wait", 1)


def ranks_text(calls: Iterable[Call]) -> str:
    """Return the ranks that made the calls, as text."""
    return rank_list(call.rank for call in calls)


def operations_text(calls: Iterable[Call]) -> str:
    """Return the operations of the calls, as text."""
    return " and ".join(dict.fromkeys(call.operation for call in calls))


def sites_text(calls: Iterable[Call]) -> str:
    """Return the program's lines that made the calls, as text."""
    return " and ".join(dict.fromkeys(str(call.site) for call in calls))


def values_with_ranks_text(sides: Mapping[T, Collection[int]]) -> str:
    """Return each value and the ranks that have it, as text: `SUM on rank 0 against AVG on ranks 1, 2`."""
    return " against ".join(f"{value} on {rank_list(ranks)}" for value, ranks in sides.items())


def ranks_outside_largest(sides: Iterable[Collection[int]]) -> tuple[int, ...]:
    """Return the ranks outside the largest set of ranks with one value; all ranks if two sets are largest."""
    by_size = sorted(sides, key=len)
    has_largest = len(by_size) > 1 and len(by_size[-2]) < len(by_size[-1])
    return tuple(sorted({rank for side in (by_size[:-1] if has_largest else by_size) for rank in side}))


def sites_culprits_first(calls: Iterable[Call], culprits: Collection[int]) -> tuple[Site, ...]:
    """Return the program's lines that made the calls, the lines of ranks at fault first."""
    ordered = sorted(calls, key=lambda call: (call.rank not in culprits, call.rank))
    return sites_with_callers([call.site for call in ordered], ordered)


def sites_with_callers(sites: Iterable[Site], calls: Sequence[Call]) -> tuple[Site, ...]:
    """Return each line of the program once; if several other lines called it, these callers follow."""
    callers: dict[Site, dict[Site, None]] = {}
    for call in calls:
        if call.caller is not None:
            callers.setdefault(call.site, {})[call.caller] = None
    several = {site: own for site, own in callers.items() if len(own) > 1}
    return tuple(dict.fromkeys(each for site in sites for each in (site, *several.get(site, ()))))
