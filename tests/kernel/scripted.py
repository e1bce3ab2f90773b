"""A host in miniature: ranks are generators that yield requests, and all that passes goes through a pipe, so to say.

What a generator yields is pickled on its way to the kernel, as is each answer on its way back. `Start` starts another
generator as a thread; a rank's `chains` run inside `DeliverCompletion`.
"""

import pickle
from collections import defaultdict
from typing import NamedTuple

from ddpsim import Budget
from ddpsim.simulator.backend_semantics import GLOO
from ddpsim.simulator.calls import Call, Signature, Site
from ddpsim.simulator.faults import FaultPlan
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.answers import (
    AwaitExternalThreads,
    Continue,
    DeliverCompletion,
    FailCalls,
    MoveTensors,
    RaiseFault,
    RejectRequest,
    ReportStack,
    SwitchTask,
    Unwind,
)
from ddpsim.simulator.kernel.requests import (
    AwaitedExternalThreads,
    BeginCall,
    DeclareGroup,
    DeliveredCompletion,
    FinishTask,
    IssueCall,
    MovedTensors,
    ProgramRaised,
    ProgramReturned,
    RankError,
    StackReport,
    StartThread,
    WaitFor,
)
from ddpsim.simulator.kernel.states import TaskChange
from ddpsim.simulator.policies.named import RoundRobin


class Unwound(BaseException):
    pass


class Struck(Exception):
    pass


class Start(NamedTuple):
    name: str
    program: object


class Host:
    def __init__(self, programs, *, policy=None, faults=(), budget=None, chains=None, semantics=GLOO):
        """`chains` has, by rank and handle, the generator that runs when a completion is delivered."""
        world_size = len(programs)
        policy = policy or RoundRobin()
        plan = FaultPlan(faults, world_size)
        self.kernel = Kernel(world_size, policy=policy, budget=budget or Budget(), faults=plan, semantics=semantics)
        self.run = self.kernel.run
        self.log = []
        """What the host had to do, and who was left by which way."""
        self.seen = defaultdict(list)
        """By kind, all requests, answers and replies."""
        self._chains = chains or {}
        self._stacks = {rank: [program] for rank, program in enumerate(programs)}
        self._play()

    @property
    def codes(self):
        return [finding.code.value for finding in self.run.findings]

    @property
    def events(self):
        return [(event.rank, event.kind.value, event.text) for event in self.run.events]

    def done(self, kind):
        """What of a kind the host did."""
        return [what for what in self.log if what[0] == kind]

    def _through_a_pipe(self, value):
        self.seen[type(value)].append(value)
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        return again

    def _handle(self, request):
        return self._through_a_pipe(self.kernel.handle(self._through_a_pipe(request)))

    def _reply(self, reply):
        return self._through_a_pipe(self.kernel.reply(self._through_a_pipe(reply)))

    def _resume(self, number):
        self.kernel.give_baton(number)
        return self._through_a_pipe(self.kernel.resume_task(self.run.tasks[number]))

    def _play(self):
        me = self.kernel.first_task()
        answer = self._resume(me)
        while True:
            if isinstance(answer, SwitchTask):
                if answer.to is None:
                    return
                me = answer.to
                answer = self._resume(me)
            elif isinstance(answer, DeliverCompletion):
                rank = self.run.tasks[me].rank.rank
                self.log.append(("delivered", rank, answer.handle, me))
                self._stacks[me].append(self._chain(rank, answer.handle))
                answer = Continue()
            elif isinstance(answer, MoveTensors):
                self.log.append(("moved", answer.signature.operation, answer.calls, answer.members))
                answer = self._reply(MovedTensors(None))
            elif isinstance(answer, FailCalls):
                self.log.append(("failed", answer.calls, answer.failure.kind))
                answer = self._reply(MovedTensors(None))
            elif isinstance(answer, ReportStack):
                answer = self._reply(StackReport('  File "train.py", line 1'))
            elif isinstance(answer, AwaitExternalThreads):
                answer = self._reply(AwaitedExternalThreads(False))
            else:
                answer = self._step(me, answer)

    def _chain(self, rank, handle):
        yield from self._chains.get((rank, handle), ())

    def _step(self, me, answer):
        """Let the innermost generator of a task go on, up to its next request."""
        stack = self._stacks[me]
        program = stack[-1]
        try:
            if isinstance(answer, Continue):
                request = program.send(None if program.gi_frame.f_lasti < 0 else answer.value)
            elif isinstance(answer, Unwind):
                request = program.throw(Unwound())
            elif isinstance(answer, RaiseFault):
                request = program.throw(Struck(answer))
            else:
                assert isinstance(answer, RejectRequest)
                request = program.throw(ValueError(answer.text))
        except (StopIteration, Unwound, Exception) as end:
            stack.pop()
            return self._reply(DeliveredCompletion()) if stack else self._end(me, end)
        if isinstance(request, Start):
            answer = self._handle(StartThread(request.name))
            self._stacks[answer.value] = [request.program]
            return answer
        return self._handle(request)

    def _end(self, me, end):
        task = self.run.tasks[me]
        if isinstance(end, Unwound):
            self.log.append(("unwound", me))
            return self._handle(FinishTask(TaskChange.UNWIND))
        if isinstance(end, StopIteration):
            self.log.append(("returned", me, end.value))
            if task.is_main:
                self._handle(ProgramReturned())
            return self._handle(FinishTask(TaskChange.RETURN))
        self.log.append(("raised", me, str(end)))
        if task.is_main:
            self._handle(ProgramRaised(RankError(type(end).__name__, str(end), Site("train.py", 1, "train"))))
        return self._handle(FinishTask(TaskChange.RAISE))


# --- what ranks do ----------------------------------------------------------------------------------------------------


class Rank:
    """Numbers a rank's calls, as its group would."""

    def __init__(self, rank, world_size, line=10):
        self.rank = rank
        self._members = tuple(range(world_size))
        self._line = line
        self._sequence = self._messages = self._handle = 0

    def issue(self, operation, *, shape=(4,), peer=None, tag=0):
        """Begin and issue a call on the group "default"; its handle."""
        yield DeclareGroup("default", self._members)
        yield BeginCall()
        if peer is None:
            sequence, self._sequence = self._sequence, self._sequence + 1
        else:
            sequence, self._messages = self._messages, self._messages + 1
        self._handle += 1
        handle = self._handle  # a chain may make calls before this one is issued
        signature = Signature(operation, (shape,), "float32", "SUM" if operation == "all_reduce" else None)
        site = Site("train.py", self._line + self._handle, "train")
        yield IssueCall(handle, Call(self.rank, "default", sequence, signature, site, peer=peer, tag=tag))
        return handle

    def call(self, operation, *, timeout_seconds=None, **options):
        """Issue a call and wait for it; whether it came in time."""
        handle = yield from self.issue(operation, **options)
        return (yield WaitFor((handle,), timeout_seconds))


def calls(rank, world_size, *operations, line=10):
    """A program that makes calls, one after another."""
    me = Rank(rank, world_size, line)
    for operation in operations:
        yield from me.call(operation)
