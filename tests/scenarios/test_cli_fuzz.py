"""`ddpsim fuzz`: what it prints, its exit status, and one line for whatever it cannot work with."""

import re
from functools import partial

import pytest

from ddpsim.scenarios import load
from ddpsim.scenarios.cli import main
from ddpsim.scenarios.cli.status import ExitStatus
from tests.kit.own_programs import ENDLESS, FINE, RACY

HANGS = """

def hangs(rank):
    if rank:
        dist.barrier()
"""
OWN = RACY + FINE + HANGS + ENDLESS


@pytest.fixture
def fuzz(ddpsim, tmp_path):
    """`ddpsim fuzz` with these words, in a folder with own.py."""
    (tmp_path / "own.py").write_text(OWN)
    return partial(ddpsim, "fuzz")


@pytest.mark.tier("ci")
@pytest.mark.parametrize("words", [pytest.param((), marks=pytest.mark.tier("nightly")), ("--generate",)])
def test_generated_scenarios(fuzz, words):
    status, out, _ = fuzz(*words, "--executions", "12", "--seed", "3", "--engine", "ddp")
    assert status == ExitStatus.AS_EXPECTED
    lines = out.splitlines()
    assert re.fullmatch(r"1[2-4] executions in \d+\.\d s, \d+ a second, from seed 3", lines[0])
    assert any(re.fullmatch(r" +\d+  training on ddp", line) for line in lines)
    assert not any("training on torch" in line for line in lines)
    assert lines[-1] == "nothing found"


def test_a_function_that_fails_in_some_schedule(fuzz, tmp_path, capsys):
    status, out, _ = fuzz("own.py:racy", "--engine", "torch", "--executions", "60")
    assert status == ExitStatus.OTHERWISE
    (path,) = (tmp_path / ".ddpsim" / "corpus").iterdir()
    name = f".ddpsim/corpus/{path.name}"
    assert re.search(
        rf"rank_error  scenario on torch, \d+ times: found fail, rank_error, rank 0, expected pass\n"
        rf"  saved   {name}  shrunk from \d ranks, .* to 3 ranks, \d switch.*\n"
        rf"  run     ddpsim run {name}\n"
        rf"  replay  (ddpsim replay {name} s1:[\d.x]+:rank_error:[0-9a-f]+)\n\n"
        r"found: 1 new failure\n$",
        out,
    )
    assert load(name).world_size == 3

    replay = re.search(r"replay  ddpsim (replay .*)", out)[1]
    assert main(replay.split()) == ExitStatus.OTHERWISE
    assert main(["run", name]) == ExitStatus.OTHERWISE
    assert "not as expected: found fail, rank_error, rank 0; expected pass" in capsys.readouterr().out

    status, out, _ = fuzz("--executions", "1", "--engine", "torch")
    assert status == ExitStatus.OTHERWISE
    assert out.startswith(f"{name}  still fails: found fail, rank_error, rank 0, expected pass\n")
    assert out.endswith("found: 1 failure reproduced from the corpus\n")


def test_a_scenario_against_its_own_expectation(fuzz):
    # It fails in some schedules and passes in others, as it says it does.
    status, out, _ = fuzz("results-taken-in-order-of-arrival", "--executions", "40", "--engine", "torch")
    assert status == ExitStatus.AS_EXPECTED
    assert re.search(r" \d+  fail  divergence.parameters\n", out)
    assert re.search(r" \d+  pass\n", out)
    assert out.endswith("nothing found\n")


def test_world_sizes_are_drawn_unless_one_is_given(fuzz):
    assert fuzz("own.py:fine", "--executions", "20", "--engine", "torch")[0] == ExitStatus.AS_EXPECTED
    status, out, _ = fuzz("own.py:racy", "--executions", "20", "--world-size", "2")
    assert status == ExitStatus.AS_EXPECTED  # from one sender there is one order
    assert "nothing found" in out


def test_what_fails_under_every_schedule_is_said_at_once(fuzz, tmp_path):
    status, out, _ = fuzz("own.py:hangs", "--seconds", "1000", "--engine", "torch")
    assert status == ExitStatus.OTHERWISE
    assert "DEADLOCK  deadlock.missing_rank" in out
    assert out.endswith("own.py:hangs fails under every schedule tried (11): no search is needed\n")
    status, out, _ = fuzz("send-send", "--seconds", "1000")
    assert status == ExitStatus.AS_EXPECTED
    assert out.count("--- ") == 2
    assert out.endswith("send-send fails under every schedule tried (11), as expected: no search is needed\n")
    assert not (tmp_path / ".ddpsim").exists()
    _, out, _ = fuzz("send-send", "--seconds", "1000", "--engine", "torch", "--world-size", "3")
    (line,) = [line for line in out.splitlines() if line.startswith("  replay  ")]
    assert line.endswith(" --world-size 3")


def test_what_does_not_end_is_one_run_as_long_as_the_campaign(fuzz, tmp_path):
    status, out, _ = fuzz("own.py:endless", "--seconds", "0.125")
    assert status == ExitStatus.UNKNOWN
    assert out.startswith("--- torch\nUNKNOWN  budget\n  the run took longer than 0.125 s of wall time\n")
    assert out.endswith("\n\nown.py:endless does not end: no search is possible\n")
    assert not (tmp_path / ".ddpsim").exists()


def test_a_broken_corpus_file_is_one_line(fuzz, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "cut.toml").write_text("ddpsim = 1\nsummary = ")
    status, out, _ = fuzz("--corpus", "corpus", "--executions", "1", "--engine", "ddp")
    assert status == ExitStatus.AS_EXPECTED
    line, *_ = out.splitlines()
    assert line.startswith("corpus/cut.toml  cannot be read: ")
    assert line.endswith("; the other files are run: correct or delete this one")
