"""`ddpsim explore`: what it prints, and its exit status."""

from collections import Counter
from functools import partial

import pytest

from ddpsim import Exploration, Verdict
from ddpsim.scenarios.cli import main
from ddpsim.scenarios.cli.explore import _judge_exploration
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.model import Expectation
from ddpsim.simulator.exploration.exploration import ExplorationEnd
from tests.kit.own_programs import RACY


@pytest.fixture
def explore(console):
    """Run the command; return its exit status, stdout and stderr."""
    return partial(console, "explore")


def test_training_is_one_class_of_interleavings(explore):
    status, out, _ = explore("uneven-linear", "--world-size", "3")
    assert status == ExitStatus.AS_EXPECTED
    assert out.splitlines() == [
        "PASS  uneven-linear on 3 ranks",
        "  All interleavings covered, but for files, shared objects, hash order and time: 1 execution",
        "        1  pass",
        "",
        "as expected: pass under every schedule that was run",
    ]


@pytest.mark.parametrize("engine", ["torch", "ddp"])
def test_the_schedule_that_fails_is_found_and_can_be_replayed(explore, capsys, engine):
    status, out, _ = explore("results-taken-in-order-of-arrival", "--engine", engine)
    assert status == ExitStatus.AS_EXPECTED
    assert "  Execution 2 failed: stopped there; other interleavings were not run" in out
    replay = next(line for line in out.splitlines() if line.startswith("  replay  "))
    words = replay.split()[2:]
    assert ("--engine" in words) == (engine == "ddp")
    assert main(words) == ExitStatus.AS_EXPECTED
    assert "divergence.parameters" in capsys.readouterr().out


def test_a_difference_from_the_reference_does_not_end_what_is_to_go_on(explore):
    # Three messages, of which each receive takes any: 3! orders, and plain training has one of them.
    status, out, _ = explore("results-taken-in-order-of-arrival", "--keep-going")
    assert status == ExitStatus.AS_EXPECTED
    assert "  All interleavings covered, but for files, shared objects, hash order and time: 6 executions\n" in out
    assert "        1  pass\n" in out
    assert "        5  fail  divergence.parameters rank 0\n" in out


def test_what_depends_on_files_is_not_seen_by_dpor_and_is_by_random(explore):
    status, out, _ = explore("local-observation-decides")
    assert status == ExitStatus.OTHERWISE
    assert out.endswith("which may depend on files or objects that the ranks share: try --policy random\n")
    status, out, _ = explore("local-observation-decides", "--policy", "random")
    assert status == ExitStatus.AS_EXPECTED
    assert "mismatch.operation" in out


CAUGHT = """
import torch, torch.distributed as dist
def main(rank):
    for step in range(3):
        try:
            if rank == 1 and step == 1:
                raise ValueError("out of memory")
            dist.all_reduce(torch.ones(1))
        except ValueError:
            pass
"""


def test_a_failure_has_the_cause_that_a_single_run_finds(explore, tmp_path):
    (tmp_path / "caught.py").write_text(CAUGHT)
    status, out, _ = explore(f"{tmp_path / 'caught.py'}:main", "--world-size", "2")
    assert status == ExitStatus.OTHERWISE
    assert "cause   rank 1 raised ValueError: out of memory at caught.py:7, which did not end the program" in out


def test_a_budget_that_runs_out_is_unknown(explore):
    status, out, _ = explore("uneven-linear", "--policy", "random", "--executions", "2")
    assert status == ExitStatus.UNKNOWN
    assert "  Not all interleavings covered: the budget ran out after 2 executions" in out
    assert out.endswith("unknown: nothing failed so far; expected pass\n")


def test_a_failure_whose_repetition_was_interrupted_is_told():
    found = Exploration("p/2", 1, False, Verdict.FAIL, None, None, Counter({"fail": 1}), ExplorationEnd.INTERRUPT, 0.0)
    told = (ExitStatus.INTERRUPTED, "interrupted: found a failure so far; expected pass")
    assert _judge_exploration(Expectation(), found) == told


def test_what_failed_is_saved(explore, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(RACY)
    words = ("own.py:racy", "--world-size", "3")
    status, out, _ = explore(*words, "-o", "found.toml")
    assert status == ExitStatus.OTHERWISE
    assert out.endswith("saved in found.toml; to run it:\n  ddpsim run found.toml\n")
    assert main(["run", "found.toml"]) == ExitStatus.OTHERWISE
    assert "rank 0 raised AssertionError" in capsys.readouterr().out
    status, _, err = explore(*words, "-o", "found.toml")
    assert (status, err.partition(",")[0]) == (2, "ddpsim: found.toml exists")
    status, out, _ = explore(*words, "--executions", "1", "-o", "other.toml")
    assert (status, out.splitlines()[-1]) == (ExitStatus.UNKNOWN, "no failed run to save: other.toml is not written")
    status, _, err = explore(*words, "--check-determinism", "-o", "other.toml")
    assert (status, err.partition(", which")[0]) == (2, "ddpsim: output is 'other.toml' with --check-determinism")
    assert not (tmp_path / "other.toml").exists()


def test_the_choice_that_decides_is_told_with_a_run_that_passes(explore, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(RACY)
    status, out, _ = explore("own.py:racy", "--world-size", "3", "--report", "found")
    assert status == ExitStatus.OTHERWISE
    _, _, told = out.partition("\nwhat differs  choice ")
    lines = told.splitlines()
    assert [line for line in lines if line.startswith(("  failing ", "  passing "))] != []
    replay = next(line for line in lines if line.startswith("  replay  "))
    assert main(replay.split()[2:]) == ExitStatus.AS_EXPECTED  # it passes
    assert "runs diverge here, choice " in (tmp_path / "found" / "report.txt").read_text()
    capsys.readouterr()
    status, out, _ = explore("own.py:racy", "--world-size", "3", "--policy", "random", "--seed", "4")
    assert ("what differs" in out) == (status == ExitStatus.OTHERWISE)


def test_a_run_that_passes_is_looked_for_where_the_first_one_fails_and_so_does_the_default(
    explore, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(RACY.replace("== number", "== 3 - number"))
    assert main(["run", "own.py:racy", "--world-size", "3"]) == ExitStatus.OTHERWISE
    capsys.readouterr()
    told = set()
    for seed in range(4):
        _, out, _ = explore("own.py:racy", "--world-size", "3", "--policy", "random", "--seed", str(seed))
        if "The first execution failed" in out:
            told.add("what differs  choice " in out)
    assert told == {True}


@pytest.mark.parametrize("words", [("send-send",), ("send-send", "--policy", "random"), ("send-send-repaired",)])
def test_where_every_schedule_comes_to_the_same_nothing_differs(explore, words):
    status, out, _ = explore(*words, "--executions", "3")
    assert "what differs" not in out
    if words == ("send-send",):
        assert status == ExitStatus.AS_EXPECTED
        assert "hash order and time: 1 execution, and every one fails\n" in out
