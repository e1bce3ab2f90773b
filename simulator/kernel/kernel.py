"""The kernel of one run takes requests of ranks and returns answers. See the package's docstring.

Prior art. Shuttle and Loom run the tasks of one test on one thread and choose the next task at each operation; so does
this kernel, but its tasks are real threads or processes, and it never runs one: a host carries out its answers. A
request that may have to wait is served by a generator, which pauses at the wait.

Rejected designs: a method for each frequent request (`begin_call`, `issue` and `wait_for` had one each, in four
classes), as each had to be kept equal to the table of handlers; a scheduler thread, as each switch between tasks would
then need two thread switches.
"""

from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any

from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.choices import Policy
from ddpsim.simulator.diagnosis.deadlock import lines_of_ranks
from ddpsim.simulator.diagnosis.hazards import Noticed
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.faults import FaultPlan
from ddpsim.simulator.kernel import requests as ask
from ddpsim.simulator.kernel.answers import GO_ON, IN_TIME, UNWIND, Answer, Continue
from ddpsim.simulator.kernel.call_matching import CallMatcher
from ddpsim.simulator.kernel.endings import CallerStopped, limit_finding
from ddpsim.simulator.kernel.groups import GroupRecords
from ddpsim.simulator.kernel.key_values import KeyValueStore
from ddpsim.simulator.kernel.lifecycle import TaskLifecycle
from ddpsim.simulator.kernel.notes import RankReports
from ddpsim.simulator.kernel.pauses import PauseRequests
from ddpsim.simulator.kernel.requests import RankError, Reply, Request, StackReport
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.scheduler import Scheduler
from ddpsim.simulator.kernel.states import RunEnding, RunPhase, TaskChange, TaskState
from ddpsim.simulator.kernel.tasks import RankRecord, Task
from ddpsim.simulator.policies.observer import Observer

RequestHandler = Callable[[Task, Any], Any]
"""A function that takes a request of a rank and returns the answer's value, or a generator that produces the value."""


class Kernel:
    """Decides which rank runs next, and which calls match. The host, which runs the ranks, calls these methods."""

    def __init__(
        self,
        world_size: int,
        *,
        policy: Policy,
        budget: Budget,
        faults: FaultPlan,
        semantics: BackendSemantics = GLOO,
        kept_keys: Mapping[str, bytes] | None = None,
    ) -> None:
        observer: Observer | None = getattr(policy, "observer", None)
        self.run = run = RunState(world_size, budget, observer, semantics, kept_keys)
        """The state of the run. The kernel changes it; a host may only stop the run, with an error."""
        if faults:
            run.observer.used_feature("faults")
        self._turns = turns = Scheduler(run, policy)
        pauses = PauseRequests(run, turns)
        calls = CallMatcher(run, turns, pauses, faults)
        self.store = KeyValueStore(run, turns, pauses)
        self._lifecycle = lifecycle = TaskLifecycle(run, turns)
        groups, notes = GroupRecords(run, turns.time_outs), RankReports(run)
        self._serve: Mapping[type[Any], RequestHandler] = {
            ask.Checkpoint: lambda me, request: pauses.pass_checkpoint(me, request.intent),
            ask.Poll: lambda me, request: pauses.poll_task(me, request.intent),
            ask.Block: pauses.on_block,
            ask.AwaitOutside: pauses.on_await_outside,
            ask.Sleep: lambda me, request: pauses.sleep_task(me, request.seconds),
            ask.ReadClock: pauses.on_read_clock,
            ask.BeginCall: calls.on_begin_call,
            ask.IssueCall: calls.on_issue_call,
            ask.AnnounceGroup: calls.on_announce_group,
            ask.OpenBatch: calls.on_open_batch,
            ask.CloseBatch: calls.on_close_batch,
            ask.WaitFor: pauses.on_wait_for,
            ask.IsComplete: pauses.on_is_complete,
            ask.StoreOperation: self.store.on_store_operation,
            ask.FinishTask: lifecycle.on_finish_task,
            ask.AskMissingRanks: calls.on_ask_missing_ranks,
            ask.AskOthersDeliver: lambda me, request: any(task is not me for _, task in me.rank.delivering),
            ask.NameGroup: groups.on_name_group,
            ask.DeclareGroup: groups.on_declare_group,
            ask.SetTimeLimit: turns.time_outs.on_set_time_limit,
            ask.DestroyGroup: groups.on_destroy_group,
            ask.GiveUpBarrier: groups.on_give_up_barrier,
            ask.AskGivenUpBarrier: lambda me, request: groups.given_up.get(request, ()),
            ask.AskWhereabouts: lambda me, request: lines_of_ranks(run.snapshot(), request.ranks),
            ask.StartThread: lifecycle.on_start_thread,
            ask.WakeTask: lambda me, request: turns.wake_task(request.number, from_outside=request.from_outside),
            ask.CancelThread: lifecycle.on_cancel_thread,
            ask.SawThreadEnd: lambda me, request: run.observer.joined_thread(me.number, request.number),
            ask.ProgramReturned: lambda me, request: run.record_event(EventKind.RETURN),
            ask.ProgramRaised: lifecycle.on_program_raised,
            ask.ReportAccesses: notes.on_report_accesses,
            ask.ReleaseObject: lambda me, request: run.observer.created_key(me.number, request.object),
            ask.AcquireObject: lambda me, request: run.observer.needed_key(me.number, request.object),
            ask.ReportLockUse: lambda me, request: run.observer.used_feature(request.kind),
            ask.WriteNote: lambda me, request: run.record_event(request.kind, text=request.text),
            Noticed: notes.on_noticed,
            ask.ReportAgreedValue: notes.compare_agreed_value,
            ask.AskLatestStep: lambda me, request: run.steps_of_wrappers.get(request, 0),
            ask.LoaderStarted: notes.on_loader_started,
            ask.SamplerStarted: notes.compare_sampled_parts,
            ask.StepDone: notes.on_step_done,
        }

    def handle(self, request: Request) -> Answer:
        """Take a request of the running task (a rank's program or thread) and return the answer."""
        me = self.run.running
        assert me is not None, "nobody has the baton"
        try:
            served = self._serve[type(request)](me, request)
        except CallerStopped as ended:
            return ended.answer
        if type(served) is GeneratorType:
            me.scripts.append(served)
            return self._advance_script(me, None)
        return GO_ON if served is None else IN_TIME if served is True else Continue(served)

    def watch_completion(self, handle: int) -> bool:
        """Note that the program depends on a call's completion. Return False: every completion is announced anyway."""
        return False

    def reply(self, said: Reply | None) -> Answer:
        """Take the host's reply (the result that the last answer asked for), and return the next answer."""
        me = self.run.running
        assert me is not None, "nobody has the baton"
        return self._advance_script(me, said)

    def drop_request(self) -> None:
        """Give up the running rank's request, because the host could not do what the kernel's last answer asked for."""
        me = self.run.running
        assert me is not None, "nobody has the baton"
        me.scripts.pop().close()

    def resume_task(self, task: Task) -> Answer:
        """Return the answer for a task (a rank's program or thread) that runs after a wait. A new task is started."""
        self.run.running = task
        if self.is_unwinding(task):
            if task.scripts:
                task.scripts.pop().close()
            return UNWIND
        return self._advance_script(task, None) if task.scripts else GO_ON

    def _advance_script(self, me: Task, said: Reply | None) -> Answer:
        try:
            return me.scripts[-1].send(said)
        except StopIteration as done:
            me.scripts.pop()
            value = done.value
            return GO_ON if value is None else IN_TIME if value is True else Continue(value)
        except CallerStopped as ended:
            me.scripts.pop()
            return ended.answer
        except BaseException:
            me.scripts.pop()
            raise

    def first_task(self) -> int:
        """Return the number of the task (a rank's program) that runs first."""
        return self._turns.first_task()

    def is_unwinding(self, task: Task) -> bool:
        """True if a task (a rank's program or thread) runs only to end early, or will do so once it runs again."""
        return self.run.life.phase is not RunPhase.RUNNING or task.state is TaskState.CANCELLED

    def stop_run(self, ending: RunEnding) -> None:
        """Begin to end all programs and threads of ranks early. `next_task_to_unwind` gives the order."""
        self.run.life.begin_stop(ending)

    def stop_at_limit(self, ending: RunEnding, task: Task | None, stack: StackReport | None) -> None:
        """Stop the run because a limit of wall time has passed, or the user interrupts it, and record a finding."""
        self.run.life.is_interrupted |= ending is RunEnding.INTERRUPTED
        if self.run.life.phase is not RunPhase.RUNNING:
            return
        self.run.findings.append(limit_finding(self.run, ending, task, stack))
        self.stop_run(ending)

    def give_baton(self, number: int | None) -> None:
        """Record which task (a rank's program or thread) the host lets run. `resume_task` is called when it runs."""
        self.run.running = None if number is None else self.run.tasks[number]

    def abandon_task(self, task: Task) -> None:
        """Stop the run and give up a task that cannot be interrupted. All other tasks' programs are ended early."""
        task.change_state(TaskChange.ABANDON)
        self._turns.disable_task(task)

    def remove_lost_rank(self, rank: RankRecord, error: RankError | None) -> Answer | None:
        """Remove a rank whose process disappeared. `error` is None if its program had ended normally. If the rank was
        running, return the answer for the next one."""
        if not self._lifecycle.remove_lost_rank(rank, error):
            return None
        me = self.run.running = rank.main
        me.scripts.append(self._lifecycle.switch_from_ended_task(me))
        return self._advance_script(me, None)

    def remove_unstarted_task(self, task: Task) -> None:
        """Remove the task of a thread that the host could not start; it has no program to end."""
        task.change_state(TaskChange.UNWIND)

    def next_task_to_unwind(self) -> int | None:
        """Return the next task (a rank's program or thread) that has to be ended early; None once all have ended."""
        successor = self._turns.next_unfinished_task()
        if successor is None:
            self.run.life.mark_ended()
        return successor

    @property
    def schedule(self) -> tuple[int, ...]:
        """Return the schedule of the run so far: the choices of which rank runs next."""
        return tuple(self._turns.choices)
