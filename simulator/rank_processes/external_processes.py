"""Detects processes that are not ranks and create a process group: undetected, they would communicate over real gloo.

Processes that a rank or a launcher starts are watched in two ways. A forked process inherits replaced functions, so
torch's own function that creates a group refuses there. A new Python (`spawn`, `subprocess`, loky) finds
`in_children/sitecustomize.py` by its environment, which does the same once torch is imported. Both report to the
coordinator, by a socket that has a name and no file, and the coordinator ends the run with a message.

Not noticed: a Python that ignores its environment (`python -I`), and one that is given another environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torch.distributed import distributed_c10d

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.rank_processes.in_children import sitecustomize as in_children
from ddpsim.simulator.runtime.replaced import Replaced

_MOST_BYTES = 1 << 12


class ExternalProcesses:
    """Receives the reports of such processes, for one run."""

    def __init__(self) -> None:
        """Open the socket. Raises OSError if the system has no file descriptors left."""
        self.address = f"ddpsim-{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(f"\0{self.address}")

    def check(self) -> None:
        """Raise UsageError with the report of such a process, if there is one."""
        with suppress(BlockingIOError):
            raise UsageError(self._socket.recv(_MOST_BYTES).decode())

    def close(self) -> None:
        """Close the socket; later reports are lost."""
        self._socket.close()


def watch_children(address: str, who: str) -> None:
    """In a rank or a launcher: watch the processes that it starts from now on."""
    if not address:
        return
    os.environ[in_children.NAME] = f"{address} {who}"
    folder, path = os.path.dirname(os.path.abspath(in_children.__file__)), os.environ.get("PYTHONPATH")
    if path is None or folder not in path:
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{path}" if path else folder


def refuse_groups_in_forks() -> None:
    """In a rank or a launcher: refuse process groups in the processes that it forks."""
    Replaced().replace(distributed_c10d, "_new_process_group_helper", partial(_only_in, os.getpid()))


def _only_in(own: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*arguments: Any, **options: Any) -> Any:
        if os.getpid() != own:
            in_children.refuse()
        return original(*arguments, **options)

    return make
