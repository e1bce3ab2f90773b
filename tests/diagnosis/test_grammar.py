"""Texts read as sentences: what is said of one rank, and of many."""

import asyncio
import time

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, simulate
from ddpsim.scenarios import registry
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.simulator.calls import Call, Signature, Site
from ddpsim.simulator.diagnosis.deadlock import find_deadlocks
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenCalls, RankSnapshot, RankState, Snapshot
from ddpsim.simulator.diagnosis.explain import TableRow, format_table, put_verb_in_plural
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.waits import CallWait
from tests.kit.grammar import wrong_numbers
from tests.kit.limit_clocks import limits_go_by
from tests.kit.rows import rows

from .ending import TABLE

OF_RANKS = {"who", "ahead", "behind"}


@pytest.mark.parametrize("who", ["rank 2", "ranks 0-6, 8-63", "some ranks"])
def test_every_cause_agrees_with_its_ranks(who):
    for name, advice in TABLE.items():
        facts = [who if field in OF_RANKS else "SOMETHING" for field in advice.facts._fields]
        text = "\n".join(line.text for line in advice.lines(*facts)).replace("some ranks", "ranks 0-6")
        assert not wrong_numbers(text), name


def test_the_check_itself():
    assert wrong_numbers("ranks 0-6, 8-63  waits in barrier #0") == ["ranks 0-6, 8-63 waits"]
    assert wrong_numbers("rank 3 wait for rank 1") == ["rank 3 wait"]
    assert wrong_numbers("rank 1 send to rank 2; rank 1 name other members") == ["rank 1 send", "rank 1 name"]
    assert not wrong_numbers("rank 0  send #1  float32[3]  to rank 1\n  rank 1  name of tensor 0 = weight")
    assert not wrong_numbers("ranks 0, 1 wait for rank 3, which has raised; rank 2 waits; rank 1 and rank 2 wait")


def of_world(size, missing):
    """All ranks but one wait in a barrier, and that one has returned."""
    site = Site("train.py", 3, "main")
    calls = {rank: Call(rank, "default", 0, Signature("barrier"), site) for rank in range(size) if rank != missing}
    ranks = [
        RankSnapshot(rank, RankState.WAITING, CallWait((calls[rank],)), calls[rank])
        if rank in calls
        else RankSnapshot(rank, RankState.RETURNED)
        for rank in range(size)
    ]
    return Snapshot(tuple(ranks), (OpenCalls(tuple(calls.values()), (missing,)),))


@rows("size", [2, 3, 9, 10, 64])
def test_lines_that_many_ranks_share(size):
    (finding,) = find_deadlocks(WaitGraph(of_world(size, size // 2)))
    assert not wrong_numbers(str(finding))
    assert ("waits in barrier" in finding.text) is (size <= 9)


def test_rows_of_one_rank_stay_as_they_are():
    assert format_table([TableRow(2, "waits in barrier #0")]) == ["  rank 2  waits in barrier #0"]
    assert put_verb_in_plural("is over, and waits for a lock") == "are over, and wait for a lock"
    assert put_verb_in_plural("was killed by SIGSEGV") == "were killed by SIGSEGV"
    assert put_verb_in_plural("returned after barrier #0") == "returned after barrier #0"


@pytest.mark.parametrize("against", [(2, 2), (2, 3), (1, 1)])
def test_a_tie_is_told_where_ranks_are_missing(against):
    def program(rank):
        for _ in range(2 if rank < against[0] else 1):
            dist.barrier()

    (finding,) = simulate(program, sum(against)).findings
    notes = {
        (2, 2): "a tie, 2 ranks against 2: ranks 0, 1 arrived, ranks 2, 3 did not; either may be wrong",
        (1, 1): "a tie, one rank against one: rank 0 arrived, rank 1 did not; either may be wrong",
    }
    expected = notes.get(against)
    assert [note for note in notes.values() if note in finding.text] == ([expected] if expected else [])


def test_one_rank_that_waits_in_a_wrapper_for_one_is_no_tie():
    finding = run_scenario("uneven-inputs-without-join", world_size=2).findings[0]
    assert finding.code == "deadlock.missing_rank"
    assert "a tie" not in finding.text


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("name", [name for name, each in registry.items() if each.expected.code is not None])
def test_every_text_of_the_zoo_agrees_with_its_ranks(name):
    scenario = registry[name]
    for size in sorted({scenario.world_size, max(12, scenario.world_size)}):
        try:
            result = run_scenario(scenario, world_size=size, budget=Budget(seconds=60))
        except Exception:  # not every scenario runs in another world
            continue
        assert not wrong_numbers(str(result)), size


def test_an_event_loop_that_turns_without_end_is_named(monkeypatch):
    limits_go_by(monkeypatch, time.process_time)

    async def turn():
        while True:
            await asyncio.sleep(0)

    def program(rank):
        asyncio.run(turn())

    (finding,) = simulate(program, 2, budget=Budget(seconds=0.2)).findings
    assert finding.code == "budget"
    assert "cause   an asyncio event loop runs there without end" in finding.text


def test_a_mismatch_says_who_did_how_much():
    def program(rank):
        for _ in range(3 if rank == 1 else 5):
            dist.all_reduce(torch.ones(1))
        dist.barrier()

    (finding,) = simulate(program, 3).findings
    line = program.__code__.co_firstlineno + 2
    assert (
        f"  counts  all_reduce at test_grammar.py:{line} was called 4 times on ranks 0, 2; 3 times on rank 1\n"
        in finding.text
    )
