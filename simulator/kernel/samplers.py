"""What ranks read of a data set that they have shared out."""

from __future__ import annotations

from collections import Counter

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.samplers import Read, parts_differ
from ddpsim.simulator.kernel.requests import Sampled
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.kernel.states import Phase
from ddpsim.simulator.kernel.tasks import Task

Lines = tuple[Site, Site]
"""Where a sampler was made, and where it is gone through."""


class Samplers:
    """The samplers of one execution."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._times: Counter[tuple[Lines, int]] = Counter()
        """How often a rank has gone through those of these lines."""
        self._read: dict[tuple[Lines, int], list[Read]] = {}
        """By lines and time, until all ranks have come."""
        self._told: set[Lines] = set()

    def on_sampled(self, me: Task, request: Sampled) -> None:
        """A rank goes through its part. Ranks whose times differ may each mean something else, and are left alone."""
        if self._run.life.phase is not Phase.RUNNING:
            return
        lines, rank = (request.made, request.site), me.rank.rank
        time = self._times[lines, rank]
        self._times[lines, rank] += 1
        read = self._read.setdefault((lines, time), [])
        read.append(Read(rank, request.sampling, *lines))
        if len(read) < len(self._run.ranks):
            return
        del self._read[lines, time]
        if lines not in self._told and (finding := parts_differ(read)) is not None:
            self._told.add(lines)
            self._run.findings.append(finding)
