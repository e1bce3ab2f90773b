"""Collects the lines of the user's program for a document, each with a few lines of source around it."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable

from ddpsim.reports.document import Site
from ddpsim.simulator.calls import NOWHERE
from ddpsim.simulator.calls import Site as CallSite

_AROUND = 3
"""Lines of source before a line, and after it."""
_LONGEST = 200
"""Characters of a line of source; the rest is cut."""


class Sites:
    """The table of sites, in the order of their first use."""

    def __init__(self) -> None:
        self._indices: dict[CallSite, int] = {}

    def index(self, site: CallSite | None) -> int | None:
        """Return the index of a site; None if there is no site."""
        if site is None or site == NOWHERE:
            return None
        return self._indices.setdefault(site, len(self._indices))

    def indices(self, sites: Iterable[CallSite]) -> tuple[int, ...]:
        """Return the indices of these sites, without those that are NOWHERE."""
        return tuple(index for site in sites if (index := self.index(site)) is not None)

    def table(self) -> tuple[Site, ...]:
        """Return the sites with their source, read now: a file that changed since the run shows its present lines."""
        return tuple(map(_with_source, self._indices))


def _with_source(site: CallSite) -> Site:
    linecache.checkcache(site.path)
    lines = linecache.getlines(site.path)
    if not 1 <= site.line <= len(lines):
        return Site(_shown(site), site.line, site.function)
    first = max(1, site.line - _AROUND)
    around = lines[first - 1 : site.line + _AROUND]
    source = tuple(line.rstrip("\r\n")[:_LONGEST] for line in around)
    return Site(_shown(site), site.line, site.function, first, source)


def _shown(site: CallSite) -> str:
    """Return the path relative to the working folder, or only the file name if it is elsewhere."""
    try:
        path = os.path.relpath(site.path)
    except ValueError:  # another drive
        return site.file
    return site.file if path.startswith(os.pardir) else path.replace(os.sep, "/")
