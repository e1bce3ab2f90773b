"""`ddpsim serve`: a standing process that has imported torch and ddpsim, and forks commands."""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.own_process import end_process, socket_folder
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.imports import pause_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ddpsim.simulator.rank_processes.channel import PacketConnection

_IMPORTED = (
    *("ddpsim.scenarios.files.loader", "ddpsim.scenarios.running.run_as", "ddpsim.scenarios.running.runner"),
    *("ddpsim.simulator.process_ranks", "ddpsim.scenarios.cli.judgement", "ddpsim.scenarios.records.writing"),
)

_REQUEST_SECONDS = 5.0
"""The time that a command has to say what it wants."""


def serve(
    context: typer.Context,
    idle: Annotated[float, typer.Option(help="End after so many minutes without a command.")] = 30.0,
) -> int:
    """Keep torch loaded for the commands of this user that run programs."""
    from ddpsim.simulator.launching import servers, standing

    if servers.STANDING.own_hash_seed is None:
        raise UsageError("this process has no hash seed of its own, expected `ddpsim serve`, typed so: start it so")
    try:
        path = standing.socket_path(socket_folder())
        if (other := standing.connect(path)) is not None:
            other.close()
            output.print_note(f"a server for this environment is there already, at {path}")
            return ExitStatus.AS_EXPECTED
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        listener.listen()
        own = path.stat().st_ino
    except OSError as error:
        raise UsageError(
            f"the server cannot listen ({error}), expected a folder of this user's: make room, or set XDG_RUNTIME_DIR"
        ) from None
    try:
        with pause_garbage_collection(), servers.imports_for_forks():
            for name in _IMPORTED:
                importlib.import_module(name)
        gc.freeze()  # garbage collection in the commands then copies no shared page
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    server = _Server(path, own, listener, partial(context.obj, own_hash_seed=servers.STANDING.own_hash_seed))
    try:
        output.print_text(f"ddpsim serves the commands of this environment, and ends after {idle:g} idle minutes")
        server.serve_commands(idle * 60)
    finally:
        server.close()
        server.serve_commands(0)  # until those that run have ended
    return ExitStatus.AS_EXPECTED


class _Server:
    def __init__(self, path: Path, own: int, listener: socket.socket, run: Callable[..., int]) -> None:
        """`own` is the number of the socket's inode. `run` runs the command line of this process, which began at
        `began`, and returns its exit status."""
        self._path, self._own, self._listener, self._run = path, own, listener, run
        self._files = _loaded_files()
        self._commands: dict[int, tuple[int, PacketConnection]] = {}
        """The process id of each command that runs, and its connection, by its pidfd."""

    def serve_commands(self, idle_seconds: float) -> None:
        """Fork commands until none has come for so long, or until a file has changed that this process has loaded."""
        since = time.monotonic()
        while self._listener.fileno() >= 0 or self._commands:
            poll = select.poll()
            for file in (self._listener.fileno(), *self._commands):
                if file >= 0:
                    poll.register(file, select.POLLIN)
            lines = {line.fileno(): pidfd for pidfd, (_, line) in self._commands.items()}
            for file in lines:
                poll.register(file, select.POLLIN)
            left = None if self._commands else 1000 * max(0.0, since + idle_seconds - time.monotonic())
            ready = [file for file, _ in poll.poll(left)]
            if ready or self._commands:
                since = time.monotonic()
            elif time.monotonic() - since >= idle_seconds:
                return
            for file in ready:
                if file in lines:  # the command that the user sees is gone
                    os.kill(self._commands[lines[file]][0], signal.SIGKILL)
            for file in ready:
                if file in self._commands:
                    self._end_command(file)
                elif file == self._listener.fileno():
                    self._accept_command()

    def close(self) -> None:
        """Remove the socket, if it is still this server's."""
        self._listener.close()
        with suppress(OSError):
            if self._path.stat().st_ino == self._own:
                self._path.unlink()

    def _end_command(self, pidfd: int) -> None:
        from ddpsim.simulator.launching.standing import Ended

        pid, line = self._commands.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        with suppress(OSError):
            line.send(Ended(status))
        line.close()

    def _accept_command(self) -> None:
        from ddpsim.simulator.launching import standing
        from ddpsim.simulator.rank_processes.channel import PacketConnection

        end, _ = self._listener.accept()
        line = PacketConnection(end)
        end.settimeout(_REQUEST_SECONDS)
        files: list[int] = []
        try:
            if standing.peer_of(end) != os.geteuid():
                return line.close()
            message, files = line.receive()
            if not isinstance(message, standing.CommandRequest) or len(files) != 4:
                return line.close()
            if _loaded_files(self._files) != self._files:
                line.send(standing.Refused())
                self.close()
                return line.close()
            self._fork_command(line, message, files)
        except OSError:  # the command is gone, or the system has no process left: it runs by itself
            line.close()
        finally:
            for file in files:
                os.close(file)
        return None

    def _fork_command(self, line: PacketConnection, request: Any, files: list[int]) -> None:
        from ddpsim.simulator.launching.standing import Started

        pid = os.fork()
        if not pid:
            try:
                self._listener.close()
                line.close()
                for pidfd, (_, other) in self._commands.items():
                    os.close(pidfd)
                    other.close()
                _become_command(request, files, self._run)
            except BaseException as error:
                os.write(2, f"ddpsim: the server cannot begin this command ({error!r}): set DDPSIM_SERVE=0\n".encode())
            finally:
                os._exit(ExitStatus.USAGE_ERROR)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # the user's command then runs by itself
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._commands[pidfd] = pid, line
        with suppress(OSError):  # it is gone, which its connection shows
            line.send(Started(), [pidfd])


def _loaded_files(paths: Any = None) -> dict[str, tuple[int, int]]:
    """Return the time and size of each file from which a module was loaded."""
    if paths is None:
        modules = [getattr(each, "__file__", None) for each in list(sys.modules.values())]
        packages = [path for path in sys.path if path.endswith("-packages")]  # what is installed later shows there
        paths = {str(path) for path in (*modules, *packages) if path}
    found = {}
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            found[path] = status.st_mtime_ns, status.st_size
    return found


def _become_command(request: Any, files: list[int], run: Callable[..., int]) -> NoReturn:
    """Run the command in this fork, as in a Python that the user has started, and end."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the server, as nobody would wait for it
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    words, folder, environment, umask, sys.path[0] = json.loads(os.pread(files[0], os.fstat(files[0]).st_size, 0))
    for number, file in enumerate(files[1:]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.umask(umask)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words
    kinds: Any = sys.__stdin__, sys.__stdout__, sys.__stderr__
    streams: list[Any] = [
        os.fdopen(number, "w" if number else "r", encoding=kind.encoding, errors=kind.errors)
        for number, kind in enumerate(kinds)
    ]
    for number in (1, 2):
        streams[number].reconfigure(
            line_buffering=number == 2 or os.isatty(number), write_through=kinds[number].write_through
        )
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
    try:
        status = run(began=request.began)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        status = ExitStatus.INTERRUPTED
    except BaseException:
        traceback.print_exc()
        status = 1
    end_process(status)
    os._exit(120)  # as Python does if its output cannot be written
