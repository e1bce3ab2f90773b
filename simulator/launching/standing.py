"""What a command and a standing server (`ddpsim serve`) share: the socket's place, and what has to be equal in both.

This module imports little, because a command that finds a server takes less time than a Python that imports ddpsim.
"""

import hashlib
import os
import resource
import socket
import stat
import sys
from pathlib import Path
from typing import NamedTuple

from ddpsim.simulator.rank_processes.channel import PacketConnection

_OF_ONE_COMMAND = frozenset({
    *("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "TERM", "COLORTERM", "WINDOWID", "TMUX", "TMUX_PANE", "STY"),
    *("SSH_TTY", "SSH_CONNECTION", "SSH_CLIENT", "TERM_SESSION_ID", "PYTEST_CURRENT_TEST", "DDPSIM_SERVE"),
})  # fmt: skip
"""Environment variables that differ between terminals and commands, and that no import reads."""


class CommandRequest(NamedTuple):
    """A command to run. With it come a file with its words, folder, environment, umask and `sys.path[0]` in JSON, and
    three streams."""

    began: float | None
    """The start of its process, by `time.perf_counter`, which is one clock for all processes."""


class Started(NamedTuple):
    """The answer: the command runs. A pidfd, by which it can be sent signals, comes with it."""


class Refused(NamedTuple):
    """The answer of a server that has to end, because files have changed since it loaded them."""


class Ended(NamedTuple):
    """The command has ended with this status, as from `os.waitpid`."""

    status: int


def socket_path(place: str) -> Path:
    """Return the path of the socket, in this folder, of the server that this environment would use. Raises OSError if
    the folder cannot be made, or belongs to others."""
    folder = Path(place)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(1, "is not a folder of this user's alone, with mode 0700", str(folder))
    return folder / hashlib.sha256(repr(_surroundings()).encode()).hexdigest()[:24]


def _surroundings() -> list[object]:
    """Return what a server and a command need to have alike."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return [
        *(sys.executable, sys.version, tuple(sys.flags), sys.warnoptions, sys._xoptions, sys.path[1:], __file__),
        sorted((name, value) for name, value in os.environ.items() if name not in _OF_ONE_COMMAND),
        *(os.getresuid(), os.getresgid(), sorted(os.getgroups()), sorted(os.sched_getaffinity(0)), os.nice(0)),
        [resource.getrlimit(getattr(resource, name)) for name in names],
        [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))],
        os.readlink("/proc/self/root"),
    ]


def connect(path: Path) -> PacketConnection | None:
    """Connect to the server at a path; None if there is none, or if it is stopped, as by Ctrl-Z. Raises PermissionError
    if another user's is there."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.connect(str(path))
        if peer_of(end) != os.geteuid():
            raise PermissionError(1, "is a socket of another user", str(path))
        with open(f"/proc/{_credential(end, 0)}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] != "T":
                return PacketConnection(end)
    except PermissionError:
        end.close()
        raise
    except OSError:
        pass
    end.close()
    return None


def peer_of(end: socket.socket) -> int:
    """Return the user at the other end of a connection."""
    return _credential(end, 1)


def _credential(end: socket.socket, number: int) -> int:
    """Return the process (0) or the user (1) at the other end."""
    found = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(found[4 * number : 4 * number + 4], sys.byteorder)
