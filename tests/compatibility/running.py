"""Runs a program under torchrun and under `ddpsim run`, each in a fresh copy of the folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.compatibility.cases import FOLDER, WORLD_SIZE, Case

LIMIT_SECONDS = 120.0

_TORCHRUN = (
    *("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
    *("--nproc-per-node", str(WORLD_SIZE)),
    *("--redirects", "1", "--log-dir", "logs_of_torchrun"),  # else lines of ranks run into each other
)
_DDPSIM = ("-m", "ddpsim", "run", "--world-size", str(WORLD_SIZE))

CRASH_AT_EXIT = "terminate called without an active exception"
"""What a rank says if a thread of gloo is still there as its process ends: now and then, on a busy machine."""

_TRIES = 4

_UNSET = ("PYTEST", "OMP", "PYTHONUNBUFFERED")
"""Without the last one a line is written at once, so that those of other processes do not run into it."""

_REPORT = f"  world size {WORLD_SIZE}  policy "
"""In the line in which the report of `ddpsim run` begins, behind what the ranks have printed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a program."""

    status: int | None
    """None if it took too long."""
    output: tuple[str, ...]
    """The lines that its ranks printed."""
    said: str
    """What else there was to read, of ddpsim or on the standard error."""
    seconds: float


def on_gloo(case: Case) -> Ran:
    """As its author runs it: by torchrun, or by Python if it starts its ranks itself."""
    words = [*([] if case.starts_its_ranks else _TORCHRUN), *case.words]
    status, out, err, seconds = _run(words)
    for _ in range(_TRIES - 1):
        if status == 0 or CRASH_AT_EXIT not in err:
            break
        status, out, err, seconds = _run(words)
    return Ran(status, tuple(out.splitlines()), err, seconds)


def simulated(case: Case) -> Ran:
    """By `ddpsim run`."""
    status, out, err, seconds = _run([*_DDPSIM, *case.words])
    lines = out.splitlines()
    start = next((index for index, line in enumerate(lines) if _REPORT in line), len(lines))
    return Ran(status, tuple(lines[:start]), "\n".join([*lines[start:], err]), seconds)


def _run(words: list[str]) -> tuple[int | None, str, str, float]:
    """Exit status, what was printed on both streams, and seconds; it, and what it has started, ends with the limit.

    Each run has a folder of another name; in what was printed it is FOLDER.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_UNSET)}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / "programs"
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        status: int | None
        try:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            status = None
        out += "".join(path.read_text(errors="replace") for path in folder.rglob("stdout.log"))
        return status, out.replace(str(folder), "FOLDER"), err, time.monotonic() - begin
