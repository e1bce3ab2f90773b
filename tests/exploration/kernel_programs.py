"""Small programs as values, run by the kernel alone: no torch, no threads, a fraction of a millisecond an execution.

A program is a tuple of ranks, a rank a tuple of operations, an operation a tuple of its name and arguments. A peer is
named by how many ranks further on it is. What came of an execution is what each rank saw, how it ended, and what was
found.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from ddpsim import Budget
from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.calls import ANY_SOURCE, Call, Signature, Site
from ddpsim.simulator.choices import RedundantRun, Schedule
from ddpsim.simulator.faults import FaultPlan
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.answers import (
    AwaitExternalThreads,
    Continue,
    DeliverCompletion,
    MoveTensors,
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
    IsComplete,
    IssueCall,
    MovedTensors,
    ProgramRaised,
    ProgramReturned,
    RankError,
    Sleep,
    StackReport,
    StoreOperation,
    WaitFor,
)
from ddpsim.simulator.kernel.states import TaskChange
from ddpsim.simulator.matching.slots import call_object, channel_object
from ddpsim.simulator.result import Result

Operation = tuple[Any, ...]
Program = tuple[tuple[Operation, ...], ...]
BUDGET = Budget()
SITE = Site("drawn.py", 1, "program")
REDUCE = Signature("all_reduce", ((4,),), "float32", "SUM")
BROADCAST = Signature("broadcast", ((4,),), "float32", None)
SEND = Signature("send", ((4,),), "float32", None)
RECEIVE = Signature("recv", ((4,),), "float32", None)


class Ran(NamedTuple):
    """What came of an execution."""

    seen: tuple[tuple[Any, ...], ...]
    ended: tuple[str, ...]
    found: tuple[str, ...]

    def placed(self, places: tuple[int, ...]) -> Ran:
        """As it would be if who stands in each place stood where it is said to belong."""
        if not self.seen:
            return self
        back = sorted(range(len(places)), key=places.__getitem__)
        return Ran(tuple(self.seen[at] for at in back), tuple(self.ended[at] for at in back), self.found)

    def without(self, seen: tuple[tuple[Any, ...], ...]) -> Ran:
        """Without what each rank had seen before."""
        return self._replace(seen=tuple([all[len(before) :] for all, before in zip(self.seen, seen, strict=False)]))

    def behind(self, seen: tuple[tuple[Any, ...], ...]) -> Ran:
        """With what each rank had seen before."""
        return self._replace(seen=tuple([before + after for before, after in zip(seen, self.seen, strict=False)]))


class Left(NamedTuple):
    """What a rank is going to do, from its operation under way on."""

    operations: tuple[Operation, ...]
    works: tuple[int, ...]
    """The handles of the calls that it has not waited for."""
    issued: tuple[tuple[Any, ...], ...]
    """All calls that it has made: the operation, the number, and the peer."""


class Unwound(BaseException):
    """Carries a rank out of its program."""


class KernelRun:
    """One execution of a program."""

    def __init__(self, program: Program, policy: Any, budget: Budget = BUDGET) -> None:
        size = len(program)
        self.kernel = Kernel(size, policy=policy, budget=budget, faults=FaultPlan((), size))
        self.run = self.kernel.run
        self.seen: list[list[Any]] = [[] for _ in range(size)]
        self.senders: dict[tuple[int, int], int] = {}
        """Whose message a receive took, by rank and handle."""
        self.answers: list[list[Any]] = [[] for _ in range(size)]
        """What each rank was answered in its operation under way; a value each, or a word for an exception."""
        self.left = [Left(operations, (), ()) for operations in program]
        self._stacks = [self._rank(rank, operations) for rank, operations in enumerate(program)]
        if (begin := getattr(policy, "begin", None)) is not None:
            begin(self)
        self._play()
        if self.run.life.failure is not None:
            raise self.run.life.failure

    @property
    def ran(self) -> Ran:
        found = {finding.code.value for finding in self.run.findings}
        is_cut = any(code.startswith("mismatch.") for code in found)
        if is_cut:  # what the others have come to by then is chance
            return Ran((), (), tuple(sorted(found)))
        ended = tuple(rank.main.state.value for rank in self.run.ranks)
        return Ran(tuple(map(tuple, self.seen)), ended, tuple(sorted(found)))

    def has_begun(self, rank: int) -> bool:
        """True once a rank stands before its first operation, or is over."""
        return inspect.getgeneratorstate(self._stacks[rank]) != inspect.GEN_CREATED

    # --- the host -----------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        kernel = self.kernel
        me = kernel.first_task()
        kernel.give_baton(me)
        answer = kernel.resume_task(self.run.tasks[me])
        while self.run.life.failure is None:  # else the policy gave up, and nobody asks how the ranks end
            if isinstance(answer, SwitchTask):
                if answer.to is None:
                    return
                me = answer.to
                kernel.give_baton(me)
                answer = kernel.resume_task(self.run.tasks[me])
            elif isinstance(answer, DeliverCompletion):
                answer = kernel.reply(DeliveredCompletion())
            elif isinstance(answer, MoveTensors):
                for (sender, _), (receiver, handle) in [answer.calls] if answer.signature == SEND else []:
                    self.senders[receiver, handle] = sender
                answer = kernel.reply(MovedTensors(None))
            elif isinstance(answer, ReportStack):
                answer = kernel.reply(StackReport(""))
            elif isinstance(answer, AwaitExternalThreads):
                answer = kernel.reply(AwaitedExternalThreads(False))
            else:
                answer = self._step(me, answer)

    def _step(self, me: int, answer: Any) -> Any:
        program = self._stacks[me]
        self.answers[me].append(answer.value if isinstance(answer, Continue) else str(answer))
        try:
            if isinstance(answer, Continue):
                request = program.send(None if program.gi_frame.f_lasti < 0 else answer.value)
            elif isinstance(answer, Unwind):
                request = program.throw(Unwound())
            else:
                request = program.throw(ValueError(str(answer)))
        except StopIteration:
            self.kernel.handle(ProgramReturned())
            return self.kernel.handle(FinishTask(TaskChange.RETURN))
        except Unwound:
            return self.kernel.handle(FinishTask(TaskChange.UNWIND))
        except ValueError as error:
            self.kernel.handle(ProgramRaised(RankError("ValueError", str(error), SITE)))
            return self.kernel.handle(FinishTask(TaskChange.RAISE))
        return self.kernel.handle(request)

    # --- a rank -------------------------------------------------------------------------------------------------------

    def _rank(self, rank: int, operations: tuple[Operation, ...]) -> Generator[Any, Any, None]:
        seen, works, issued = self.seen[rank], [], []
        yield DeclareGroup("default", tuple(range(len(self.seen))))
        for at, (name, *arguments) in enumerate(operations):
            self._stand(rank, operations[at:], works, issued)
            if name in _STORE:
                seen.append((yield _STORE[name](*arguments)))
            elif name == "sleep":
                yield Sleep(arguments[0])
            elif name == "unless":
                key, wrong = arguments
                is_there = yield _STORE["check"](key)
                works.append((yield from self._issue(rank, issued, "reduce" if is_there else wrong)))
            elif name in ("reduce", "send", "receive"):
                works.append((yield from self._issue(rank, issued, name, *arguments)))
            elif works and name == "poll":
                seen.append((yield IsComplete(works[0].handle, Access(call_object(works[0].call), AccessMode.READ))))
            elif works and name == "wait":
                work = works.pop(0)
                seen.append((yield WaitFor((work.handle,), *arguments)))
                seen.append(self._sender(rank, work))
        while works:
            self._stand(rank, (), works, issued)
            work = works.pop(0)
            yield WaitFor((work.handle,), None)
            seen.append(self._sender(rank, work))

    def _stand(
        self, rank: int, operations: tuple[Operation, ...], works: list[IssueCall], issued: list[IssueCall]
    ) -> None:
        self.answers[rank].clear()
        made = [(call.operation, call.sequence, call.peer) for _, call in issued]
        self.left[rank] = Left(operations, tuple([work.handle for work in works]), tuple(made))

    def _sender(self, rank: int, work: IssueCall) -> int | None:
        """How many ranks further on the sender of a message is, so that ranks that change places see the same."""
        sender = self.senders.get((rank, work.handle))
        return None if sender is None else (sender - rank) % len(self.seen)

    def _issue(self, rank: int, issued: list[IssueCall], name: str, peer: int | None = None) -> Iterator[Any]:
        is_message = name in ("send", "receive")
        number = sum(call.is_point_to_point is is_message for _, call in issued)
        if peer is not None:
            peer = (rank + peer) % len(self.seen)
        elif name == "receive":
            peer = ANY_SOURCE
        signature = {"reduce": REDUCE, "broadcast": BROADCAST, "send": SEND, "receive": RECEIVE}[name]
        call = Call(rank, "default", number, signature, SITE, peer=peer, tag=0)
        intent = [Access(call_object(call), AccessMode.CONTRIBUTE)]
        if name == "send":
            intent.append(Access(channel_object(call), AccessMode.SEND))
        elif peer == ANY_SOURCE:
            intent.append(Access(channel_object(call), AccessMode.RECEIVE))
        yield BeginCall(tuple(intent))
        issued.append(IssueCall(len(issued) + 1, call))
        yield issued[-1]
        return issued[-1]


_STORE = {
    "set": lambda key, value: StoreOperation("set", (key,), (value,)),
    "get": lambda key: StoreOperation("get", (key,)),
    "check": lambda key: StoreOperation("check", (key,)),
    "add": lambda key, amount: StoreOperation("add", (key,), amount=amount),
    "compare_set": lambda key, old, new: StoreOperation("compare_set", (key,), (old, new)),
    "delete": lambda key: StoreOperation("delete_key", (key,)),
    "append": lambda key, value: StoreOperation("append", (key,), (value,)),
    "wait_key": lambda key, seconds: StoreOperation("wait", (key,), timeout_seconds=seconds),
    "wait_all": lambda keys: StoreOperation("wait", keys),
    "set_all": lambda keys, value: StoreOperation("multi_set", keys, (value,) * len(keys)),
    "get_all": lambda keys: StoreOperation("multi_get", keys),
    "check_all": lambda keys: StoreOperation("check", keys),
    "list": lambda: StoreOperation("list_keys"),
    "count": lambda: StoreOperation("num_keys"),
    "push": lambda key, value: StoreOperation("queue_push", (key,), (value,)),
    "pop": lambda key, may_wait: StoreOperation("queue_pop", (key,), may_wait=may_wait),
    "length": lambda key: StoreOperation("queue_len", (key,)),
}


def store_operation(operation: Operation) -> StoreOperation | None:
    """What an operation asks of the store; None for one of another kind."""
    name, *arguments = operation
    return _STORE[name](*arguments) if name in _STORE else None


class Explored(NamedTuple):
    """What came of an exploration."""

    outcomes: set[Ran]
    executions: int
    redundant: int
    is_complete: bool


def explored(program: Program, strategy: Any, most: int = 1_000_000) -> Explored:
    """Run a program under a strategy to its end, or until so many executions."""
    outcomes, executions, redundant = set(), 0, 0
    size = len(program)
    while executions < most and (policy := strategy.next_policy()) is not None:
        try:
            run = KernelRun(program, policy)
            result = Result(size, (), (), {}, Schedule(), None)
            finding = strategy.take(result)
        except RedundantRun:
            redundant += 1
            continue
        assert finding is None, finding
        executions += 1
        outcomes.add(run.ran)
    return Explored(outcomes, executions, redundant, strategy.is_complete)
