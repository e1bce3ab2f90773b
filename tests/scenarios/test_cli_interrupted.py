"""Ctrl-C, and another one while `ddpsim` exits, each in a process of its own: nothing is shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import sweep

pytestmark = pytest.mark.tier("ci")  # each starts an interpreter

ROOT = Path(__file__).resolve().parents[2]

OWN = """\
import signal
import torch.distributed as dist


def presses(rank):
    dist.barrier()
    if rank == 0:
        signal.raise_signal(signal.SIGINT)
    while True:
        dist.barrier()


def fine(rank):
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
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("script", sweep([WHILE_THREADS_END, AT_THE_END], lambda script: script is WHILE_THREADS_END))
def test_two_ctrl_c_show_nothing_and_exit_with_130(ddpsim, script):
    assert ddpsim(script, "run", "own.py:presses") == (130, "", "")


def test_ctrl_c_when_all_is_over_changes_nothing(ddpsim):
    status, out, err = ddpsim(AT_THE_END, "run", "own.py:fine")
    assert (status, err) == (0, "")
    assert out.endswith("as expected: pass\n")
