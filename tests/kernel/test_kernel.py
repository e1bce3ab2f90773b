"""Whole runs by scripts of requests: no thread, no torch, and every value pickled on its way."""

import subprocess
import sys
from typing import get_args

import pytest

from ddpsim import Budget, Crash, Delay, EarlyReturn, UsageError
from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Call, Signature
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.faults import FaultPlan
from ddpsim.simulator.kernel import Kernel, requests
from ddpsim.simulator.kernel.answers import Answer, Continue, MoveTensors, StrikeFault
from ddpsim.simulator.kernel.requests import (
    AskGivenUpBarrier,
    AskMissingRanks,
    AskOthersDeliver,
    AskWhereabouts,
    AwaitedExternalThreads,
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
    Sleep,
    StepDone,
    StoreOperation,
    WaitFor,
    WakeTask,
    WriteNote,
)
from ddpsim.simulator.kernel.states import RunEnding, RunPhase, TaskChange, TaskState, state_after
from ddpsim.simulator.waits import CallWait, LockWait, StoreWait, ThreadWait
from tests.kernel.scripted import Host, Rank, Start, Struck, Unwound, calls

LOCK = ("lock", 0, 0)


def waits_of(host):
    return [
        (each.who.rank, each.who.thread, type(each.wait), [who.rank for who in each.waits_for])
        for each in host.run.waiting
    ]


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


def test_what_a_transport_refuses_is_complete_all_the_same():
    host = Host([calls(rank, 2, "all_reduce") for rank in range(2)], refuse="no such type")
    assert [text for _, kind, text in host.events if kind == "match"] == ["refused"]
    assert len(host.done("returned")) == 2


def test_a_mismatch_ends_the_run_and_unwinds_in_order():
    host = Host([calls(rank, 3, "all_reduce" if rank < 2 else "broadcast", line=10 * rank) for rank in range(3)])
    assert host.codes == ["mismatch.operation"]
    assert host.run.findings[0].ranks == (2,)
    assert host.run.life.ending is RunEnding.MISMATCH
    assert host.done("moved") == []
    assert [what[1] for what in host.done("unwound")] == [2, 0, 1]


def test_a_wait_times_out_in_virtual_time():
    def alone():
        in_time = yield from Rank(0, 2).call("barrier", timeout_seconds=3.0)
        return in_time, (yield ReadClock())

    def late():
        yield Sleep(5.0)

    host = Host([alone(), late()])
    assert host.done("returned")[0] == ("returned", 0, (False, 3.0))
    assert (0, "done", "timed out") in host.events


def test_what_has_not_come_to_a_slot_is_told():
    def first():
        handle = yield from Rank(0, 3).issue("barrier")
        return (yield AskMissingRanks(handle))

    assert Host([first(), calls(1, 3), calls(2, 3)]).done("returned")[0] == ("returned", 0, (1, 2))


def given_up(*missing):
    """Names a group and gives its first barrier up; what is said of these."""
    label = yield NameGroup("7", 1, "mine")
    before = yield AskGivenUpBarrier(label, 0)
    yield GiveUpBarrier(label, 0, missing)
    return label, before, (yield AskGivenUpBarrier(label, 0)), (yield AskGivenUpBarrier(label, 1))


def test_where_ranks_are_is_told():
    def first():
        yield Sleep(1.0)
        return (yield AskWhereabouts((1, 2)))

    def waiting():
        yield Sleep(5.0)

    told = ("  rank 1  waits for the clock", "  rank 2  returned before its first call")
    assert ("returned", 0, told) in Host([first(), waiting(), calls(2, 3)]).done("returned")


def test_ranks_call_a_group_alike_and_know_its_barriers_that_were_given_up():
    def late():
        yield Sleep(1.0)
        label = yield NameGroup("7", 1, "yours")
        again = yield NameGroup("7", 2, "yours")
        return label, again, (yield from given_up(2))

    assert Host([given_up(1, 2), late()]).done("returned") == [
        ("returned", 0, ("mine", (), (1, 2), ())),
        ("returned", 1, ("mine", "yours", ("mine", (1, 2), (2,), ()))),
    ]


def test_a_chain_makes_calls_inside_a_delivery():
    ranks = [Rank(rank, 2) for rank in range(2)]

    def program(me):
        yield from me.call("all_reduce")
        yield WriteNote(EventKind.NOTE, "after")

    host = Host([program(me) for me in ranks], chains={(me.rank, 1): me.call("barrier") for me in ranks})
    assert host.codes == []
    assert [what[1] for what in host.done("moved")] == ["all_reduce", "barrier"]
    # What hangs on a completion comes before the end of the wait that it completes.
    assert [kind for rank, kind, _ in host.events if rank == 0 and kind != "match"] == [
        "issue", "wait", "issue", "done", "note", "return",
    ]  # fmt: skip


@pytest.mark.parametrize("first", ["send", "recv"])
def test_a_message_meets_its_receive_whoever_comes_first(first):
    other = {"send": "recv", "recv": "send"}[first]
    host = Host([Rank(0, 2).call(first, peer=1), Rank(1, 2).call(other, peer=0)])
    assert host.codes == []
    sender = 0 if first == "send" else 1
    assert host.done("moved") == [("moved", "send", ((sender, 1), (1 - sender, 1)), (0, 1))]


class Last:
    """Takes the last source; else the default."""

    def choose(self, point, options):
        return len(options) - 1 if point.kind is ChoiceKind.SOURCE else 0


def test_whose_message_is_taken_is_a_choice():
    def receiver():
        me = Rank(0, 3)
        yield Sleep(1.0)  # both messages are there
        yield from me.call("recv", peer=ANY_SOURCE)
        yield from me.call("recv", peer=ANY_SOURCE)

    host = Host([receiver(), Rank(1, 3).call("send", peer=0), Rank(2, 3).call("send", peer=0)], policy=Last())
    assert [text for rank, kind, text in host.events if kind == "match"] == ["from rank 2", "from rank 1"]
    assert any(host.kernel.schedule)


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


def test_who_waits_for_whom_is_told_of_a_cycle():
    host = Host([Rank(rank, 2).call("recv", peer=1 - rank) for rank in range(2)])
    assert host.codes == ["deadlock.cycle"]
    assert host.run.life.ending is RunEnding.DEADLOCK
    assert waits_of(host) == [(0, "", CallWait, [1]), (1, "", CallWait, [0])]
    assert [what[1] for what in host.done("unwound")] == [0, 1]


def test_a_missing_rank_and_a_dead_one_are_told_apart():
    def dies():
        yield Checkpoint()
        raise KeyError("x")

    missing = Host([calls(0, 2, "barrier"), calls(1, 2)])
    dead = Host([calls(0, 2, "barrier"), dies()])
    assert (missing.codes, missing.run.findings[0].ranks) == (["deadlock.missing_rank"], (1,))
    assert (dead.codes, dead.run.findings[0].ranks) == (["deadlock.dead_rank"], (1,))
    assert (1, "raise", "KeyError") in dead.events


def test_a_program_may_clean_up_as_it_is_unwound():
    def tidy():
        try:
            yield from Rank(0, 2).call("barrier")
        finally:
            yield WriteNote(EventKind.NOTE, "tidied")

    host = Host([tidy(), calls(1, 2)])
    assert host.events[-1] == (0, "note", "tidied")
    assert host.done("unwound") == [("unwound", 0)]


def test_who_asks_for_more_as_it_is_unwound_is_told_to_leave_again():
    def clings():
        with pytest.raises(Unwound):
            yield from Rank(0, 2).call("barrier")
        yield Checkpoint()

    assert Host([clings(), calls(1, 2)]).done("unwound") == [("unwound", 0)]


def stores(operation, *keys, **options):
    return StoreOperation(operation, keys, **options)


def test_the_store_does_what_stores_do():
    def program():
        yield stores("set", "a", values=(b"1",))
        yield stores("append", "a", values=(b"2",))
        got = [(yield stores("add", "a", amount=3)), (yield stores("get", "a")), (yield stores("check", "a", "b"))]
        got.append((yield stores("compare_set", "b", values=(b"", b"x"))))
        got.append((yield stores("list_keys", prefix="b")))
        got += [(yield stores("delete_key", "a")), (yield stores("num_keys"))]
        yield stores("queue_push", "q", values=(b"i",))
        got += [(yield stores("queue_len", "q")), (yield stores("queue_pop", "q"))]
        got.append((yield stores("queue_pop", "q", may_wait=False)))
        yield stores("set", "word", values=(b"w",))
        with pytest.raises(ValueError, match="invalid literal for int"):
            yield stores("add", "word", amount=1)
        return got

    ((_, _, got),) = Host([program()]).done("returned")
    assert got == [15, (b"15",), False, b"x", ("b",), True, 1, 1, b"i", None]


def test_a_wait_for_keys_ends_when_all_are_there_or_its_time_is_over():
    def waits():
        first = yield stores("wait", "a", "b", timeout_seconds=10.0)
        second = yield stores("wait", "never", timeout_seconds=2.0)
        return first, second, (yield ReadClock())

    def sets():
        yield stores("set", "a", values=(b"",))
        yield Sleep(1.0)
        yield stores("set", "b", values=(b"",))

    host = Host([waits(), sets()])
    assert host.done("returned")[-1] == ("returned", 0, ((), ("never",), 3.0))
    assert (0, "done", "store key never timed out") in host.events


def test_a_key_that_nobody_sets_is_a_deadlock():
    host = Host([one(stores("get", "k")), calls(1, 2)])
    assert host.codes == ["deadlock.missing_rank"]
    assert waits_of(host) == [(0, "", StoreWait, [])]


def one(request):
    """A program of one request."""
    return (yield request)


def test_time_moves_when_nobody_else_can_go_on():
    def sleeps(*seconds):
        for each in seconds:
            yield Sleep(each)
        return (yield ReadClock())

    host = Host([sleeps(3.0), sleeps(1.0, 1.0), sleeps()])
    assert host.done("returned") == [("returned", 2, 0.0), ("returned", 1, 2.0), ("returned", 0, 3.0)]


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
    assert (finding.ranks, finding.summary) == ((0,), "rank 0 polled 5 times in a row while nobody else could run")


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
    assert host.seen[StrikeFault][0] == StrikeFault(Crash(0, 1, "power cut"), 1)
    assert [event for event in host.events if event[1] == "fault"] == [(0, "fault", "Crash")]


def test_an_early_return_and_a_delay_strike():
    host = Host([calls(rank, 2, "barrier") for rank in range(2)], faults=[Delay(0, 0, 2.0), EarlyReturn(1, 0)])
    assert host.run.clock.now == 2.0
    assert host.seen[StrikeFault] == [StrikeFault(EarlyReturn(1, 0), 0)]
    assert (0, "sleep", "2.0") in host.events


def forever(request):
    while True:
        yield request


@pytest.mark.parametrize(
    ("request_", "budget", "ending"),
    [(Checkpoint(), Budget(steps=20), RunEnding.STEPS), (Poll(), Budget(polls=20), RunEnding.POLLS)],
    ids=["steps", "polls"],
)
def test_a_budget_that_runs_out_ends_the_run_with_the_stack(request_, budget, ending):
    host = Host([forever(request_)], budget=budget)
    assert (host.codes, host.run.life.ending) == (["budget"], ending)
    assert 'File "train.py", line 1' in str(host.run.findings[0])
    assert host.done("unwound") == [("unwound", 0)]


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


def test_threads_wait_for_locks_and_for_each_other():
    def worker():
        yield Block(LockWait(LOCK, "a lock", 0))
        yield WriteNote(EventKind.NOTE, "has the lock")

    def program():
        number = yield Start("worker", worker())
        yield Sleep(1.0)
        yield WakeTask(number)
        in_time = yield Block(ThreadWait(number, "worker"), 5.0)
        yield SawThreadEnd(number)
        return number, in_time

    host = Host([program(), calls(1, 2)])
    assert host.done("returned")[-1] == ("returned", 0, (2, True))
    assert [(event.text, event.thread) for event in host.run.events if event.kind is EventKind.NOTE] == [
        ("starts thread 'worker'", ""),
        ("has the lock", "worker"),
    ]


def test_who_waits_is_woken_by_a_thread_outside_or_by_nobody():
    looks = {
        outside: Host([one(Block(LockWait(LOCK, "a lock"))), calls(1, 2)], outside=outside) for outside in [(), (0,)]
    }
    assert [(host.codes, host.done("returned")[1:], host.seen[AwaitedExternalThreads]) for host in looks.values()] == [
        (["deadlock.threads"], [], [AwaitedExternalThreads(woke_somebody=False)]),
        ([], [("returned", 0, True)], [AwaitedExternalThreads(woke_somebody=True)]),
    ]


def test_threads_that_wait_for_each_other_are_a_deadlock():
    def worker():
        yield Block(LockWait(LOCK, "a lock", 0))

    def program():
        number = yield Start("worker", worker())
        yield Block(ThreadWait(number, "worker"))

    host = Host([program()])
    assert host.codes == ["deadlock.threads"]
    assert waits_of(host) == [(0, "", ThreadWait, [0]), (0, "worker", LockWait, [0])]
    assert [what[1] for what in host.done("unwound")] == [0, 1]


def test_a_cancelled_thread_is_unwound_and_its_rank_goes_on():
    def daemon():
        yield from forever(Sleep(1.0))

    def program():
        number = yield Start("daemon", daemon())
        yield Sleep(2.5)
        yield CancelThread(number)
        return (yield Block(ThreadWait(number, "daemon")))

    host = Host([program()])
    assert host.codes == []
    assert host.log[-2:] == [("unwound", 1), ("returned", 0, True)]


def test_a_thread_that_has_ended_is_cancelled_in_vain():
    def program():
        number = yield Start("short", one(Sleep(1.0)))
        yield Sleep(2.0)
        yield CancelThread(number)

    host = Host([program()])
    assert host.codes == []
    assert host.log == [("returned", 1, None), ("returned", 0, None)]


def test_another_thread_delivers_what_came():
    me = Rank(0, 2)

    def waits(handles):
        yield WaitFor(tuple(handles))

    def program():
        handle = yield from me.issue("barrier")
        number = yield Start("waits", waits([handle]))
        yield Block(ThreadWait(number, "waits"))

    host = Host([program(), calls(1, 2, "barrier")])
    assert ("delivered", 0, 1, 2) in host.log


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
        yield requests.ReportUse("Lock")
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
        yield requests.LoaderStarted(3, NOWHERE)
        yield requests.SamplerStarted(requests.SamplerSettings(2, 0, 8, True, 0, 0, False), NOWHERE, NOWHERE)
        yield DestroyGroup("default", NOWHERE)
        yield ReadClock()
        yield Sleep(1.0)
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
    ]
    assert runs[0].run.ranks[0].optimizer_steps == 1
    assert runs[0].run.batch_counts() == {0: {NOWHERE: [3]}}
    seen = {kind for host in runs for kind in host.seen}
    assert seen == set(get_args(requests.Request | requests.Reply | Answer))


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
