"""What runs inside the processes of a job that is watched: each rank leaves what torch's recorder has.

It is loaded before anything of the job, by `site`, so it knows the standard library only. A rank writes every half
second what is new, and less often where nothing is, as it may be killed or abort at any time; once more when it is told
to, and once more at its end. A rank that raised tells the others to write, too, and waits for them: its launcher ends
them as soon as it is gone.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any

FOLDER = "DDPSIM_RECORDS"
"""The variable that names the folder of the job's records."""
_LAUNCHER = "DDPSIM_RECORDS_LAUNCHER"
"""The variable that has the process of the launcher: ranks are its children, what ranks start is not."""
NOW = "now"
"""The file that appears when all are to write."""
DONE = "done_{}"
"""The file that a rank leaves after that."""
_RECORD = "rank_{}"
_READER = "_dump_fr_trace"
_EVERY_SECONDS = 0.5
_MOST_EVERY_SECONDS = 4.0
_LOOK_SECONDS = 0.1
_MOST_SECONDS = 5.0
"""So long does a rank that raised wait for the others."""


def begin() -> None:
    """Watch this process if it is a rank."""
    folder = os.environ.get(FOLDER)
    if not folder or not os.path.isdir(folder):
        return
    if "LOCAL_RANK" not in os.environ:
        os.environ.setdefault(_LAUNCHER, str(os.getpid()))
    elif os.environ.get(_LAUNCHER) == str(os.getppid()):
        leaving = _Leaving(folder, os.environ["RANK"], int(os.environ["WORLD_SIZE"]))
        threading.Thread(target=leaving.watch, daemon=True).start()
        atexit.register(leaving.end)


class _Leaving:
    """What a rank leaves."""

    def __init__(self, folder: str, rank: str, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._size = world_size
        self._process = os.getpid()
        self._writing = threading.Lock()
        self._last = b""

    def watch(self) -> None:
        """Write what is new, until all are to write."""
        looked, every = time.monotonic(), _EVERY_SECONDS
        while not os.path.exists(self._path(NOW)):
            if time.monotonic() - looked > every:
                every = _EVERY_SECONDS if self._write() else min(2 * every, _MOST_EVERY_SECONDS)
                looked = time.monotonic()
            time.sleep(_LOOK_SECONDS)
        self._write()
        self._touch(DONE.format(self._rank))

    def end(self) -> None:
        """Write at the end of the process; after an exception, see to it that the others do, too."""
        if os.getpid() != self._process:  # a fork of the rank
            return
        self._write()
        if hasattr(sys, "last_value"):
            self._touch(NOW)
            end = time.monotonic() + _MOST_SECONDS
            done = [self._path(DONE.format(rank)) for rank in range(self._size)]
            while time.monotonic() < end and not all(map(os.path.exists, done)):
                time.sleep(_LOOK_SECONDS)

    def _write(self) -> bool:
        """Write the record if there is something new."""
        with self._writing:
            dump = _dump()
            is_new = bool(dump) and dump != self._last
            if is_new:
                path = self._path(_RECORD.format(self._rank))
                with open(path + ".part", "wb") as file:
                    file.write(dump)
                os.replace(path + ".part", path)
                self._last = dump
            return is_new

    def _touch(self, name: str) -> None:
        with open(self._path(name), "wb"):
            pass

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _dump() -> bytes:
    """What the recorder has; nothing before the program has imported torch.distributed."""
    module: Any = sys.modules.get("torch._C._distributed_c10d")
    read = getattr(module, _READER, None)
    if read is None:
        return b""
    try:
        return bytes(read())
    except (TypeError, RuntimeError):  # a torch with a recorder for each backend
        return bytes(read(backend="gloo"))
