"""A rank that is carried out of its program just as it asks for something: its next request gets its own answer."""

import signal
import threading

import pytest

from ddpsim.simulator.hazards.hazard_watch import HazardWatch
from ddpsim.simulator.kernel.answers import GO_ON, UNWIND, Continue, SwitchTask
from ddpsim.simulator.kernel.requests import BeginCall, Checkpoint, FinishTask
from ddpsim.simulator.kernel.states import TaskChange
from ddpsim.simulator.rank_processes.channel import MessageChannel
from ddpsim.simulator.rank_processes.messages import AskTaskNumber, AwaitTurn, SendRequest, TurnToRun
from ddpsim.simulator.rank_processes.parcels import SharedArena
from ddpsim.simulator.rank_processes.rank_channel import RankChannel
from ddpsim.simulator.rank_processes.rank_files import RankFiles
from ddpsim.simulator.rank_processes.rank_process import leave_program
from ddpsim.simulator.rank_processes.remote_kernel import RemoteKernel
from ddpsim.simulator.runtime.rank_thread import RankUnwound
from ddpsim.simulator.runtime.thread_host import ThreadHost

OVER = TurnToRun(None, GO_ON, 7, is_stopping=True)
"""What the end of a rank is answered by."""


def turn(answer, **fields):
    return TurnToRun(0, answer, 7, **{"is_stopping": False} | fields)


class Wire(MessageChannel):
    """The rank's end, where a signal may come at a certain moment."""

    def __init__(self, end, kernel):
        super().__init__(end._socket)
        self.kernel = kernel
        self.comes = ""

    def send(self, value):
        self.signal("before it is sent")
        super().send(value)
        self.signal("before the answer")

    def receive(self):
        self.signal("while it waits")
        value = super().receive()
        self.signal("with the answer")
        return value

    def signal(self, moment):
        if self.comes == moment:
            self.comes = ""
            leave_program(self.kernel())


class Rank:
    """What stands for the kernel in a rank's process, and the other end of its channel."""

    def __init__(self):
        near, self.far = MessageChannel.pair()
        self.wire = Wire(near, lambda: self.kernel)
        self.files = RankFiles.open_rank_files()
        self.kernel = RemoteKernel(RankChannel(self.wire, 0, self.files), 0, SharedArena(4096), is_observed=False)

    def answered(self, *turns):
        """What the coordinator is going to say, in order."""
        for each in turns:
            self.far.send(each)

    def heard(self):
        """What the coordinator was asked."""
        self.far._socket.setblocking(False)
        said = []
        try:
            while True:
                said.append(self.far.receive()[0])
        except BlockingIOError:
            return said


@pytest.fixture
def rank():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a rank that has ended lets no signal in any more
    made = Rank()
    yield made
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    made.files.close()
    made.far.close()
    made.wire.close()


MOMENTS = ["before it is sent", "before the answer", "while it waits", "with the answer"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("answer", [UNWIND, GO_ON, Continue(3)], ids=str)
def test_a_request_that_is_interrupted_ends_with_its_answer_and_the_end_of_the_rank_with_its_own(rank, moment, answer):
    rank.answered(turn(answer, is_stopping=True), OVER)
    rank.wire.comes = moment
    assert rank.kernel.handle(BeginCall()) is UNWIND
    assert rank.kernel.handle(FinishTask(TaskChange.UNWIND)) == SwitchTask(None)
    assert rank.heard() == [SendRequest(BeginCall()), SendRequest(FinishTask(TaskChange.UNWIND))]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_end_of_a_rank_that_is_interrupted_is_said_once(rank, moment):
    rank.answered(OVER)
    rank.wire.comes = moment
    assert rank.kernel.handle(FinishTask(TaskChange.RETURN)) == SwitchTask(None)
    assert rank.heard() == [SendRequest(FinishTask(TaskChange.RETURN))]


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_no_request_of_the_kernel_keeps_its_answer_too(rank, moment):
    rank.answered(5, OVER)
    rank.wire.comes = moment
    assert rank.kernel.run.started == 5
    assert rank.kernel.handle(FinishTask(TaskChange.UNWIND)) == SwitchTask(None)
    assert rank.heard() == [AskTaskNumber(), SendRequest(FinishTask(TaskChange.UNWIND))]


def test_a_rank_that_ran_ahead_leaves_with_the_turn_that_it_waits_for(rank):
    rank.answered(turn(GO_ON, is_speculative=True), turn(GO_ON), OVER)
    assert rank.kernel.handle(Checkpoint()) == GO_ON
    rank.wire.comes = "while it waits"
    assert not rank.kernel.await_turn()
    assert rank.kernel.handle(FinishTask(TaskChange.UNWIND)) == SwitchTask(None)
    assert rank.heard()[1] == AwaitTurn()


def test_between_requests_a_rank_leaves_at_once_and_otherwise_not_at_all(rank):
    rank.answered(turn(GO_ON))
    assert rank.kernel.handle(Checkpoint()) == GO_ON
    with pytest.raises(RankUnwound):
        leave_program(rank.kernel)


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_host_of_the_rank_ends_it(rank, moment):
    host = ThreadHost(
        rank.kernel,
        1,
        lambda me: None,
        switch=lambda outgoing, incoming: None,
        move_data=lambda *_: None,
        hazards=HazardWatch(1, rank.kernel.handle),
        enter_thread=lambda: None,
    )
    me = host.ranks[0].main
    me.thread, me.ident = threading.current_thread(), threading.get_ident()
    me.asker = me.ident
    host.baton.pass_to_thread(None, me.number)
    rank.answered(turn(GO_ON, is_stopping=True), OVER)
    rank.wire.comes = moment
    with pytest.raises(RankUnwound):
        host.send_request(Checkpoint())
    host.finish_thread(me, TaskChange.UNWIND)
    assert host.baton.over.acquire(timeout=0)
