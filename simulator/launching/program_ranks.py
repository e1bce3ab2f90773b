"""Starts the processes of a program (its ranks, or its launcher), which servers fork; and a guardian, a process that
outlives the coordinator and kills the processes that ranks have started.

Each rank leads a process group, to which the processes that it starts belong. If the coordinator is killed, the system
ends the ranks, but not those processes. The guardian reads the ids of the ranks from a pipe. The pipe ends with the
coordinator, and then the guardian kills the groups.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.launching.program_files import may_need_dynamo
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.launching.server import FILES_OF_A_RANK, MOST_FILES, ForkResult, RankStart
from ddpsim.simulator.launching.servers import STANDING, ServerGone, ServerProcess, server_keys
from ddpsim.simulator.rank_processes.channel import MessageChannel
from ddpsim.simulator.rank_processes.children import ChildProcess
from ddpsim.simulator.rank_processes.parcels import SharedArena
from ddpsim.simulator.rank_processes.process_config import ProcessConfig
from ddpsim.simulator.rank_processes.rank_files import (
    RankFiles,
    exit_with_internal_error,
    raise_reported_internal_error,
)

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
        """Kill all recorded process groups that are left, and end the guardian. Raises InternalError if that failed."""
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


_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37

_AT_ONCE = MOST_FILES // (FILES_OF_A_RANK + 1)
"""The most processes that a server is asked to fork with one message."""


class ProcessResources(NamedTuple):
    """The files and the shared memory of a rank's process that is not forked yet."""

    rank: int
    channel: MessageChannel
    theirs: MessageChannel
    arena: SharedArena
    arena_file: int
    files: RankFiles

    @classmethod
    def open_for_rank(cls, rank: int) -> "ProcessResources":
        """Open the resources. Raises OSError if the system has no files or address space left."""
        with ExitStack() as made:
            channel, theirs = MessageChannel.pair()
            made.callback(channel.close)
            made.callback(theirs.close)
            files = RankFiles.open_rank_files()
            made.callback(files.close)
            arena_file = os.memfd_create("arena")
            made.callback(os.close, arena_file)
            arena = SharedArena(file=arena_file)
            made.pop_all()
        return cls(rank, channel, theirs, arena, arena_file, files)

    def close_process_ends(self) -> None:
        """Close those ends of the connections that the forked process uses itself."""
        self.theirs.close()
        os.close(self.arena_file)

    def close_all(self) -> None:
        """Close everything, because no process was forked for these resources."""
        self.close_process_ends()
        self.channel.close()
        self.arena.close()
        self.files.close()

    def files_to_send(self, announced: int, more: Sequence[int]) -> list[int]:
        """Return the files of the process in the order that `server.py` expects."""
        return [self.theirs.fileno(), self.arena_file, *self.files, announced, *more]


def start_ranks(config: ProcessConfig, guardian: Guardian) -> list[ChildProcess]:
    """Start the process of each rank. Raises UsageError if the system has no processes left."""
    return _start_with_retry(config, config.world_size, guardian, [])


def start_launcher(config: ProcessConfig, guardian: Guardian, line: int) -> ChildProcess:
    """Start the process of a program that starts its ranks itself; `line` is its connection to the coordinator."""
    return _start_with_retry(config, 1, guardian, [line])[0]


def _start_with_retry(config: ProcessConfig, count: int, guardian: Guardian, more: list[int]) -> list[ChildProcess]:
    try:
        return _start_processes(config, count, guardian, more)
    except ServerGone as gone:
        if not gone.was_ready:
            raise
    return _start_processes(config, count, guardian, more)  # an idle server was killed: retry with a new one


def _start_processes(config: ProcessConfig, count: int, guardian: Guardian, more: list[int]) -> list[ChildProcess]:
    """Fork the processes from the servers of the program; if one fails, kill the others."""
    assert isinstance(config.program, Script)
    children: list[ChildProcess] = []
    keys = server_keys(config.program, config.start.hash_seeds[:count], config.preload)
    try:
        with STANDING.use_servers(keys, wants_dynamo=may_need_dynamo(config.program)) as servers, adopting_orphans():
            for first in range(0, count, _AT_ONCE * len(servers)):
                ranks = range(first, min(first + _AT_ONCE * len(servers), count))
                _fork_ranks(config, ranks, servers, children, guardian, more)
    except BaseException as error:
        for child in children:
            child.kill_process()
            child.release_resources()
        if isinstance(error, OSError):
            raise UsageError(
                f"the system does not start {count} processes for ranks ({error.strerror}), expected one for each: "
                "take fewer ranks, or raise the limits of processes, files and address space (ulimit -u, -n, -v)"
            ) from None
        raise
    return children


def _fork_ranks(
    config: ProcessConfig,
    ranks: range,
    servers: Sequence[ServerProcess],
    children: list[ChildProcess],
    guardian: Guardian,
    more: Sequence[int],
) -> None:
    """Let the servers fork some ranks in parallel. Raises OSError if the system has no resources left."""
    coming: list[ProcessResources] = []
    try:
        for rank in ranks:
            coming.append(ProcessResources.open_for_rank(rank))
        shares = [coming[number :: len(servers)] for number in range(len(servers))]
        with _ctrl_c_delayed():
            pids, error = _fork_in_servers(servers, shares, config.announcement.file, more)
    except BaseException:
        for each in coming:
            each.close_all()
        raise
    values = config._asdict()
    del values["announcement"]
    for each in coming:
        if each.rank not in pids:
            each.close_all()
            continue
        guardian.add_process_group(pids[each.rank])
        child = ChildProcess(each.rank, pids[each.rank], each.channel, each.arena, each.files)
        children.append(child)
        each.close_process_ends()
        with suppress(OSError):  # the process is gone, which the coordinator notices
            child.channel.send(RankStart(each.rank, values, dict(os.environ), os.getcwd(), tuple(sys.path)))
    if error:
        raise OSError(error, os.strerror(error))


def _fork_in_servers(
    servers: Sequence[ServerProcess], shares: Sequence[Sequence[ProcessResources]], announced: int, more: Sequence[int]
) -> tuple[dict[int, int], int]:
    """Return the process ids by rank, and the error number if some are missing, else 0."""
    asked = [(server, share) for server, share in zip(servers, shares, strict=True) if share]
    for server, share in asked:
        server.ask_to_fork([each.files_to_send(announced, more) for each in share])
    pids: dict[int, int] = {}
    errors, gone = [], None
    for server, share in asked:
        try:
            forked: ForkResult = server.receive_answer()
        except UsageError as error:  # this server has ended; the other servers still fork
            gone = error
            continue
        pids.update({each.rank: pid for each, pid in zip(share, forked.pids, strict=False)})
        errors.append(forked.error)
    if gone is not None:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise gone
    return pids, next(filter(None, errors), 0)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """In the `with` block: make this process the parent of orphaned descendants, so that it can wait for them."""
    system = ctypes.CDLL(None)
    before = ctypes.c_int()
    system.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    system.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        system.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


@contextmanager
def _ctrl_c_delayed() -> Iterator[None]:
    """In the `with` block: delay Ctrl-C, which would lose processes that are forked and not recorded yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
