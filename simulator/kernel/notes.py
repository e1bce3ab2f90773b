"""What ranks report to the kernel: accesses to shared objects, events, counts, and values that should agree."""

from collections import Counter

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.diagnosis.mismatch import AgreedValue, agreed_values_finding
from ddpsim.simulator.diagnosis.samplers import SamplerRead, sampler_finding
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel import requests as ask
from ddpsim.simulator.kernel.endings import end_with_findings
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.states import RunEnding, RunPhase
from ddpsim.simulator.kernel.tasks import Task

_Lines = tuple[Site, Site]
"""Two lines of the program: one constructs a sampler, the other iterates over it."""


class RankReports:
    """Takes what the ranks of one run report, and compares the values that should agree."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._agree_calls: Counter[tuple[str, int]] = Counter()
        """By rank and name, how many values the rank has reported under this name."""
        self._agreed: dict[tuple[str, int], list[AgreedValue]] = {}
        """The values that ranks reported, by name and report number, until every rank has reported its value."""
        self._passes: Counter[tuple[_Lines, int, int]] = Counter()
        """By sampler (its lines and number) and rank, how often the rank has iterated over the sampler."""
        self._read: dict[tuple[_Lines, int, int], list[SamplerRead]] = {}
        """Which part of the data set each rank reads, by sampler and iteration, until all ranks have reported."""
        self._differing: set[_Lines] = set()
        """Lines of samplers that already have a finding, so no second one is made."""

    def on_report_accesses(self, me: Task, request: ask.ReportAccesses) -> None:
        """Answer a rank's `ReportAccesses` request: pass the accesses to the exploration of schedules."""
        for access in request.accesses:
            self._run.observer.accessed(me.number, access)

    def on_noticed(self, me: Task, request: Noticed) -> None:
        """Record what a check noticed in a rank. A model replica is compared at once, before its tensors change."""
        if request.kind is NoticedKind.REPLICA:
            self._run.judge(request.detail)
        elif request.kind is NoticedKind.FILE:
            file, is_written, line = request.detail
            users = self._run.writers if is_written else self._run.readers
            users.setdefault((file, me.rank.calls_made, line), set()).add(me.rank.rank)
        else:
            self._run.noticed.append(request)

    def on_loader_started(self, me: Task, request: ask.LoaderStarted) -> None:
        """Answer a rank's `LoaderStarted` request: count the batches of a data loader."""
        me.rank.batches.setdefault((request.site, request.made), []).append(request.batches)

    def on_step_done(self, me: Task, request: ask.StepDone) -> None:
        """Answer a rank's `StepDone` request: count an optimizer step of the rank."""
        me.rank.optimizer_steps += 1
        self._run.record_event(EventKind.STEP, text=str(me.rank.optimizer_steps))

    def compare_agreed_value(self, me: Task, request: ask.ReportAgreedValue) -> None:
        """Record a value that must agree on all ranks. End the run if another rank reported a different value."""
        if self._run.life.phase is not RunPhase.RUNNING:
            return  # reports of a rank that is being unwound are ignored
        rank = me.rank.rank
        number = self._agree_calls[request.name, rank]
        self._agree_calls[request.name, rank] += 1
        reported = self._agreed.setdefault((request.name, number), [])
        reported.append(AgreedValue(rank, request.value, request.site))
        if request.value != reported[0].value:
            finding = agreed_values_finding(request.name, number, reported, self._run.steps)
            end_with_findings(self._run, RunEnding.MISMATCH, finding)
        if len(reported) == len(self._run.ranks):
            del self._agreed[request.name, number]

    def compare_sampled_parts(self, me: Task, request: ask.SamplerStarted) -> None:
        """Record which part of a data set a rank's sampler reads, and compare the parts once all ranks have reported.

        A rank's n-th iteration is compared with the n-th of every other rank over the same sampler by number of those
        that a line constructs. An iteration that some rank does not make is ignored.
        """
        if self._run.life.phase is not RunPhase.RUNNING:
            return
        lines, rank = (request.made, request.site), me.rank.rank
        self._passes[lines, request.number, rank] += 1
        loop = lines, request.number, self._passes[lines, request.number, rank]
        read = self._read.setdefault(loop, [])
        read.append(SamplerRead(rank, request.sampling, *lines))
        if len(read) < len(self._run.ranks):
            return
        del self._read[loop]
        if lines not in self._differing and (finding := sampler_finding(read)) is not None:
            self._differing.add(lines)
            self._run.findings.append(finding)
