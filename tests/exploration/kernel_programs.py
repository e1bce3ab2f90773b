"""Small programs as values, run by the kernel alone: no torch, no threads, a fraction of a millisecond an execution.

A program is a tuple of ranks, a rank a tuple of operations, an operation a tuple of its name and arguments. A peer is
named by how many ranks further on it is. What came
of an execution is what each rank saw, how it ended, and what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ddpsim import Budget
from ddpsim.simulator.accesses import Access, Mode
from ddpsim.simulator.calls import ANY_SOURCE, Call, Signature, Site
from ddpsim.simulator.choices import RedundantRun
from ddpsim.simulator.faults import FaultPlan
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.kernel.answers import Deliver, GoOn, LookOutside, Move, Switch, TellStack, Unwind
from ddpsim.simulator.kernel.requests import (
    BeginCall,
    Declare,
    Delivered,
    Finish,
    IsComplete,
    Issue,
    Looked,
    Moved,
    Raised,
    RankError,
    Returned,
    Sleep,
    StackTold,
    StoreOperation,
    WaitFor,
)
from ddpsim.simulator.kernel.states import Change
from ddpsim.simulator.matching.point_to_point import channel_of
from ddpsim.simulator.matching.slots import call_object
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
        """What each rank was answered; a value each, or a word for an exception."""
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

    # --- the host -----------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        kernel = self.kernel
        me = kernel.start()
        kernel.give_baton(me)
        answer = kernel.resume(self.run.tasks[me])
        while self.run.life.failure is None:  # else the policy gave up, and nobody asks how the ranks end
            if isinstance(answer, Switch):
                if answer.to is None:
                    return
                me = answer.to
                kernel.give_baton(me)
                answer = kernel.resume(self.run.tasks[me])
            elif isinstance(answer, Deliver):
                answer = kernel.reply(Delivered())
            elif isinstance(answer, Move):
                for (sender, _), (receiver, handle) in [answer.calls] if answer.signature == SEND else []:
                    self.senders[receiver, handle] = sender
                answer = kernel.reply(Moved(None))
            elif isinstance(answer, TellStack):
                answer = kernel.reply(StackTold(""))
            elif isinstance(answer, LookOutside):
                answer = kernel.reply(Looked(False))
            else:
                answer = self._step(me, answer)

    def _step(self, me: int, answer: Any) -> Any:
        program = self._stacks[me]
        self.answers[me].append(answer.value if isinstance(answer, GoOn) else str(answer))
        try:
            if isinstance(answer, GoOn):
                request = program.send(None if program.gi_frame.f_lasti < 0 else answer.value)
            elif isinstance(answer, Unwind):
                request = program.throw(Unwound())
            else:
                request = program.throw(ValueError(str(answer)))
        except StopIteration:
            self.kernel.handle(Returned())
            return self.kernel.handle(Finish(Change.RETURN))
        except Unwound:
            return self.kernel.handle(Finish(Change.UNWIND))
        except ValueError as error:
            self.kernel.handle(Raised(RankError("ValueError", str(error), SITE)))
            return self.kernel.handle(Finish(Change.RAISE))
        return self.kernel.handle(request)

    # --- a rank -------------------------------------------------------------------------------------------------------

    def _rank(self, rank: int, operations: tuple[Operation, ...]) -> Iterator[Any]:
        seen, works = self.seen[rank], []
        counts = {"all": 0, "messages": 0, "handle": 0}
        yield Declare("default", tuple(range(len(self.seen))))
        for name, *arguments in operations:
            if name in _STORE:
                seen.append((yield _STORE[name](*arguments)))
            elif name == "sleep":
                yield Sleep(arguments[0])
            elif name == "unless":
                key, wrong = arguments
                is_there = yield _STORE["check"](key)
                works.append((yield from self._issue(rank, counts, "reduce" if is_there else wrong)))
            elif name in ("reduce", "send", "receive"):
                works.append((yield from self._issue(rank, counts, name, *arguments)))
            elif works and name == "poll":
                seen.append((yield IsComplete(works[0].handle, Access(call_object(works[0].call), Mode.READ))))
            elif works and name == "wait":
                work = works.pop(0)
                seen.append((yield WaitFor((work.handle,), *arguments)))
                seen.append(self._sender(rank, work))
        for work in works:
            yield WaitFor((work.handle,), None)
            seen.append(self._sender(rank, work))

    def _sender(self, rank: int, work: Issue) -> int | None:
        """How many ranks further on the sender of a message is, so that ranks that change places see the same."""
        sender = self.senders.get((rank, work.handle))
        return None if sender is None else (sender - rank) % len(self.seen)

    def _issue(self, rank: int, counts: dict[str, int], name: str, peer: int | None = None) -> Iterator[Any]:
        counter = "messages" if name in ("send", "receive") else "all"
        number, counts[counter] = counts[counter], counts[counter] + 1
        counts["handle"] += 1
        if peer is not None:
            peer = (rank + peer) % len(self.seen)
        elif name == "receive":
            peer = ANY_SOURCE
        signature = {"reduce": REDUCE, "broadcast": BROADCAST, "send": SEND, "receive": RECEIVE}[name]
        call = Call(rank, "default", number, signature, SITE, peer=peer, tag=0)
        intent = [Access(call_object(call), Mode.CONTRIBUTE)]
        if name == "send":
            intent.append(Access(channel_of(call), Mode.SEND))
        elif peer == ANY_SOURCE:
            intent.append(Access(channel_of(call), Mode.RECEIVE))
        yield BeginCall(tuple(intent))
        yield Issue(counts["handle"], call)
        return Issue(counts["handle"], call)


_STORE = {
    "set": lambda key, value: StoreOperation("set", (key,), (value,)),
    "get": lambda key: StoreOperation("get", (key,)),
    "check": lambda key: StoreOperation("check", (key,)),
    "add": lambda key, amount: StoreOperation("add", (key,), amount=amount),
    "compare_set": lambda key, old, new: StoreOperation("compare_set", (key,), (old, new)),
    "delete": lambda key: StoreOperation("delete_key", (key,)),
    "append": lambda key, value: StoreOperation("append", (key,), (value,)),
    "wait_key": lambda key, seconds: StoreOperation("wait", (key,), timeout_seconds=seconds),
    "count": lambda: StoreOperation("num_keys"),
    "push": lambda key, value: StoreOperation("queue_push", (key,), (value,)),
    "pop": lambda key, may_wait: StoreOperation("queue_pop", (key,), may_wait=may_wait),
    "length": lambda key: StoreOperation("queue_len", (key,)),
}


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
            result = Result(size, (), (), {}, None, None)
            finding = strategy.take(result)
        except RedundantRun:
            redundant += 1
            continue
        assert finding is None, finding
        executions += 1
        outcomes.add(run.ran)
    return Explored(outcomes, executions, redundant, strategy.is_complete)
