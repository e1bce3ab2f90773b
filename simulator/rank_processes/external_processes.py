"""Processes that are not ranks and make a process group: unchecked, they would communicate over real gloo.

What a rank or a launcher starts is watched in two ways. What it forks has what it has, so torch's own function that
makes a group refuses there. What begins as a Python of its own (`spawn`, `subprocess`, loky) finds
`in_children/sitecustomize.py` by its environment, which does the same once torch is imported. Both tell the
coordinator, by a socket that has a name and no file, and it ends the run with a line.

Not noticed: a Python that ignores its environment (`python -I`), and one that is given another.
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
        """Raises OSError if the system gives no more files."""
        self.address = f"ddpsim-{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(f"\0{self.address}")

    def check(self) -> None:
        """Raise UsageError with what one of them has told."""
        with suppress(BlockingIOError):
            raise UsageError(self._socket.recv(_MOST_BYTES).decode())

    def close(self) -> None:
        """Nobody listens any more."""
        self._socket.close()


def watch_children(address: str, who: str) -> None:
    """In a rank or a launcher: let what it starts from now on be watched."""
    if not address:
        return
    os.environ[in_children.NAME] = f"{address} {who}"
    folder, path = os.path.dirname(os.path.abspath(in_children.__file__)), os.environ.get("PYTHONPATH")
    if path is None or folder not in path:
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{path}" if path else folder


def refuse_groups_in_forks() -> None:
    """In a rank or a launcher: let what it forks make no group."""
    Replaced().replace(distributed_c10d, "_new_process_group_helper", partial(_only_in, os.getpid()))


def _only_in(own: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*arguments: Any, **options: Any) -> Any:
        if os.getpid() != own:
            in_children.refuse()
        return original(*arguments, **options)

    return make
