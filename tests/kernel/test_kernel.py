"""Whole runs by scripts of requests: no thread, no torch, and every value pickled on its way."""

import subprocess
import sys
from typing import get_args

import pytest

from ddpsim import Budget, Crash, UsageError
from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.calls import NOWHERE, Call, Signature
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.faults import FaultPlan
from ddpsim.simulator.kernel import Kernel, requests
from ddpsim.simulator.kernel.answers import Answer, Continue, MoveTensors, RaiseFault
from ddpsim.simulator.kernel.requests import (
    AskGivenUpBarrier,
    AskMissingRanks,
    AskOthersDeliver,
    AskWhereabouts,
    Block,
    CancelThread,
    Checkpoint,
    CloseBatch,
    DestroyGroup,
    GiveUpBarrier,
    IsComplete,
    NameGroup,
    OpenBatch,
    Poll,
    ReadClock,
    ReportAccesses,
    SawThreadEnd,
    SetTimeLimit,
    Sleep,
    StepDone,
    StoreOperation,
    WakeTask,
    WriteNote,
)
from ddpsim.simulator.kernel.states import RunEnding, RunPhase, TaskChange, TaskState, state_after
from ddpsim.simulator.waits import LockWait, OutsideWait
from tests.kernel.scripted import Host, Rank, Start, Struck, calls

LOCK = ("lock", 0, 0)


def test_collectives_meet_and_their_ranks_go_on():
    host = Host([calls(rank, 3, "all_reduce", "barrier") for rank in range(3)])
    assert host.codes == []
    assert host.run.life.ending is RunEnding.FINISHED
    assert host.run.life.phase is RunPhase.OVER
    assert [what[1:3] for what in host.done("moved")] == [
        ("all_reduce", ((0, 1), (1, 1), (2, 1))),
        ("barrier", ((0, 2), (1, 2), (2, 2))),
    ]
    assert sorted(what[1:3] for what in host.done("delivered")) == [(r, h) for r in range(3) for h in (1, 2)]
    assert [kind for rank, kind, _ in host.events if rank == 0] == [
        "issue",
        "wait",
        "done",
        "issue",
        "wait",
        "done",
        "return",
    ]


def test_a_mismatch_ends_the_run_and_unwinds_in_order():
    host = Host([calls(rank, 3, "all_reduce" if rank < 2 else "broadcast", line=10 * rank) for rank in range(3)])
    assert host.codes == ["mismatch.operation"]
    assert host.run.findings[0].ranks == (2,)
    assert host.run.life.ending is RunEnding.MISMATCH
    assert host.done("moved") == []
    assert [what[1] for what in host.done("unwound")] == [2, 0, 1]


def given_up(*missing):
    """Names a group and gives its first barrier up; what is said of these."""
    label = yield NameGroup("7", 1, "mine")
    before = yield AskGivenUpBarrier(label, 0)
    yield GiveUpBarrier(label, 0, missing)
    return label, before, (yield AskGivenUpBarrier(label, 0)), (yield AskGivenUpBarrier(label, 1))


class Last:
    """Takes the last source; else the default."""

    def choose(self, point, options):
        return len(options) - 1 if point.kind is ChoiceKind.SOURCE else 0


def test_calls_are_tested_for_without_waiting():
    """Rank 0's first look lets rank 1 fall asleep; the next take a millisecond each, and rank 1 comes in the third."""

    def program(rank, *before):
        me = Rank(rank, 2)
        yield from before
        handle = yield from me.issue("barrier")
        looks = []
        while not looks or not looks[-1]:
            looks.append((yield IsComplete(handle, Access(("call", "default", 0), AccessMode.READ))))
        return looks

    host = Host([program(0), program(1, Sleep(0.0025))])
    assert sorted(host.done("returned")) == [("returned", 0, [False, False, False, True]), ("returned", 1, [True])]


def stores(operation, *keys, **options):
    return StoreOperation(operation, keys, **options)


def one(request):
    """A program of one request."""
    return (yield request)


def test_who_polls_in_vain_lets_time_pass():
    def polls():
        while not (yield stores("check", "k")):
            pass
        return (yield ReadClock())

    def sets():
        yield Sleep(0.01)
        yield stores("set", "k", values=(b"",))

    ((_, _, at),) = [what for what in Host([polls(), sets()]).done("returned") if what[1] == 0]
    assert 0.01 <= at < 0.02


def test_who_polls_when_the_budget_is_used_up_is_told():
    """All three look in vain, in turn; rank 2 is the last of the fifth round, and rank 0 gets the baton back then."""
    host = Host([forever(Poll()) for _ in range(3)], budget=Budget(polls=4))
    (finding,) = host.run.findings
    assert (finding.ranks, finding.summary) == ((0,), "rank 0 polled 5 times in a row while no other rank could run")


def test_a_crash_strikes_and_strikes_again():
    def program():
        me = Rank(0, 2)
        yield from me.call("barrier")
        with pytest.raises(Struck) as first:
            yield from me.call("barrier")
        with pytest.raises(Struck) as again:
            yield from me.call("barrier")
        assert first.value.args == again.value.args
        raise first.value

    host = Host([program(), calls(1, 2, "barrier", "barrier")], faults=[Crash(0, 1, "power cut")])
    assert host.codes == ["deadlock.dead_rank"]
    assert host.seen[RaiseFault][0] == RaiseFault(Crash(0, 1, "power cut"), 1)
    assert [event for event in host.events if event[1] == "fault"] == [(0, "fault", "Crash")]


def forever(request):
    while True:
        yield request


def test_a_limit_of_the_host_unwinds_everybody():
    class Impatient(Host):
        def _step(self, me, answer):
            if self.run.steps == 5 and not self.codes:
                self.kernel.stop_at_limit(RunEnding.SECONDS, None, None)
            return super()._step(me, answer)

    host = Impatient([forever(Checkpoint()), calls(1, 2)])
    assert (host.codes, host.run.life.ending) == (["budget"], RunEnding.SECONDS)
    assert [what[1] for what in host.done("unwound")] == [0, 1]


@pytest.mark.parametrize("choice", [7, -1, 1.0, None, "0"])
def test_a_policy_that_answers_anything_but_an_index_breaks_the_run(choice):
    class Broken:
        def choose(self, point, options):
            return choice

    host = Host([calls(rank, 2, "barrier") for rank in range(2)], policy=Broken())
    assert host.run.life.ending is RunEnding.BROKEN
    assert isinstance(host.run.life.failure, UsageError)
    assert f"policy Broken answered {choice!r}, expected 0 to 1" in str(host.run.life.failure)
    assert [what[1] for what in host.done("unwound")] == [0, 1]


def test_who_waits_for_a_chain_knows_whether_another_thread_runs_it():
    me = Rank(0, 1)
    said = []

    def chain():
        said.append((yield AskOthersDeliver()))  # its own counts for nothing
        yield Sleep(1.0)

    def looks():
        said.append((yield AskOthersDeliver()))
        yield Sleep(2.0)
        said.append((yield AskOthersDeliver()))

    def program():
        yield Start("looks", looks())
        yield from me.call("barrier")

    assert Host([program()], chains={(0, 1): chain()}).codes == []
    assert said == [False, True, False]


def test_every_request_answer_and_reply_goes_through_the_pipe():
    me = Rank(0, 2)

    def worker():
        yield ReportAccesses((Access(LOCK, AccessMode.WRITE),))
        yield requests.ReportLockUse("Lock")
        yield requests.ReleaseObject(LOCK)
        yield requests.AcquireObject(LOCK)
        yield Block(LockWait(LOCK))

    def program():
        number = yield Start("worker", worker())
        handle = yield from me.issue("barrier")
        yield AskMissingRanks(handle)
        yield from given_up()
        yield AskWhereabouts((1,))
        yield AskOthersDeliver()
        yield IsComplete(handle, Access(("call", "default", 0), AccessMode.READ))
        yield requests.AnnounceGroup(call_of(Signature("new_group", members=(1,))))
        yield StepDone()
        yield requests.AskLatestStep("default", 0)
        yield Noticed(NoticedKind.READ)
        yield requests.ReportAgreedValue("way", "1", NOWHERE)
        yield requests.LoaderStarted(3, (NOWHERE, 1), NOWHERE)
        yield requests.SamplerStarted(requests.SamplerSettings(2, 0, 8, True, 0, 0, False), NOWHERE, 1, NOWHERE)
        yield DestroyGroup("default", NOWHERE)
        yield ReadClock()
        yield Sleep(1.0)
        yield requests.AwaitOutside(OutsideWait("a file"), is_first=True)
        yield Poll()
        yield Checkpoint()
        yield stores("set", "a", values=(b"",))
        yield WakeTask(number)
        yield CancelThread(number)
        yield SawThreadEnd(number)
        yield OpenBatch()
        yield CloseBatch()
        yield WriteNote(EventKind.NOTE)
        with pytest.raises(ValueError, match="zip"):
            yield stores("set", "a")
        with pytest.raises(Struck):
            yield from me.issue("barrier")
        raise KeyError("x")

    runs = [
        Host([program(), calls(1, 2, "barrier")], faults=[Crash(0, 1)]),
        Host([calls(0, 2, "barrier"), calls(1, 2)]),
        Host([forever(Checkpoint())], budget=Budget(steps=5)),
        Host([limited(), one(Sleep(2.0))]),
    ]
    assert runs[3].done("failed") == [("failed", ((0, 1),), "RuntimeError")]
    assert runs[0].run.ranks[0].optimizer_steps == 1
    assert runs[0].run.batch_counts() == {0: {(NOWHERE, (NOWHERE, 1)): [3]}}
    seen = {kind for host in runs for kind in host.seen}
    assert seen == set(get_args(requests.Request | requests.Reply | Answer))


def limited():
    yield SetTimeLimit("default", 1.0)
    yield from calls(0, 2, "barrier")


def call_of(signature):
    return Call(0, "other", 0, signature, NOWHERE)


def test_what_is_dropped_leaves_the_task_as_if_it_had_not_asked():
    kernel = Kernel(1, policy=Last(), budget=Budget(), faults=FaultPlan((), 1))
    task = kernel.run.tasks[0]
    kernel.give_baton(0)
    rank = Rank(0, 1)
    asked = rank.call("barrier")
    answer = Continue()
    while isinstance(answer, Continue):
        answer = kernel.handle(next(asked))
    assert isinstance(answer, MoveTensors)
    kernel.drop_request()
    assert (task.scripts, kernel.handle(ReadClock())) == ([], Continue(0.0))


@pytest.mark.parametrize(
    ("state", "change"),
    [
        (TaskState.WAITING, TaskChange.WAIT),
        (TaskState.READY, TaskChange.WAKE),
        (TaskState.RETURNED, TaskChange.WAKE),
        (TaskState.CANCELLED, TaskChange.WAIT),
    ],
)
def test_what_must_not_happen_to_a_task_has_no_state_after_it(state, change):
    with pytest.raises(KeyError):
        state_after((state, change))


@pytest.mark.tier("ci")
def test_the_kernel_is_imported_without_torch():
    script = "import sys, ddpsim.simulator.kernel; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "False\n"
