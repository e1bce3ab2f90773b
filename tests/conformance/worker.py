"""Run tests of one suite in one way, and tell each outcome as a line of JSON.

    python -m tests.conformance.worker cpu-3 process [--alone] [--only TEST]... [--without TEST]...

A way is "real", which is gloo with a process a rank, or one of `on_simulator.WAYS`. Tests run one after another in this
process; with --alone, each in a fork of it that has run nothing before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from tests.conformance.adapter import Setting
from tests.conformance.on_gloo import on_gloo
from tests.conformance.on_simulator import on_simulator
from tests.conformance.suites import SUITES, test_class, tests_of
from tests.conformance.ways import WAYS

REAL = "real"


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.worker", description=__doc__.partition("\n")[0])
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("way", choices=[REAL, *WAYS])
    parser.add_argument("--alone", action="store_true", help="each test in a process that has run no other")
    parser.add_argument("--only", action="append", metavar="TEST", help="run this test; may be given again")
    parser.add_argument("--without", action="append", default=[], metavar="TEST", help="do not run this one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    suite = SUITES[options.suite]
    suite_class = test_class(suite)
    told = _only_for_outcomes()
    for test in options.only or sorted({*tests_of(suite_class)} - {*options.without}):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            setting = Setting(suite, suite_class, test, Path(folder))
            if options.alone:
                _in_a_fork(setting, options.way, told)
            else:
                _run(setting, options.way, told)


def _only_for_outcomes() -> int:
    """A copy of stdout for outcomes alone; what tests and torch's profiler print goes to stderr."""
    told = os.dup(1)
    os.dup2(2, 1)
    return told


def _run(setting: Setting, way: str, told: int) -> None:
    outcome = on_gloo(setting) if way == REAL else on_simulator(setting, WAYS[way])
    line = json.dumps({"test": setting.test, "status": outcome.status.value, "why": outcome.why})
    os.write(told, f"{line}\n".encode())


def _in_a_fork(setting: Setting, way: str, told: int) -> None:
    if (child := os.fork()) == 0:
        try:
            _run(setting, way, told)
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
