"""Options that say what the same words say in Python."""

import os
from importlib import metadata
from types import SimpleNamespace

from ddpsim.scenarios.cli.program_words import note_trailing_options
from ddpsim.scenarios.cli.run import run
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.launching.script import Script

SPINS = """\
import torch.distributed as dist
def spin(rank):
    while True:
        dist.barrier()
"""


def test_the_version(console):
    assert console("--version") == (0, f"ddpsim {metadata.version('ddpsim')}\n", "")


def test_the_steps_and_the_seconds_of_a_run(ddpsim, write):
    write(SPINS, "own.py")
    for option, limit, told in (
        ("--steps", 50, "more than 50 steps"),
        ("--seconds", 0.1, "longer than 0.1 s of wall time"),
    ):
        status, out, err = ddpsim("run", "own.py:spin", "--world-size", 2, option, limit)
        assert (status, err) == (3, "")
        assert f"\n  the run took {told}\n" in out
        assert out.splitlines()[-1] in {f"unknown: found unknown, budget, rank {n}; expected pass" for n in (0, 1)}


def test_a_budget_of_nothing_is_refused(ddpsim):
    message = "ddpsim: Budget(steps=0), expected more than 0: correct it\n"
    assert ddpsim("run", "send-send", "--steps", 0) == (2, "", message)


def test_a_report_of_a_pipe_is_refused_at_once(ddpsim):
    os.mkfifo("pipe")
    status, _, err = ddpsim("report", "pipe")
    assert status == 2
    assert err == "ddpsim: pipe is not a regular file, expected a result.json that --report wrote: give that file\n"


def test_options_after_a_program_that_refuses_or_ignores_them(write, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("import sys\nprint(sys.argv)\n", "reads.py")
    write("from own import options\n", "may.py")
    write("x = 1\n", "ignores.py")
    note = "ddpsim: --gpus 2 is written after {0}, so the program receives it; "
    note += "if it is for ddpsim run, write it before {0}\n"
    refused, other = SystemExit(2), ValueError("no data")
    for file, error, is_noted in (
        ("reads.py", refused, True),
        ("reads.py", ValueError("not used: ['--gpus']"), True),
        ("reads.py", other, False),
        ("reads.py", SystemExit(1), False),
        ("may.py", other, False),
        ("ignores.py", other, True),
    ):
        own = Scenario(file, "", Script((file, "--gpus", "2", "--rows", "3")))
        note_trailing_options(own, run, SimpleNamespace(errors={0: error}))
        assert capsys.readouterr().err == (note.format(file) if is_noted else "")
