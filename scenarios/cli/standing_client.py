"""Lets a standing server (`ddpsim serve`) run this command, if there is one: nothing then has to be imported here."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

from ddpsim.simulator.launching import standing
from ddpsim.simulator.rank_processes.channel import PacketConnection

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH, signal.SIGUSR1)


def run_on_server(words: list[str], folder: str, began: float | None) -> int | None:
    """Run the command, which began then, on the server with a socket in this folder, and return its exit status.

    None if no server runs it. One is started, for the next command, if DDPSIM_SERVE is set to 1.
    """
    try:
        line = standing.connect(standing.socket_path(folder))
    except OSError as error:  # no folder can be made, or one is not ours
        if os.environ.get("DDPSIM_SERVE") == "1":
            print(f"ddpsim: no server is used: {error.filename} {error.strerror}", file=sys.stderr)
        return None
    if line is None:
        if os.environ.get("DDPSIM_SERVE") == "1":
            _start_server(words)
        return None
    process = None
    with suppress(OSError):
        _send_request(line, words, began)
        message, files = line.receive()
        process = files[0] if isinstance(message, standing.Started) else None
    if process is not None:
        return _await_end(line, process)
    line.close()
    return None


def _start_server(words: list[str]) -> None:
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(words)], "serve"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _send_request(line: PacketConnection, words: list[str], began: float | None) -> None:
    umask = os.umask(0)
    os.umask(umask)
    request = os.memfd_create("request")
    try:
        with open(request, "w", closefd=False) as stream:
            json.dump((words, os.getcwd(), dict(os.environ), umask, sys.path[0]), stream)
        line.send(standing.CommandRequest(began), [request, 0, 1, 2])
    finally:
        os.close(request)


def _await_end(line: PacketConnection, process: int) -> int:
    """Forward signals to the command until it ends; return its exit status, or end by the signal that has ended it."""

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)

    def stop(number: int, frame: FrameType | None) -> None:
        forward(signal.SIGSTOP, frame)
        os.kill(os.getpid(), signal.SIGSTOP)
        forward(signal.SIGCONT, frame)

    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    signal.signal(signal.SIGTSTP, stop)
    message, _ = line.receive()
    if message is None:
        print("ddpsim: the server that ran this command has ended: run it again", file=sys.stderr)
        return 2
    if os.WIFSIGNALED(message.status):
        ended_by = os.WTERMSIG(message.status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return os.waitstatus_to_exitcode(message.status)
