"""Values that must be equal on all ranks."""

from __future__ import annotations

from collections import Counter

from ddpsim.simulator.diagnosis.mismatch import AgreedValue, values_differ
from ddpsim.simulator.kernel.endings import fail
from ddpsim.simulator.kernel.requests import Agree
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.kernel.states import Ending, Phase
from ddpsim.simulator.kernel.tasks import Task


class Agreements:
    """The values that ranks reported in one execution."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._calls: Counter[tuple[str, int]] = Counter()
        """By name and rank."""
        self._said: dict[tuple[str, int], list[AgreedValue]] = {}
        """By name and number of the call, until all ranks have come."""

    def on_agree(self, me: Task, request: Agree) -> None:
        """Record a value of a rank. End the execution if another rank reported a different one."""
        if self._run.life.phase is not Phase.RUNNING:
            return  # reports of a rank that is being unwound are ignored
        rank = me.rank.rank
        number = self._calls[request.name, rank]
        self._calls[request.name, rank] += 1
        said = self._said.setdefault((request.name, number), [])
        said.append(AgreedValue(rank, request.value, request.site))
        if request.value != said[0].value:
            fail(self._run, Ending.MISMATCH, values_differ(request.name, number, said, self._run.steps))
        if len(said) == len(self._run.ranks):
            del self._said[request.name, number]
