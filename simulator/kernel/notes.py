"""Reports of tasks that change nothing in the execution."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.requests import Acquire, LatestStep, LoaderBegun, Note, Release, StepDone, Touch, Use
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.kernel.tasks import Task


class Notes:
    """Serves the reports of one execution's tasks."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def touch(self, me: Task, request: Touch) -> None:
        """Serve `Touch`."""
        if self._run.observer is not None:
            for access in request.accesses:
                self._run.observer.touched(me.number, access)

    def release(self, me: Task, request: Release) -> None:
        """Serve `Release`."""
        if self._run.observer is not None:
            self._run.observer.created(me.number, request.object)

    def acquire(self, me: Task, request: Acquire) -> None:
        """Serve `Acquire`."""
        if self._run.observer is not None:
            self._run.observer.needs(me.number, request.object)

    def use(self, me: Task, request: Use) -> None:
        """Serve `Use`."""
        if self._run.observer is not None:
            self._run.observer.used(request.kind)

    def note(self, me: Task, request: Note) -> None:
        """Serve `Note`."""
        self._run.record(request.kind, text=request.text)

    def noticed(self, me: Task, request: Noticed) -> None:
        """Serve `Noticed`. A replica is compared at once, before its tensors change."""
        if request.kind is NoticedKind.REPLICA:
            self._run.judge(request.detail)
        else:
            self._run.noticed.append(request)

    def latest_step(self, me: Task, request: LatestStep) -> int:
        """Serve `LatestStep`."""
        return self._run.steps_of_wrappers.get(request, 0)

    def loader_begun(self, me: Task, request: LoaderBegun) -> None:
        """Serve `LoaderBegun`."""
        me.rank.batches.setdefault(request.site, []).append(request.batches)

    def count_step(self, me: Task, request: StepDone) -> None:
        """Serve `StepDone`."""
        me.rank.optimizer_steps += 1
        self._run.record(EventKind.STEP, text=str(me.rank.optimizer_steps))
