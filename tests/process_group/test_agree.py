"""`agree`: ranks that go different ways by a value are told at once, and nobody else notices."""

import subprocess
import sys
from enum import Enum
from functools import partial

import pytest
import torch
import torch.distributed as dist

from ddpsim import Verdict, agree, explore, simulate
from tests.kit.results import codes


class Way(Enum):
    LEFT = 1


ALIKE = [
    (1, 1.0),
    (True, 1),
    (float("nan"), float("nan")),
    (torch.tensor(2), 2.0),
    (torch.ones(2), [1, 1]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    pytest.param(({"x", "y"}, {"y", "x"}), id="sets"),
    (Way.LEFT, Way.LEFT),
    (None, None),
    pytest.param(("x" * 500, "x" * 500), id="long texts"),
]
UNLIKE = [
    (1, 2),
    (0.1, 0.1 + 1e-16 * 4),
    ("1", 1),
    (None, 0),
    ([1, 2], [2, 1]),
    pytest.param(("x" * 500, "x" * 499 + "y"), id="long texts"),
    (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])),
    (1 + 2j, 1 - 2j),
]


def tells(rank, values):
    assert agree("way", values[rank]) is values[rank]
    dist.barrier()


@pytest.mark.parametrize("values", ALIKE, ids=str)
def test_alike(values):
    assert simulate(tells, 2, args=(values,)).findings == ()


@pytest.mark.parametrize("values", UNLIKE, ids=str)
def test_unlike(values):
    (finding,) = simulate(tells, 2, args=(values,)).findings
    assert (finding.code, finding.ranks) == ("mismatch.value", (0, 1))
    assert [site.function for site in finding.sites] == ["tells"]


def stops(rank, *, at):
    for step in range(3):
        if agree("stop", step == at[rank]):
            return
        dist.barrier()


def test_told_at_once_with_who_stands_alone():
    result = simulate(lambda rank: stops(rank, at=(2, 2, 1)), 3)
    (finding,) = result.findings
    assert finding.ranks in ((2,), (0, 2))  # whoever had told by then
    assert "agree('stop') #1" in finding.summary
    assert "rank 2" in finding.text
    assert "stop = 1" in finding.text
    assert str(finding.sites[0]) in finding.text


def test_names_are_counted_apart_and_fewer_calls_are_no_finding():
    def program(rank):
        if rank:
            agree("own", 7)
        agree("first", 1)
        agree("first", 2)
        if not rank:
            agree("first", 3)

    assert simulate(program, 2).findings == ()


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_nothing_else_changes(policy):
    def program(rank, tells):
        for step in range(3):
            if tells:
                agree("step", step)
            dist.all_reduce(torch.ones(1))

    with_it, without = (simulate(program, 3, args=(tells,), policy=policy) for tells in (True, False))
    assert with_it.trace.digest() == without.trace.digest()
    assert with_it.schedule.choices == without.schedule.choices
    assert explore(program, 2, args=(True,)).executions == explore(program, 2, args=(False,)).executions


def test_what_is_said_while_ranks_are_unwound_comes_too_late():
    def program(rank):
        try:
            agree("way", rank)
            dist.barrier()
        finally:
            agree("way", rank)
            agree("end", rank)

    assert codes(simulate(program, 2)) == [("mismatch.value", (0, 1))]


def test_what_has_no_text_is_refused():
    error = simulate(lambda rank: agree("it", object()), 2).errors[0]
    assert str(error).startswith("agree got a value of type object, expected numbers")


def test_outside_of_a_simulation_it_needs_nothing():
    assert agree("anything", ALIKE) is ALIKE
    line = "from ddpsim import agree; import sys; assert agree('x', print) is print; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", line], check=True)


@pytest.mark.tier("ci")
def test_ranks_as_processes():
    program = partial(stops, at=(2, 1))
    threads, processes = (simulate(program, 2, isolation=each) for each in ("thread", "process"))
    assert codes(threads) == codes(processes) == [("mismatch.value", (0, 1))]
    assert processes.findings[0].summary == threads.findings[0].summary
    assert processes.verdict is Verdict.FAIL
