"""Detects processes that create a process group and are not ranks: undetected, they would communicate over real gloo.

In a forked process of a rank or launcher, torch's function raises instead of creating a group. A new Python (`spawn`,
`subprocess`, loky) imports `in_children/sitecustomize.py` because of its environment, which replaces the same function.
Both report to a socket of the coordinator, which ends the run with the message.

Not noticed: a Python that ignores its environment (`python -I`), and one that is given another environment.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torch.distributed import distributed_c10d

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.rank_processes.in_children import sitecustomize as in_children
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_MOST_BYTES = 1 << 12


class ExternalProcesses:
    """Receives, for one run, the reports of processes that create a process group and are not ranks."""

    def __init__(self) -> None:
        """Open the socket. Raises OSError if the system has no file descriptors left."""
        self.address = f"ddpsim-{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(f"\0{self.address}")

    def raise_if_reported(self) -> None:
        """Raise UsageError if a process has reported that it creates a process group."""
        with suppress(BlockingIOError):
            raise UsageError(self._socket.recv(_MOST_BYTES).decode())

    def close(self) -> None:
        """Close the socket; later reports are lost."""
        self._socket.close()


def detect_groups_in_new_pythons(address: str, who: str) -> None:
    """In a rank or a launcher: make new Python processes that it starts report when they create a process group."""
    if not address:
        return
    os.environ[in_children.NAME] = f"{address} {who}"
    folder, path = os.path.dirname(os.path.abspath(in_children.__file__)), os.environ.get("PYTHONPATH")
    if path is None or folder not in path:
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{path}" if path else folder


def reject_groups_in_forks(replaced: ReplacedAttributes) -> None:
    """In a rank, or in the process of a test: make the creation of a process group fail in processes that it forks."""
    only_here = partial(_only_in_process, os.getpid())
    replaced.replace_attribute(distributed_c10d, "_new_process_group_helper", only_here)


def _only_in_process(own: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def create_group_or_reject(*arguments: Any, **options: Any) -> Any:
        if os.getpid() != own:
            in_children.reject_process_group()
        return original(*arguments, **options)

    return create_group_or_reject
