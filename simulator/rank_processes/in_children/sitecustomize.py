"""Imported by every Python that a rank or a launcher starts: makes `init_process_group` raise there.

Then it imports the user's own `sitecustomize`, if there is one.
"""

import importlib.machinery
import importlib.util
import os
import socket
import sys
from contextlib import suppress
from typing import Any

NAME = "DDPSIM_OUTSIDERS"
"""The environment variable with the address of the coordinator's socket and the name of the rank or launcher."""

_TORCH = "torch.distributed.distributed_c10d"


class _TorchFinder:
    """Import hook that finds one module of torch, to change the module after its import."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _TORCH:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_replace(module: Any) -> None:
            execute(module)
            module._new_process_group_helper = reject_process_group

        spec.loader.exec_module = execute_and_replace
        return spec


def reject_process_group(*arguments: Any, **options: Any) -> None:
    """Report to the coordinator and raise; replaces torch's function that creates a process group."""
    who = os.environ.get(NAME, "").partition(" ")[2]
    line = (
        f"a process that {who or 'a rank'} has started makes a process group, expected only ranks to: start it by "
        "mp.spawn, or by Process with its number among the arguments, so that it is a rank, or run it without ddpsim"
    )
    report_to_coordinator(line)
    raise RuntimeError(line)


def report_to_coordinator(line: str) -> None:
    """Send a message to the coordinator, which ends the run with this message."""
    address = os.environ.get(NAME, "").partition(" ")[0]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(line.encode(), f"\0{address}")


def _install_import_hook() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != folder]
    finder: Any = _TorchFinder()
    sys.meta_path.insert(0, finder)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _install_import_hook()
