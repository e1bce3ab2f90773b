"""A real job on this machine, watched until it ends or nothing moves, and its records.

Whether something moves shows in the processor time of its processes: a hang on gloo takes none. One that spins, as
NCCL's may, is ended by the limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpsim.scenarios.jobs import in_rank
from ddpsim.simulator.errors import UsageError

_PROC = "/proc"
_LOOK_SECONDS = 0.1
_WINDOW_SECONDS = 1.0
_BUSY_SHARE = 0.1
"""A job that takes less of a core, with all its processes together, does not move..."""
_WANTED_SHARE = 0.5
"""...unless one of its threads wants more of one: on a machine that is busy it may get none."""
_STDERR = 2
_WRITE_SECONDS = 10.0
_END_SECONDS = 5.0
_END_LOOK_SECONDS = 0.05
_SITE = """\
import importlib.machinery, importlib.util, sys

sys.path[:] = [path for path in sys.path if path != {folder!r}]
spec = importlib.util.spec_from_file_location("ddpsim_in_rank", {module!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.begin()
found = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if found is not None:  # the one that is here without us
    found.loader.exec_module(importlib.util.module_from_spec(found))
"""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How a job came to its end."""

    why: str
    status: int | None = None
    """Its exit status; None if it was ended."""


def watched(words: Sequence[str], folder: Path, *, quiet_seconds: float, limit_seconds: float) -> EndedJob:
    """Run a job until it ends by itself, until nothing has moved for so long, or to the limit.

    Its ranks leave records in `folder`. What it prints goes to stderr. All processes that it started are ended, however
    this ends. Raises UsageError for a command that cannot be run.
    """
    check_platform()
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE.format(folder=str(site), module=in_rank.__file__), encoding="utf-8")
    with _started(words, folder, site) as process:
        why = _awaited(process, folder, quiet_seconds, limit_seconds)
        if why is None:
            return EndedJob(f"the job ended with status {process.returncode}", process.returncode)
        _let_write(folder)
        return EndedJob(f"{why}, so the job was ended")


@contextlib.contextmanager
def _started(words: Sequence[str], folder: Path, site: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "2000"} | os.environ
    environment.setdefault("PET_LOG_DIR", str(folder / "log"))  # torchrun's, which it leaves where it is killed
    environment[in_rank.FOLDER] = str(folder)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), environment.get("PYTHONPATH", "")]))
    try:
        process = subprocess.Popen(
            list(words), env=environment, stdin=subprocess.DEVNULL, stdout=_STDERR, start_new_session=True
        )
    except OSError as error:
        raise UsageError(f"{words[0]} cannot be run ({error.strerror}), expected a command such as torchrun") from error
    try:
        yield process
    finally:
        end_all(in_rank.FOLDER, str(folder), _END_SECONDS)
        process.wait()


def _awaited(process: subprocess.Popen[bytes], folder: Path, quiet_seconds: float, limit_seconds: float) -> str | None:
    """Why the job is to be ended; None if it has ended."""
    start = moved = looked = time.monotonic()
    before, wanted_before = 0.0, dict[int, float]()
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        clock = time.monotonic()
        window = clock - looked
        if window < _WINDOW_SECONDS:
            continue
        own = list(marked(in_rank.FOLDER, str(folder)))
        taken = sum(map(processor_seconds, own))
        wanted = {thread: seconds for each in own for thread, seconds in wanted_seconds(each).items()}
        most = max((seconds - wanted_before.get(thread, 0.0) for thread, seconds in wanted.items()), default=0.0)
        # Less is taken than before where a process has ended.
        if abs(taken - before) > _BUSY_SHARE * window or most > _WANTED_SHARE * window:
            moved = clock
        before, wanted_before, looked = taken, wanted, clock
        if clock - moved >= quiet_seconds:
            return f"nothing moved for {quiet_seconds:g} s"
        if clock - start >= limit_seconds:
            return f"the job still ran after {limit_seconds:g} s"
    return None


def _let_write(folder: Path) -> None:
    """Tell all ranks to write, and wait until they have; one that has ended wrote at its end."""
    (folder / in_rank.NOW).touch()
    end = time.monotonic() + _WRITE_SECONDS
    while time.monotonic() < end:
        ranks = {path.name.partition("_")[2] for path in folder.glob("rank_*")}
        if all((folder / in_rank.DONE.format(rank)).exists() for rank in ranks):
            return
        time.sleep(_LOOK_SECONDS)


# --- the processes of a job: those with its variable in their environment ------------------------------------------


def check_platform() -> None:
    """Raise UsageError where nobody says which processes there are."""
    if not os.path.exists(f"{_PROC}/self/environ"):
        raise UsageError("--torchrun needs /proc, which Linux has: let the job write its records, and diagnose those")


def marked(variable: str, value: str) -> Iterator[int]:
    """The processes that were started with this variable."""
    mark = f"{variable}={value}".encode()
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"{_PROC}/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    yield int(name)


def processor_seconds(process: int) -> float:
    """The processor time that a process has taken; 0 for one that has ended."""
    try:
        with open(f"{_PROC}/{process}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wanted_seconds(process: int) -> dict[int, float]:
    """The time that each thread of a process has run or waited for a core, by its number; {} where nobody says."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{_PROC}/{process}/task"):
            with open(f"{_PROC}/{process}/task/{thread}/schedstat", encoding="ascii") as file:
                found[int(thread)] = sum(map(int, file.read().split()[:2])) / 1e9
    return found


def end_all(variable: str, value: str, seconds: float) -> None:
    """Kill what is left of them, and what they start meanwhile."""
    end = time.monotonic() + seconds
    while (left := [each for each in marked(variable, value) if _is_alive(each)]) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_END_LOOK_SECONDS)


def _is_alive(process: int) -> bool:
    """False for a zombie, too, which is its parent's."""
    try:
        with open(f"{_PROC}/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
