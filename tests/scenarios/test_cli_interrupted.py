"""Ctrl-C and SIGTERM: where ranks stand, and what was found, is shown; another one while `ddpsim` exits is silent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddpsim import Schedule
from ddpsim.scenarios.cli import output, zoo_outcome
from ddpsim.scenarios.fuzzing import judging
from ddpsim.simulator.choices import program_identity
from tests.tiers import sweep

pytestmark = pytest.mark.tier("ci")  # each starts an interpreter

ROOT = Path(__file__).resolve().parents[2]

OWN = """\
import os
import signal
import sys
import torch
import torch.distributed as dist


def presses(rank, number=signal.SIGINT):
    dist.barrier()
    if rank == 2:
        raise ValueError("found before")
    if rank == 0:
        dist.send(torch.ones(1), 1)
        os.kill(int(os.environ["PRESSED"]), number)
        while True:
            pass
    dist.recv(torch.ones(1), 0)
    dist.barrier()


def is_ended(rank):
    presses(rank, signal.SIGTERM)


runs = 0


def in_the_third_run(rank):
    global runs
    runs += 1
    if runs == 3:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass


def fine(rank):
    dist.barrier()


def in_the_repetition(rank):
    if sys.gettrace() and rank == 0:
        os.kill(int(os.environ["PRESSED"]), signal.SIGINT)
        while True:
            pass
    if rank == 0:
        dist.barrier()
"""

EXITS = """\
import atexit, signal, sys, threading
from ddpsim.scenarios.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs in the background ignore it
{when}(signal.raise_signal, signal.SIGINT)
sys.exit(main())
"""
WHILE_THREADS_END = EXITS.format(when="threading._register_atexit")
AT_THE_END = EXITS.format(when="atexit.register")
"""What is registered first is called last: when Python is about to leave."""


@pytest.fixture
def ddpsim(tmp_path):
    """Run `ddpsim` as a script does; returns status, stdout and stderr."""
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")

    def run(script, *words):
        command = [sys.executable, "-c", script, *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        command[2] = f"import os; os.environ['PRESSED'] = str(os.getpid())\n{script}"
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("script", sweep([WHILE_THREADS_END, AT_THE_END], lambda script: script is WHILE_THREADS_END))
def test_two_ctrl_c_show_where_ranks_stand_and_exit_with_130(ddpsim, script):
    status, out, err = ddpsim(script, "run", "own.py:presses")
    assert (status, err) == (130, "ddpsim: interrupted\n")
    assert out.endswith("interrupted: found rank_error so far; expected pass\n")


def test_ctrl_c_when_all_is_over_changes_nothing(ddpsim):
    status, out, err = ddpsim(AT_THE_END, "run", "own.py:fine")
    assert (status, err) == (0, "")
    assert out.endswith("as expected: pass\n")


@pytest.fixture
def pressed(console, tmp_path, monkeypatch):
    """Run `ddpsim` here, on programs that press Ctrl-C; returns status, stdout and stderr."""
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRESSED", str(os.getpid()))
    return console


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize(
    ("name", "status", "note"), [("presses", 130, "interrupted"), ("is_ended", 143, "ended by SIGTERM")]
)
def test_a_run_says_where_each_rank_stands_and_what_was_found(pressed, isolation, name, status, note):
    words = ("run", f"own.py:{name}", "--world-size", "3", "--policy", "random", "--isolation", isolation)
    told, out, err = pressed(*words, "--report", "r")
    assert (told, err.splitlines()[-1]) == (status, f"ddpsim: {note}")
    assert "rank 2 raised ValueError: found before" in out
    assert "  rank 0  made no call after send #" in out
    assert "  rank 1  waits in " in out or "  rank 1  made no call after recv #" in out
    assert "  stack of rank 0\n" in out
    assert "interrupted: found rank_error so far; expected pass\n" in out
    assert out.endswith("report  r/report.html\n")
    assert "interrupted: found rank_error so far" in Path("r/report.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_ctrl_c_in_the_repetition_of_a_failed_run_leaves_what_the_run_found(pressed, isolation):
    status, out, _ = pressed("run", "own.py:in_the_repetition", "--isolation", isolation)
    assert status == 130
    assert "DEADLOCK  deadlock.missing_rank" in out
    assert "budget" not in out
    assert out.endswith("interrupted: found deadlock.missing_rank so far; expected pass\n")


def test_of_many_seeds_those_that_ran_are_counted(pressed):
    status, out, _ = pressed("run", "own.py:in_the_third_run", "--world-size", "1", "--seeds", "0..9")
    assert status == 130
    assert "2  pass" in out
    assert "interrupted: found nothing so far; expected pass\n" in out


@pytest.mark.parametrize("command", ["explore", "fuzz", "replay"])
def test_an_exploration_a_campaign_and_a_replay_say_where_the_ranks_of_the_last_run_stand(pressed, command):
    token = [str(Schedule((), program_identity("own.py:presses", 2)))] if command == "replay" else []
    corpus = ["--corpus", "corpus"] if command == "fuzz" else []
    status, out, err = pressed(command, "own.py:presses", *token, "--world-size", "2", *corpus)
    assert (status, err.splitlines()[-1]) == (130, "ddpsim: interrupted")
    assert "  the run was interrupted, after " in out
    assert "  rank 0  made no call after send #" in out


def test_a_campaign_that_is_interrupted_in_a_later_batch_says_so_too(pressed, monkeypatch):
    own, runs = judging.run_scenario, []

    def run_scenario(scenario, *args, **options):
        runs.append(scenario)
        if len(runs) > 20:
            return own("own.py:presses", world_size=2)
        return own(scenario, *args, **options)

    monkeypatch.setattr(judging, "run_scenario", run_scenario)
    status, out, _ = pressed("fuzz", "--generate", "--corpus", "corpus", "--seconds", "600")
    assert status == 130
    assert "  rank 0  made no call after send #" in out
    assert "(interrupted)" in out


def test_the_zoo_says_which_scenario_was_interrupted_and_counts_the_others(pressed, monkeypatch):
    own = zoo_outcome.run_scenario

    def run_scenario(scenario, *args, **options):
        return own("own.py:presses" if scenario.name == "send-send" else scenario, *args, world_size=2)

    monkeypatch.setattr(zoo_outcome, "run_scenario", run_scenario)
    status, out, _ = pressed("zoo", "both-send-first", "send-send", "--report", "r")
    assert status == 130
    assert "\nsend-send  interrupted\nUNKNOWN  budget\n" in out
    assert "2 scenarios as expected, 0 surprises" in out
    assert out.endswith("report  r/index.html\n")


def test_a_long_run_says_on_a_terminal_what_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    budget = output.ShownBudget()

    def go_on(budget=budget):
        for seconds in (1, 2.9, 3, 4, 5.9, 6.5, 12, 13):
            budget.note_progress(seconds, 70, 20, "rank 1", [os.getpid()])
        return capsys.readouterr().err

    assert go_on() == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    lines = go_on().splitlines()
    assert [line.split(" s: ")[0] for line in lines] == ["ddpsim: 3", "ddpsim: 6", "ddpsim: 13"]
    assert re.fullmatch(r"ddpsim: 3 s: 70 steps, 20 calls, rank 1 runs, [1-9]\d+ MiB of memory", lines[0])
    again = budget.for_repetition(60.0)
    assert (again.seconds, again.steps) == (60.0, budget.steps)
    assert go_on(again).startswith("ddpsim: run again to find where the ranks part, 3 s: 70 steps, ")
