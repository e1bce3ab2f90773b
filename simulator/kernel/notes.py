"""Reports of tasks: accesses, notes, counts, and values that should fit together on all ranks."""

from __future__ import annotations

from collections import Counter

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.diagnosis.mismatch import AgreedValue, agreed_values_finding
from ddpsim.simulator.diagnosis.samplers import SamplerRead, sampler_finding
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.endings import end_with_findings
from ddpsim.simulator.kernel.requests import (
    AcquireObject,
    AskLatestStep,
    LoaderStarted,
    ReleaseObject,
    ReportAccesses,
    ReportAgreedValue,
    ReportUse,
    SamplerStarted,
    StepDone,
    WriteNote,
)
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.states import RunEnding, RunPhase
from ddpsim.simulator.kernel.tasks import Task

_Lines = tuple[Site, Site]
"""Two lines of the program: one constructs a sampler, the other iterates over it."""


class RankReports:
    """Handles the reports of one execution's tasks."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._agree_calls: Counter[tuple[str, int]] = Counter()
        """The number of values that a rank reported under a name."""
        self._agreed: dict[tuple[str, int], list[AgreedValue]] = {}
        """The values, by name and number, until all ranks have reported theirs."""
        self._passes: Counter[tuple[_Lines, int]] = Counter()
        """The number of times that a rank iterated over the samplers of two lines."""
        self._read: dict[tuple[_Lines, int], list[SamplerRead]] = {}
        """What each rank read, by lines and pass, until all ranks have come."""
        self._differing: set[_Lines] = set()
        """Lines whose samplers already have a finding."""

    def on_touch(self, me: Task, request: ReportAccesses) -> None:
        """Handle a `Touch` request: report the accesses to the exploration."""
        if self._run.observer is not None:
            for access in request.accesses:
                self._run.observer.accessed(me.number, access)

    def on_release(self, me: Task, request: ReleaseObject) -> None:
        """Handle a `ReleaseObject` request: report to the exploration that an object was released."""
        if self._run.observer is not None:
            self._run.observer.created_key(me.number, request.object)

    def on_acquire(self, me: Task, request: AcquireObject) -> None:
        """Handle an `AcquireObject` request: report to the exploration that a released object was acquired."""
        if self._run.observer is not None:
            self._run.observer.needed_key(me.number, request.object)

    def on_use(self, me: Task, request: ReportUse) -> None:
        """Handle a `ReportUse` request: report to the exploration that a kind of object is used."""
        if self._run.observer is not None:
            self._run.observer.used_feature(request.kind)

    def on_note(self, me: Task, request: WriteNote) -> None:
        """Handle a `WriteNote` request: write an event into the trace."""
        self._run.record_event(request.kind, text=request.text)

    def on_noticed(self, me: Task, request: Noticed) -> None:
        """Record what was noticed in a rank. A replica is compared at once, before its tensors change."""
        if request.kind is NoticedKind.REPLICA:
            self._run.judge(request.detail)
        else:
            self._run.noticed.append(request)

    def on_latest_step(self, me: Task, request: AskLatestStep) -> int:
        """Handle a `AskLatestStep` request: return the latest step that a call of a wrapper belongs to."""
        return self._run.steps_of_wrappers.get(request, 0)

    def on_loader_begun(self, me: Task, request: LoaderStarted) -> None:
        """Handle a `LoaderStarted` request: count the batches of a data loader."""
        me.rank.batches.setdefault(request.site, []).append(request.batches)

    def on_step_done(self, me: Task, request: StepDone) -> None:
        """Handle a `StepDone` request: count the step of an optimizer."""
        me.rank.optimizer_steps += 1
        self._run.record_event(EventKind.STEP, text=str(me.rank.optimizer_steps))

    def on_agree(self, me: Task, request: ReportAgreedValue) -> None:
        """Record a value of a rank. End the execution if another rank reported a different one."""
        if self._run.life.phase is not RunPhase.RUNNING:
            return  # reports of a rank that is being unwound are ignored
        rank = me.rank.rank
        number = self._agree_calls[request.name, rank]
        self._agree_calls[request.name, rank] += 1
        reported = self._agreed.setdefault((request.name, number), [])
        reported.append(AgreedValue(rank, request.value, request.site))
        if request.value != reported[0].value:
            end_with_findings(
                self._run, RunEnding.MISMATCH, agreed_values_finding(request.name, number, reported, self._run.steps)
            )
        if len(reported) == len(self._run.ranks):
            del self._agreed[request.name, number]

    def on_sampled(self, me: Task, request: SamplerStarted) -> None:
        """Record which part of a data set a rank reads, and compare the parts once all ranks have come.

        The n-th pass of a rank is compared with the n-th pass of the others. Passes that some rank does not make are
        not compared.
        """
        if self._run.life.phase is not RunPhase.RUNNING:
            return
        lines, rank = (request.made, request.site), me.rank.rank
        number = self._passes[lines, rank]
        self._passes[lines, rank] += 1
        read = self._read.setdefault((lines, number), [])
        read.append(SamplerRead(rank, request.sampling, *lines))
        if len(read) < len(self._run.ranks):
            return
        del self._read[lines, number]
        if lines not in self._differing and (finding := sampler_finding(read)) is not None:
            self._differing.add(lines)
            self._run.findings.append(finding)
