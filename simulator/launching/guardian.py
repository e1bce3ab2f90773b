"""A process that outlives the coordinator, and kills the processes that ranks have started.

Each rank leads a process group, to which the processes that it starts belong. If the coordinator is killed, the system
ends the ranks, but not those processes. The guardian reads the ids of the ranks from a pipe. The pipe ends with the
coordinator, and then the guardian kills the groups.
"""

import os
import signal
from contextlib import suppress

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.rank_processes.rank_files import exit_with_internal_error, raise_reported_internal_error

_ENTRY_BYTES = 8


class Guardian:
    """The process that outlives the coordinator, and kills the processes that the ranks of one run have started."""

    def __init__(self) -> None:
        """Raises UsageError if the system has no process or file left."""
        pipe: tuple[int, ...] = ()
        try:
            pipe = reading, self._writing = os.pipe()
            self._report = os.memfd_create("report")
            pipe = *pipe, self._report
            self._pid = os.fork()
        except OSError as error:
            for file in pipe:
                os.close(file)
            raise UsageError(
                f"the system starts no process that ends what ranks leave running ({error.strerror}), expected one: "
                "raise the limits of processes and files (ulimit -u, -n)"
            ) from None
        if not self._pid:
            try:
                os.close(self._writing)
                _run_guardian(reading)
            except BaseException as error:
                exit_with_internal_error(self._report, error, "the process that ends what ranks have started")
        os.close(reading)

    def add_process_group(self, pid: int) -> None:
        """Record the process group of a rank, which is killed at the end."""
        with suppress(BrokenPipeError):  # the guardian failed, which `end` reports
            os.write(self._writing, pid.to_bytes(_ENTRY_BYTES, "little"))

    def kill_groups(self) -> None:
        """Kill all recorded process groups that are left, and end the guardian. Raises InternalError if the guardian
        failed."""
        os.close(self._writing)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        with os.fdopen(self._report, "rb"):
            raise_reported_internal_error(self._report)


def _run_guardian(reading: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, 0)
    data = b""
    while part := os.read(reading, 1 << 12):
        data += part
    for start in range(0, len(data), _ENTRY_BYTES):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int.from_bytes(data[start : start + _ENTRY_BYTES], "little"), signal.SIGKILL)
    os._exit(0)
