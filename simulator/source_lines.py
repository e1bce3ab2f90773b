"""Lines of the user's program with their source, as a finding tells them: where it happened, the culprits' first."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence

from ddpsim.simulator.calls import NOWHERE, Call, Site
from ddpsim.simulator.wording import Line

_MOST = 3
_LONGEST = 100
"""Characters of a line of source; the rest is left out."""


def where_lines(sites: Sequence[Site], told: str, calls: Sequence[Call] = ()) -> tuple[Line, ...]:
    """A line for each of the first sites whose source is there, but for source that is told already.

    One of an installed package follows those of the program's own that `calls` were made from there.
    """
    found = []
    for site in [site for site in dict.fromkeys(_with_own(sites, calls)) if site != NOWHERE][:_MOST]:
        source = linecache.getline(site.path, site.line).strip()
        if source and source not in told:
            found.append(Line("where", f"{site}  {_cut(source)}"))
    return tuple(found)


def _with_own(sites: Sequence[Site], calls: Sequence[Call]) -> Iterator[Site]:
    for site in sites:
        if site.is_installed:
            yield from (call.caller for call in calls if call.site == site and call.caller is not None)
        yield site


def _cut(source: str) -> str:
    return source if len(source) <= _LONGEST else f"{source[: _LONGEST - 3]}..."
