"""Documents made by hand, whose numbers one can count: without torch, and of any size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ddpsim.reports.document import (
    Call,
    Difference,
    Document,
    Event,
    Exploration,
    Finding,
    MatchedCalls,
    Outcome,
    Rank,
    Run,
    ScheduleChoice,
    Site,
    SlotState,
    Waiting,
)
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.verdict import Verdict


@dataclass
class Story:
    """Builds a run event by event; an event happens one choice after the other."""

    ranks: int
    events: list[Event] = field(default_factory=list)
    calls: dict[Call, int] = field(default_factory=dict)
    slots: list[MatchedCalls] = field(default_factory=list)

    @classmethod
    def of(cls, ranks: int, text: str) -> Story:
        """`a:01` meet in group a, `a:0?2` rank 0 waits there for 2; `0>1` is a message, `1<0` one that 1 waits for."""
        story, counts = cls(ranks), Counter[str]()
        for word in text.split():
            group, _, who = word.rpartition(":")
            found = re.fullmatch(r"(\d+)(\D?)(\d*)", who)
            assert found is not None
            one, other = ([int(rank) for rank in found[part]] for part in (1, 3))
            if group:
                made = call(counts[group], group=group)
                story.hang(made, one, other) if found[2] else story.meet(made, one)
            else:
                (sender,), (receiver,) = (one, other) if found[2] == ">" else (other, one)
                sent = message(counts[group], "send", receiver), message(counts[group], "recv", sender)
                story.send(*sent, first="send" if found[2] == ">" else "recv")
            counts[group] += 1
        return story

    def happen(self, kind: str, rank: int, call: Call | None = None, text: str = "", thread: str = "") -> int:
        """Add an event; return its index."""
        index = None if call is None else self.calls.setdefault(call, len(self.calls))
        self.events.append(Event(EventKind(kind), rank, len(self.events), call=index, text=text, thread=thread))
        return len(self.events) - 1

    def meet(self, call: Call, ranks: Iterable[int]) -> None:
        """Ranks issue a collective in this order, wait for it, and all but the last go on afterwards."""
        ranks = list(ranks)
        issues = [self.wait_in(call, rank) for rank in ranks[:-1]]
        issues.append(self.happen("issue", ranks[-1], call))
        match = self.happen("match", ranks[-1], call)
        for rank in ranks[:-1]:
            self.happen("done", rank, call)
        self.slot(call, issues, "matched", match)

    def slot(self, call: Call, issues: Iterable[int], state: SlotState = "open", match: int | None = None) -> None:
        """The calls that these events issued meet in one slot."""
        self.slots.append(MatchedCalls(call.group, call.sequence, tuple(issues), state, match))

    def differ(self, *calls: Call) -> Story:
        """Each rank waits in a call of its own, all in one slot."""
        self.slot(calls[0], [self.wait_in(each, rank) for rank, each in enumerate(calls)], "mismatched")
        return self

    def hang(self, call: Call, ranks: Sequence[int], missing: Sequence[int]) -> int:
        """Ranks wait in a slot that never fills; return the slot's index."""
        issues = tuple(self.wait_in(call, rank) for rank in ranks)
        self.slots.append(MatchedCalls(call.group, call.sequence, issues, "open", missing=tuple(missing)))
        return len(self.slots) - 1

    def wait_in(self, call: Call, rank: int) -> int:
        """A rank issues a call and waits for it; the issue's index."""
        issue = self.happen("issue", rank, call)
        self.happen("wait", rank, call)
        return issue

    def send(self, call: Call, receipt: Call, *, first: str = "send") -> None:
        """A message: `call` by the sender, `receipt` by the receiver, who waits if it comes first."""
        sender, receiver = receipt.peer, call.peer
        assert sender is not None
        assert receiver is not None
        if first == "send":
            issues = self.happen("issue", sender, call), self.happen("issue", receiver, receipt)
            match = self.happen("match", receiver, receipt)
        else:
            issues = self.wait_in(receipt, receiver), self.happen("issue", sender, call)
            match = self.happen("match", sender, call)
            self.happen("done", receiver, receipt)
        self.slot(call, issues, "matched", match)

    def run(self, **fields: object) -> Run:
        """The run so far."""
        parts = {"calls": tuple(self.calls), "events": tuple(self.events), "slots": tuple(self.slots)}
        plain = Run("story", self.ranks, Verdict.PASS, (), "the text")
        return replace(plain, **parts, **fields)  # type: ignore[arg-type]


def call(sequence: int, operation: str = "all_reduce", group: str = "default", **fields: object) -> Call:
    """A collective on two numbers."""
    return Call(operation, group, sequence, "SUM float32[2]", **fields)  # type: ignore[arg-type]


def of_own_size(ranks: int) -> list[Call]:
    """For each rank a collective on another number of numbers."""
    return [replace(call(0), signature=f"SUM float32[{rank + 1}]") for rank in range(ranks)]


def message(sequence: int, operation: str, peer: int, group: str = "default") -> Call:
    """A send or a recv."""
    return Call(operation, group, sequence, "float32[2]", peer=peer)


def missing_rank(ranks: int = 4, missing: int = 1, steps: int = 2) -> Run:
    """Ranks meet so many times, then all but one wait for one that returned."""
    story = Story(ranks)
    for step in range(steps):
        story.meet(call(step, site=0, bucket=0, parameters=("weight",)), range(ranks))
    return all_but_one(story, call(steps, site=0), missing)


def all_but_one(story: Story, last: Call, missing: int) -> Run:
    """The run that ends as one rank returns, and the others wait for it in a last call."""
    story.happen("return", missing)
    others = [rank for rank in range(story.ranks) if rank != missing]
    slot = story.hang(last, others, [missing])
    summary = f"{len(others)} ranks wait for rank {missing}"
    return story.run(
        verdict=Verdict.FAIL,
        findings=(Finding("deadlock.missing_rank", Verdict.FAIL, (missing,), summary, summary, slots=(slot,)),),
        sites=(Site("train.py", 2, "train", 1, ("for batch in data:", "    step(batch)")),),
        ranks=tuple(Rank(rank, "returned" if rank == missing else "waiting") for rank in range(story.ranks)),
        waiting=tuple(Waiting(RankOrThread(rank), f"{last.operation} #{last.sequence}", 0, (slot,)) for rank in others),
    )


def passing(ranks: int = 4, steps: int = 3) -> Run:
    """Ranks meet so many times, and return."""
    story = Story(ranks)
    for step in range(steps):
        story.meet(call(step, site=0, bucket=0, parameters=("weight",)), range(ranks))
    for rank in range(ranks):
        story.happen("return", rank)
    return story.run(
        sites=(Site("train.py", 2, "train"),), ranks=tuple(Rank(rank, "returned") for rank in range(ranks))
    )


def exploration(steps: int = 2) -> Document:
    """An exploration whose failing run parts from the passing one where rank 1 returns."""
    runs = passing(steps=steps + 1), missing_rank(steps=steps)
    parted = next(i for i, (one, other) in enumerate(zip(runs[1].events, runs[0].events, strict=False)) if one != other)
    outcomes = Outcome("pass", 1200), Outcome("fail  deadlock.missing_rank rank 1", 34)
    explored = Exploration(
        program="story",
        verdict=Verdict.FAIL,
        executions=1234,
        is_complete=True,
        extent="1,234 executions, all there are",
        outcomes=outcomes,
        seconds=1.5,
        failing=1,
        passing=0,
        difference=Difference(parted, parted, "failing: rank 1 returns; passing: rank 0 issues all_reduce"),
    )
    return Document("story", runs, exploration=explored)


def parted(before: int = 6) -> Document:
    """The same, with the choices: so many that took something else than the default, after ten that took it."""
    made = exploration()
    assert made.exploration is not None
    assert made.exploration.difference is not None
    rows = [ScheduleChoice(1, 10, 0, "the default each time")]
    rows += [ScheduleChoice(number, number, number, "rank 2 runs", "ranks 0, 1") for number in range(11, 11 + before)]
    number = 11 + before
    sides = (
        ScheduleChoice(number, number, number, "rank 1 goes on"),
        ScheduleChoice(number, number, number, "rank 0 runs"),
    )
    difference = replace(made.exploration.difference, choices=sides, before=tuple(rows))
    return replace(made, exploration=replace(made.exploration, difference=difference))


def without_trace() -> Document:
    """Of real processes only the findings are known."""
    run = missing_rank()
    return Document(
        "story",
        (replace(run, events=(), calls=(), slots=(), waiting=(), findings=(replace(run.findings[0], slots=()),)),),
    )
