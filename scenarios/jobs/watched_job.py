"""Run a real job on this machine until it ends or makes no progress, and collect its records.

Progress is measured as processor time of its processes: a hang on gloo uses none. A job that spins in a hang, as with
NCCL, is ended by the time limit.
"""

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
"""A job counts as making no progress while all its processes together use less than this share of a core."""
_WANTED_SHARE = 0.5
"""A job with a thread that wants more than this share of a core counts as computing: a busy machine may not run it."""
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
if found is not None:  # the one that this file hides
    found.loader.exec_module(importlib.util.module_from_spec(found))
"""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How a watched job ended."""

    why: str
    status: int | None = None
    """The exit status of the job; None if it was killed."""


def run_watched_job(words: Sequence[str], folder: Path, *, quiet_seconds: float, limit_seconds: float) -> EndedJob:
    """Run a job until it ends, makes no progress for `quiet_seconds`, or reaches `limit_seconds`.

    Its ranks write records into `folder`. Its output goes to stderr. All its processes are ended in every case. Raises
    UsageError for a command that cannot be run.
    """
    if not os.path.exists(f"{_PROC}/self/environ"):
        raise UsageError("--torchrun needs /proc, which Linux has: let the job write its records, and diagnose those")
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE.format(folder=str(site), module=in_rank.__file__), encoding="utf-8")
    with _start_job(words, folder, site) as process:
        why = _wait_for_job(process, folder, quiet_seconds, limit_seconds)
        if why is None:
            return EndedJob(f"the job ended with status {process.returncode}", process.returncode)
        _request_records(folder)
        return EndedJob(f"{why}, so the job was ended")


@contextlib.contextmanager
def _start_job(words: Sequence[str], folder: Path, site: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "2000"} | os.environ
    environment.setdefault("PET_LOG_DIR", str(folder / "log"))  # torchrun's log folder, which it leaves if it is killed
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
        kill_processes_with_variable(in_rank.FOLDER, str(folder), _END_SECONDS)
        process.wait()


def _wait_for_job(
    process: subprocess.Popen[bytes], folder: Path, quiet_seconds: float, limit_seconds: float
) -> str | None:
    """Wait until the job ends by itself, and return None; or return the reason why it has to be ended."""
    start = moved = looked = time.monotonic()
    before, wanted_before = 0.0, dict[int, float]()
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        clock = time.monotonic()
        window = clock - looked
        if window < _WINDOW_SECONDS:
            continue
        own = list(processes_with_variable(in_rank.FOLDER, str(folder)))
        taken = sum(map(processor_seconds, own))
        wanted = {thread: seconds for each in own for thread, seconds in runnable_seconds_by_thread(each).items()}
        most = max((seconds - wanted_before.get(thread, 0.0) for thread, seconds in wanted.items()), default=0.0)
        # The sum is smaller than before if a process has ended.
        if abs(taken - before) > _BUSY_SHARE * window or most > _WANTED_SHARE * window:
            moved = clock
        before, wanted_before, looked = taken, wanted, clock
        if clock - moved >= quiet_seconds:
            return f"nothing moved for {quiet_seconds:g} s"
        if clock - start >= limit_seconds:
            return f"the job still ran after {limit_seconds:g} s"
    return None


def _request_records(folder: Path) -> None:
    """Ask all ranks to write their records, and wait until they have written.

    A rank that has ended has written already.
    """
    (folder / in_rank.NOW).touch()
    end = time.monotonic() + _WRITE_SECONDS
    while time.monotonic() < end:
        ranks = {path.name.partition("_")[2] for path in folder.glob("rank_*")}
        if all((folder / in_rank.DONE.format(rank)).exists() for rank in ranks):
            return
        time.sleep(_LOOK_SECONDS)


# --- the processes of a job: those with its variable in their environment ------------------------------------------


def processes_with_variable(variable: str, value: str) -> Iterator[int]:
    """Return the processes that were started with this environment variable."""
    mark = f"{variable}={value}".encode()
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"{_PROC}/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    yield int(name)


def processor_seconds(process: int) -> float:
    """Return the processor time that a process has used; 0 for one that has ended, and on systems without /proc."""
    fields = _stat_fields(process)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat_fields(process: int) -> list[str]:
    """Return the fields of a process in /proc/PID/stat, from the state on; [] if the process does not exist."""
    try:
        with open(f"{_PROC}/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def runnable_seconds_by_thread(process: int) -> dict[int, float]:
    """Return how long each thread of a process has run or waited for a core, by thread id; {} where that is unknown."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{_PROC}/{process}/task"):
            with open(f"{_PROC}/{process}/task/{thread}/schedstat", encoding="ascii") as file:
                found[int(thread)] = sum(map(int, file.read().split()[:2])) / 1e9
    return found


def kill_processes_with_variable(variable: str, value: str, seconds: float) -> None:
    """Kill the processes that were started with this environment variable, until none is left."""
    end = time.monotonic() + seconds
    while (
        left := [each for each in processes_with_variable(variable, value) if _is_alive(each)]
    ) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_END_LOOK_SECONDS)


def _is_alive(process: int) -> bool:
    fields = _stat_fields(process)
    return bool(fields) and fields[0] != "Z"  # a zombie only waits for its parent
