"""Documents that the tests of several forms look at."""

from __future__ import annotations

from functools import cache

from ddpsim import simulate
from ddpsim.reports.document import Call, Document, Event, Finding, MatchedCalls, Rank, Run, Site, Waiting
from ddpsim.reports.making.result_document import document_of
from ddpsim.scenarios import run_scenario
from ddpsim.simulator.choices import RankOrThread, Schedule
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.policies.schedule_replay import ReplayPolicy
from ddpsim.simulator.verdict import Verdict
from ddpsim.simulator.wording import LabelledLine

MISSING = "uneven-inputs-without-join"
CYCLE = "send-send"
MISMATCH = "op-type-differs"
THREADS = "two-threads-one-group"

HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"'&amp;]]>-->{{ 7 * 7 }}",
    "\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe e\N{COMBINING ACUTE ACCENT}" + "\N{COMBINING ACUTE ACCENT}" * 20,
    "line\nbreak\ttab\r\x00\x07\x1b[31m\x7f\x85\ufffe",
    "\udcff half a character",
    "no diagnosis\ncause the moon\ntry sacrificing a goat",
    "x" * 10_000,
)
"""Names that a careless writer would let through as something else than text."""


@cache
def document(name: str, engine: str = "torch") -> Document:
    """That of a scenario, run under round robin."""
    return document_of(run_scenario(name, engine), name=name, how="policy round_robin")


def run_of(program, world_size, *choices, **options):
    """The run of a program; answers are the schedule, as far as they go."""
    if choices:
        options["policy"] = ReplayPolicy(Schedule(choices))
    return document_of(simulate(program, world_size, **options)).runs[0]


def hostile(text: str) -> Document:
    """A document in which every text that a user chooses is this one: a rank waits for another that returned."""
    call = Call(text, text, 0, text, site=0, origin=text, bucket=0, parameters=(text, text))
    events = (
        Event(EventKind.NOTE, 1, 0, text=text, thread=text),
        Event(EventKind.RETURN, 1, 0),
        Event(EventKind.ISSUE, 0, 1, call=0),
        Event(EventKind.WAIT, 0, 1, call=0),
    )
    run = Run(
        name=text,
        world_size=2,
        verdict=Verdict.FAIL,
        findings=(
            Finding(
                "deadlock.missing_rank",
                Verdict.FAIL,
                (1,),
                text,
                text,
                (0,),
                slots=(0,),
                lines=(LabelledLine(text, text),),
            ),
        ),
        text=text,
        how=text,
        conclusion=text,
        ranks=(Rank(0, "waiting", text, 0), Rank(1, "returned", text)),
        sites=(Site(text, 1, text, 1, (text,)),),
        calls=(call,),
        events=events,
        slots=(MatchedCalls(text, 0, (2,), "open", missing=(1,)),),
        waiting=(Waiting(RankOrThread(0), text, 0, (0,)),),
        replay=text,
    )
    return Document(text, (run,), environment={text: text})
