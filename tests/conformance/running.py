"""Run a suite in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.conformance.outcome import Outcome, Status
from tests.conformance.suites import Suite

ROOT = Path(__file__).parents[2]


def run_suite(
    suite: Suite, way: str, *, only: Iterable[str] = (), without: Iterable[str] = (), alone: bool = False
) -> dict[str, Outcome]:
    """What came of its tests, by name, or only of those in `only`. A worker that dies has told of those before.

    Raises RuntimeError, with its last words, if the worker says nothing at all.
    """
    command = [sys.executable, "-m", "tests.conformance.worker", suite.name, way]
    command += [f"--only={test}" for test in only] + [f"--without={test}" for test in without] + ["--alone"] * alone
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    outcomes = {}
    for line in ran.stdout.splitlines():
        told = json.loads(line)
        outcomes[told["test"]] = Outcome(Status(told["status"]), told["why"])
    if not outcomes:
        raise RuntimeError(f"{' '.join(command)}\n{ran.stderr[-2000:]}")
    return outcomes
