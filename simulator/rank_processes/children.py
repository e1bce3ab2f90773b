"""The processes of an execution's ranks: forks, signals and ends them."""

import os
import signal
import sys
import time
import warnings
from contextlib import suppress

import torch

from ddpsim.simulator.calls import Site
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel.requests import StackReport
from ddpsim.simulator.rank_processes import rank_files
from ddpsim.simulator.rank_processes.channel import MessageChannel
from ddpsim.simulator.rank_processes.messages import RankEnded, WrittenBytes
from ddpsim.simulator.rank_processes.parcels import SharedArena
from ddpsim.simulator.rank_processes.process_config import ProcessConfig, RankConfig
from ddpsim.simulator.rank_processes.rank_files import RankFiles
from ddpsim.simulator.rank_processes.rank_process import run_rank_process as run_rank
from ddpsim.simulator.runtime.gc_freeze import freeze_existing_objects
from ddpsim.simulator.runtime.stopwatch import core_seconds, has_child_processes

_LEAVE_SECONDS = 5.0
"""The seconds that a rank's process has to end after its last message."""

_LEAST_BYTES = 8 << 20
"""The least memory that the process of one rank needs, in bytes."""

_STACK_SECONDS = 0.5
"""The seconds that a rank has to write its stack: first by Python code, and then again by native code."""


class ChildProcess:
    """The process of one rank, as the coordinator sees it."""

    def __init__(self, rank: int, pid: int, channel: MessageChannel, arena: SharedArena, files: RankFiles) -> None:
        self.rank = rank
        self.pid = pid
        self.channel = channel
        self.arena = arena
        self.ended: RankEnded | None = None
        self.exited_at: Site | None = None
        """The program line at which the process called os._exit, if known."""
        self.status: int | None = None
        """The exit status from `os.waitpid`; None while the process runs."""
        self._files = files
        self._is_closed = False
        self._is_reaped_elsewhere = False
        self._read = [0, 0]
        """The bytes of standard output and error that have been read."""

    @property
    def is_gone(self) -> bool:
        """True once the process has ended and been reaped."""
        return self.status is not None

    def core_seconds(self) -> float:
        """Return the CPU time of the process, plus its waiting time for a free core."""
        # The id of a process's clock, as MAKE_PROCESS_CPUCLOCK of linux/posix-timers.h computes it.
        return core_seconds(~self.pid << 3 | 2, f"/proc/{self.pid}/schedstat")

    def has_children(self) -> bool:
        """Return whether the process has child processes, for which it may wait."""
        return has_child_processes(self.pid, self.pid)

    def new_output(self, until: WrittenBytes | None = None) -> tuple[str, str]:
        """Return the new standard output and error of the process; with `until`, only up to those byte counts."""
        output, errors = until or (sys.maxsize, sys.maxsize)
        out, err = self._files.output, self._files.errors
        return self._read_new_bytes(0, out, output), self._read_new_bytes(1, err, errors)

    def skip_output(self, until: WrittenBytes) -> None:
        """Discard the output of the process up to the byte counts `until`."""
        self._read = [max(read, end) for read, end in zip(self._read, until, strict=True)]

    def _read_new_bytes(self, index: int, file: int, end: int) -> str:
        if os.fstat(file).st_size < self._read[index] < sys.maxsize:  # truncated, as by `command > /dev/stdout`
            self._read[index] = 0
        parts = []
        while part := os.pread(file, max(0, min(1 << 16, end - self._read[index])), self._read[index]):
            self._read[index] += len(part)
            parts.append(part)
        return b"".join(parts).decode(errors="replace") if parts else ""

    def read_stack(self) -> StackReport:
        """Return the current stack of the rank's program."""
        os.ftruncate(self._files.stack, 0)  # the stack that it wrote before is out of date
        for number in (rank_files.TELL_STACK, rank_files.TELL_NATIVE_STACK):
            self._send_signal(number)
            end = time.monotonic() + _STACK_SECONDS
            while time.monotonic() < end:
                if stack := rank_files.read_rank_stack(self._files.stack):
                    return stack
                time.sleep(0.01)
        return StackReport("(no stack)")

    def interrupt_program(self) -> None:
        """Make the rank leave its program, by an exception in its main thread."""
        self._send_signal(rank_files.UNWIND_PROGRAM)

    def _send_signal(self, number: int) -> None:
        if not self.is_gone:
            os.kill(self.pid, number)

    def kill_process(self) -> None:
        """Kill the process and all processes that it has started."""
        if not self.is_gone:
            self._send_signal(signal.SIGKILL)
            self._reap_process(0)

    def await_exit(self) -> None:
        """Wait until the process has ended; kill it after a timeout."""
        end = time.monotonic() + _LEAVE_SECONDS
        while not self.is_gone and time.monotonic() < end:
            self._reap_process(os.WNOHANG)
            if not self.is_gone:
                time.sleep(0.001)
        self.kill_process()

    def release_resources(self) -> None:
        """Release the resources shared with the process. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self.channel.close()
        self.arena.close()
        self._files.close()

    def describe_end(self) -> str:
        """Return a text on how the process ended without a last message. Raises InternalError if that was our fault."""
        self.await_exit()
        if self._is_reaped_elsewhere:
            return "ended with an unknown status (SIGCHLD is ignored, or another wait has taken the status)"
        assert self.status is not None
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            return f"was killed by {name}"
        self.raise_internal_error()
        return f"ended by os._exit({os.waitstatus_to_exitcode(self.status)})"

    def raise_internal_error(self) -> None:
        """Raise InternalError if the simulator failed in the process."""
        self.await_exit()
        assert self.status is not None
        if os.waitstatus_to_exitcode(self.status) == rank_files.BROKEN_STATUS:
            rank_files.raise_reported_internal_error(self._files.stack)

    def has_succeeded(self) -> bool:
        """Return whether the process ended itself with status 0, which torchrun counts as success."""
        self.await_exit()
        return self.status == 0 and not self._is_reaped_elsewhere

    def _reap_process(self, options: int) -> None:
        """Record the status if the process has ended, and kill the processes that it has left running."""
        try:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | options) is None:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # before its process id may be used again
            _, self.status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # the caller's own code has waited for the process
            self.status, self._is_reaped_elsewhere = 0, True


def check_process_support(world_size: int, *, forks_from_here: bool = True) -> None:
    """Raise UsageError where ranks cannot be processes, or cannot be forked from this process."""
    if not hasattr(os, "fork") or not hasattr(os, "memfd_create"):
        raise UsageError("ranks as processes need fork and memfd_create, expected Linux: take isolation='thread'")
    if forks_from_here and torch.cuda.is_initialized():
        raise UsageError(
            "CUDA is initialised in this process, and forked ranks cannot use it then: run before anything uses a GPU "
            "here, or in another process"
        )

    available = _free_memory_bytes()
    if available is not None and world_size * _LEAST_BYTES > available:
        raise UsageError(
            f"{world_size} ranks as processes need {world_size * _LEAST_BYTES >> 20} MiB of memory or more, and this "
            f"machine has {available >> 20} MiB free: take fewer ranks, or free memory"
        )


def _free_memory_bytes() -> int | None:
    """Return the free memory in bytes; None if the system does not report it."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def fork_ranks(config: ProcessConfig) -> list[ChildProcess]:
    """Fork a process for each rank of a function. Raises UsageError if the system has no resources left."""
    children: list[ChildProcess] = []
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        with freeze_existing_objects(config.world_size):  # garbage collection in the ranks then copies no shared page
            for rank in range(config.world_size):
                children.append(_fork_rank(rank, config, children))
    except OSError as error:
        for child in children:
            child.kill_process()
            child.release_resources()
        raise UsageError(
            f"the system starts no process for rank {len(children)} ({error.strerror}), expected one for each of "
            f"{config.world_size} ranks: take fewer ranks, or raise the limits of processes and files (ulimit -u, -n)"
        ) from error
    return children


def _fork_rank(rank: int, config: ProcessConfig, others: list[ChildProcess]) -> ChildProcess:
    arena = SharedArena()
    mine, theirs = MessageChannel.pair()
    files = RankFiles.open_rank_files()
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork in a process with threads, which a test session may have.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            mine.close()
            for other in others:
                other.channel.close()
            run_rank(RankConfig(rank, config, theirs, arena, files))
        except BaseException as error:
            rank_files.exit_with_internal_error(
                files.stack, error, f"the process of rank {rank}, before its program began"
            )
    theirs.close()
    return ChildProcess(rank, pid, mine, arena, files)
