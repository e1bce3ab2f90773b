"""Options that say what the same words say in Python."""

import os
from importlib import metadata

SPINS = """\
import torch.distributed as dist
def spin(rank):
    while True:
        dist.barrier()
"""


def test_the_version(console):
    assert console("--version") == (0, f"ddpsim {metadata.version('ddpsim')}\n", "")


def test_the_steps_of_a_run(ddpsim, write):
    write(SPINS, "own.py")
    status, out, err = ddpsim("run", "own.py:spin", "--world-size", 2, "--steps", 50)
    assert (status, err) == (3, "")
    assert "\n  the run took more than 50 steps\n" in out


def test_the_seconds_of_a_run(ddpsim, write):
    write(SPINS, "own.py")
    status, out, err = ddpsim("run", "own.py:spin", "--world-size", 2, "--seconds", 0.1)
    assert (status, err) == (3, "")
    assert "\n  the run took longer than 0.1 s of wall time\n" in out


def test_a_budget_of_nothing_is_refused(ddpsim):
    assert ddpsim("run", "send-send", "--steps", 0) == (2, "", "ddpsim: Budget(steps=0), expected more than 0\n")


def test_a_report_of_a_pipe_is_refused_at_once(ddpsim):
    os.mkfifo("pipe")
    status, _, err = ddpsim("report", "pipe")
    assert status == 2
    assert err == "ddpsim: pipe is no file, expected a result.json that --report wrote: name that\n"
