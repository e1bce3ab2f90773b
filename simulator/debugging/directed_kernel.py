"""The kernel (scheduler) of a run under `ddpsim debug`.

A director (director.py) decides where the run pauses for the user.
"""

from collections.abc import Callable
from typing import Any

from ddpsim.simulator.calls import Call
from ddpsim.simulator.debugging.director import RunDirector
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import BeginCall, IssueCall, ProgramRaised, Request, WaitFor
from ddpsim.simulator.kernel.states import RunEnding, RunLifecycle, RunPhase
from ddpsim.simulator.kernel.tasks import Task

_EXPLAINABLE_ENDINGS = (RunEnding.DEADLOCK, RunEnding.MISMATCH, RunEnding.STEPS, RunEnding.POLLS, RunEnding.SLEEPS)
"""Reasons for the end of a run that a debugger can explain, because every rank is still at the line that it reached."""


class _LifeWithEndHook(RunLifecycle):
    """A `RunLifecycle` (the state of a run) that calls a function just before the run ends."""

    def __init__(self, before_end: Callable[[RunEnding], None]) -> None:
        super().__init__()
        self._before_end: Callable[[RunEnding], None] | None = before_end

    def begin_stop(self, ending: RunEnding) -> None:
        before_end = self._before_end
        if self.phase is RunPhase.RUNNING and ending in _EXPLAINABLE_ENDINGS and before_end is not None:
            self._before_end = None  # only once: the call itself may end the run
            before_end(ending)
        super().begin_stop(ending)


class DirectedKernel(Kernel):
    """A `Kernel` (scheduler of ranks) that asks the run's director where to pause."""

    def __init__(self, world_size: int, director: RunDirector, *, are_threads: bool, **terms: Any) -> None:
        """`are_threads`: a rank that is a thread is at the call that it issues; a process may have run further."""
        super().__init__(world_size, policy=director, **terms)
        self.run.tries_errors = False  # the user sees the ranks where they wait
        self._director = director
        self._are_threads = are_threads
        self.run.life = _LifeWithEndHook(self._pause_at_finding)
        self._due: dict[int, str] = {}
        """The ranks in which a debugger opens at their next request to the kernel, each with the reason."""

    def handle(self, request: Request) -> Answer:
        """Take a request of the running task (a rank's program or thread), and pause first if the director says so."""
        if isinstance(request, IssueCall):
            self._note_call(request.call)
            if self._are_threads:
                self._pause_at_call()
        elif isinstance(request, ProgramRaised):
            self._pause_running_rank(f"rank {self._running_task.rank_number} raised {request.error.text}")
        elif isinstance(request, (BeginCall, WaitFor)):
            self._pause_before_request()
        return super().handle(request)

    def resume_task(self, task: Task) -> Answer:
        """Let a task continue whose turn it is, and pause in its rank if the director says so."""
        self.run.running = task
        has_begun = bool(task.scripts)
        if self._is_running and has_begun and task.is_main and self._director.pauses_where_rank_runs(task.rank_number):
            self._pause_running_rank(f"step {self.run.steps}: rank {task.rank_number} runs next")
        return super().resume_task(task)

    @property
    def _running_task(self) -> Task:
        me = self.run.running
        assert me is not None, "no task has the baton"
        return me

    @property
    def _is_running(self) -> bool:
        return self.run.life.phase is RunPhase.RUNNING

    def _note_call(self, call: Call) -> None:
        number = sum(event.rank == call.rank for event in self.run.events if event.kind.value == "issue")
        if self._director.pauses_at_call(call, number):
            self._due[call.rank] = f"step {self.run.steps}: rank {call.rank} makes {call}"

    def _pause_before_request(self) -> None:
        """Pause before a request at which another rank may run first, if the user wants to pause there."""
        rank, steps = self._running_task.rank_number, self.run.steps
        if not self._is_running:
            return
        self._pause_at_call()
        was_chosen = self._running_task.is_main and self._director.pauses_where_rank_runs(rank)  # before it had begun
        if self._director.pauses_at_request(steps) or was_chosen:
            self._director.pause_before_request(rank, f"step {steps}: rank {rank} is next")

    def _pause_at_call(self) -> None:
        header = self._due.pop(self._running_task.rank_number, "")
        if header:
            self._pause_running_rank(header)

    def _pause_running_rank(self, header: str) -> None:
        if self._is_running:
            self._director.pause_run(self._running_task.rank_number, header)

    def _pause_at_finding(self, ending: RunEnding) -> None:
        """Pause in a rank that caused the finding (error); if all of these have ended, in a rank that waits."""
        self._pause_at_call()  # a rank process has run further since its call
        if not self._is_running:
            return
        findings = self.run.findings
        header = "\n\n".join(finding.body for finding in findings) or f"the run ends: {ending.value}"
        to_blame = [rank for finding in findings for rank in finding.ranks]
        here = None if self.run.running is None else self.run.running.rank_number
        others = [each.rank for each in self.run.ranks]
        for rank in (*to_blame, *([] if here is None else [here]), *others):
            if not self.run.ranks[rank].main.is_finished:
                self._director.pause_run(rank, header, steps=self.run.steps)
                return
