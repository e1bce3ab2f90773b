"""Scenarios on real processes: what comes of them, and what they leave behind."""

import gc
import os
import re
import signal
import time
from dataclasses import replace

import psutil
import pytest
import torch

from ddpsim import Code, Verdict
from ddpsim.scenarios import load, run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import outcome_text_on_processes
from ddpsim.scenarios.training.reference import find_first_differences
from tests.jobs.conftest import PROGRAMS, children, command, have_ended
from tests.kit.leftovers import new_files, open_files

ENGINES = pytest.mark.parametrize("engine", [engine.value for engine in Engine])

MATRIX = ["hook-under-join", "several-joinables", "uneven-linear"]
"""Of the join matrix; docs/processes.md has the command that runs all of it."""

FAILING = [
    ("uneven-inputs-without-join", "hung"),
    ("exception-on-one-rank", "rank_error, rank 1"),
]


def line_of(text):
    """The number of the line of the programs' file that ends like this."""
    lines = PROGRAMS.read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(text)]
    return number


@ENGINES
@pytest.mark.parametrize("name", MATRIX)
def test_join_trains_what_it_trains_in_memory(server, name, engine):
    scenario = load(name)
    memory = run_scenario(scenario, engine)
    result = run_scenario(scenario, engine, transport="processes", timeout_seconds=60)
    assert result.verdict is memory.verdict is Verdict.PASS
    reference = scenario.reference(scenario.world_size)
    histories = tuple(own if isinstance(own, tuple) else (own,) for own in memory.returns)
    assert find_first_differences(replace(reference, histories=histories), result.returns) == []


@ENGINES
@pytest.mark.parametrize(("name", "found"), FAILING)
def test_what_fails_in_memory_fails(server, name, found, engine):
    scenario = load(name)
    result = run_scenario(scenario, engine, transport="processes", timeout_seconds=1.5)
    assert outcome_text_on_processes(result) == found
    assert scenario.expected_by(Engine(engine)).is_met_on_processes(result)
    twin = run_scenario(f"{name}-repaired", engine, transport="processes", timeout_seconds=60)
    assert twin.findings == ()


def test_a_reference_is_compared_with(server):
    result = run_scenario("buckets-in-gradient-ready-order", transport="processes", timeout_seconds=60)
    assert result.findings[0].code is Code.DIVERGENCE_GRADIENTS


def test_returns_come_back(run):
    result = run("greets", world_size=3)
    assert result.findings == ()
    assert [returned["rank"] for returned in result.returns] == [0, 1, 2]
    assert all(torch.equal(returned["sum"], torch.tensor([6.0])) for returned in result.returns)
    assert result.schedule.choices == ()
    assert result.replay == f"ddpsim run {PROGRAMS}:greets --world-size 3 --transport processes --timeout 30"


def test_what_cannot_be_pickled_stays_there(run):
    result = run("returns_what_cannot_be_pickled")
    assert (result.verdict, result.returns) == (Verdict.PASS, ("fine", None))


def test_layers_dropped_by_chance_hang(run):
    (finding,) = run("drops_layers", timeout_seconds=0.7).findings
    assert (finding.code, finding.ranks) == (Code.STUCK, (1,))
    assert run("drops_layers_alike").findings == ()
    assert run("drops_layers", alike=True).findings == ()


def test_ranks_start_unlike(run):
    """As ranks of programs do, whose hash seeds are as many."""
    result = run("starts", world_size=4)
    numbers, orders = zip(*result.returns, strict=True)
    assert [[drawn > 0.5 for drawn in drawns] for drawns in numbers[:2]] == [[False] * 3, [True] * 3]
    assert orders[0] == orders[2] != orders[1] == orders[3]
    assert run("starts", world_size=4).returns == result.returns
    alike = run("starts", alike=True)
    assert alike.returns[0] == alike.returns[1]
    assert alike.replay.endswith(":starts --world-size 2 --transport processes --alike --timeout 30")


def test_random_numbers_are_those_of_a_simulation(run):
    (tensor, *others), again = run("draws", alike=True).returns
    (simulated, *expected), _ = run_scenario(f"{PROGRAMS}:draws", world_size=2).returns
    assert torch.equal(tensor, simulated)
    assert torch.equal(again[0], simulated)
    assert others == list(again[1:]) == expected


def test_hang_tells_where_each_rank_stands(run):
    result = run("reduces_alone", timeout_seconds=1.0)
    (finding,) = result.findings
    assert (finding.code, finding.ranks) == (Code.STUCK, (0,))
    assert [str(site) for site in finding.sites] == [f"programs.py:{line_of('# hangs here')}"]
    lines = str(finding).splitlines()
    assert lines[0] == "STUCK  stuck"
    at = re.escape(f"  rank 0  at programs.py:{line_of('# hangs here')} in reduces_alone, for ")
    assert re.match(rf"{at}[1-9]\d*\.\d", lines[2]), lines[2]
    assert lines[3:6] == [
        '    last calls  all_reduce #0  float32[3, 2]  group "default"',
        '                all_reduce #1  float32[5]  group "default"  in flight',
        "    stack",
    ]
    assert lines[7].endswith("dist.all_reduce(torch.ones(5))  # hangs here")
    assert "  rank 1  returned" in lines
    assert lines[-1].endswith("--transport processes --timeout 1")


def test_rank_that_computes_for_long_does_not_hang(run):
    begun = time.monotonic()
    result = run("computes_for_long", world_size=1, timeout_seconds=0.5)
    assert result.findings == ()
    assert time.monotonic() - begun > 1.0, "to say anything, it has to take longer than the time-out"


@pytest.mark.parametrize(
    "name", ["comes_late_to_each_call", "comes_late_to_each_message", "computes_while_others_wait"]
)
def test_rank_that_waits_for_one_that_gets_on_does_not_hang(run, name):
    begun = time.monotonic()
    assert run(name, timeout_seconds=0.4).findings == ()
    assert time.monotonic() - begun > 0.8, "to say anything, it has to take longer than the time-out"


@pytest.mark.parametrize(
    ("name", "timeout_seconds", "ranks", "told"),
    [
        ("polls_alone", 0.3, (0,), 'all_reduce #0  float32[5]  group "default"  in flight'),
        ("misses_a_peer", 1.0, (0,), "none recorded (messages between two ranks are not)"),
        ("spins", 0.3, (1,), "spins"),
        ("waits_for_nothing", 1.0, (0, 1), "in waits_for_nothing, for "),
    ],
)
def test_ranks_that_hang(run, name, timeout_seconds, ranks, told):
    (finding,) = run(name, timeout_seconds=timeout_seconds).findings
    assert (finding.code, finding.ranks, finding.sites[0].function) == (Code.STUCK, ranks, name)
    assert str(finding).count(told) >= len(ranks)


@pytest.mark.parametrize(
    ("name", "timeout_seconds", "rank", "told"),
    [
        # In the first, rank 1 hangs, too, if each look has found it at one line.
        ("computes_in_several_lines_for_ever", 0.2, 0, ["  rank 1  at programs.py:", "raise --timeout"]),
        ("writes_without_end", 0.3, 0, []),
        ("is_stopped", 1.0, 1, ["  rank 1  its process does not answer: it is stopped"]),
    ],
)
def test_a_rank_that_hangs_and_maybe_another(run, name, timeout_seconds, rank, told):
    finding = run(name, timeout_seconds=timeout_seconds).findings[0]
    assert finding.code is Code.STUCK
    assert rank in finding.ranks
    assert all(text in str(finding) for text in told)


def test_return_that_is_larger_than_what_a_store_takes(run):
    assert [float(returned.sum()) for returned in run("returns_much").returns] == [0.0, 6e6]


def test_what_a_program_starts_ends_with_it(run):
    before = children()
    result = run("starts_others")
    assert result.returns == ("rank", "rank")
    assert have_ended(lambda: children() - before)
    assert "sleep 77777" not in map(command, psutil.process_iter())


def test_program_that_closes_its_streams(run):
    assert run("closes_its_streams").findings == ()


def test_killed_rank_is_named(run):
    result = run("is_killed")
    assert outcome_text_on_processes(result) == "died, rank 1"
    finding = result.findings[0]
    assert finding.summary == "the process of rank 1 ended with signal SIGKILL"
    assert "  rank 0 lost the connection then, and raised" in str(finding).splitlines()
    assert list(result.errors) == [0]


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        (
            "raises_what_cannot_be_printed",
            "ranks 0, 1 raised OwnError: <its message cannot be printed> at programs.py:",
        ),
        ("leaves", "the process of rank 1 ended with exit status 3"),
        ("exits", "ranks 0, 1 raised SystemExit: 4 at programs.py:"),  # no death
    ],
)
def test_how_ranks_end_is_named(run, name, summary):
    (finding,) = run(name).findings
    assert finding.summary.startswith(summary)


def test_abort_tells_where_and_why(server):
    scenario = load("allreduce-dtype-differs")
    result = run_scenario(scenario, transport="processes", world_size=2, timeout_seconds=5)
    text = str(result.findings[0])
    assert "signal SIGABRT" in text
    assert f"died at {scenario.expected.file}:" in text
    assert "Received data size doesn't match expected size" in text


def test_error_names_the_users_line(run):
    result = run("raises")
    (finding,) = result.findings
    assert (finding.code, finding.ranks) == (Code.RANK_ERROR, (1,))
    assert finding.sites[0].function == "raises"
    assert isinstance(result.errors[1], LookupError)
    assert str(finding).count("  File ") == 1


def test_errors_that_cannot_be_pickled(run):
    result = run("raises_what_cannot_be_pickled")
    assert result.findings[0].ranks == (0, 1)
    assert str(result.errors[0]) == "OwnError: made here"


@pytest.mark.parametrize(("name", "timeout_seconds"), [("greets", 30.0), ("reduces_alone", 1.0), ("is_killed", 30.0)])
def test_nothing_is_left_behind(run, own_folder, name, timeout_seconds):
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]

    def state():
        return dict(os.environ), [signal.getsignal(number) for number in numbers]

    run(name, timeout_seconds=timeout_seconds)  # what torch's launcher loads, stays
    gc.collect()
    before, files, processes = state(), open_files(), children()
    run(name, timeout_seconds=timeout_seconds)
    gc.collect()
    assert state() == before
    assert new_files(files) == {}
    assert have_ended(lambda: children() - processes)
    assert list(own_folder.iterdir()) == []
