"""Code that runs inside each process of a watched job and writes the records of torch's flight recorder.

Python's module `site` loads this file before anything of the job, so the file may use the standard library only. A rank
writes new records every half second, and less often if nothing is new, because it may be killed or abort at any time.
It writes once more when asked, and once more at its end. A rank that raised asks the others to write, too, and waits
for them, because the launcher ends them as soon as that rank exits.
"""

import atexit
import os
import sys
import threading
import time
from typing import Any

FOLDER = "DDPSIM_RECORDS"
"""The environment variable that names the folder of the job's records."""
_LAUNCHER = "DDPSIM_RECORDS_LAUNCHER"
"""The environment variable with the launcher's process id. Its children are ranks; the children of ranks are not."""
NOW = "now"
"""The name of the file whose appearance asks all ranks to write their records."""
DONE = "done_{}"
"""The name of the file that a rank makes after it has written its records on request."""
_RECORD = "rank_{}"
_READER = "_dump_fr_trace"
_EVERY_SECONDS = 0.5
_MOST_EVERY_SECONDS = 4.0
_LOOK_SECONDS = 0.1
_MOST_SECONDS = 5.0
"""How long a rank that raised an exception waits for the other ranks to write their records."""


def begin() -> None:
    """Start to write records, if this process is a rank of a watched job."""
    folder = os.environ.get(FOLDER)
    if not folder or not os.path.isdir(folder):
        return
    if "LOCAL_RANK" not in os.environ:
        os.environ.setdefault(_LAUNCHER, str(os.getpid()))
    elif os.environ.get(_LAUNCHER) == str(os.getppid()):
        leaving = _RecordWriter(folder, os.environ["RANK"], int(os.environ["WORLD_SIZE"]))
        threading.Thread(target=leaving.write_periodically, daemon=True).start()
        atexit.register(leaving.write_at_exit)


class _RecordWriter:
    def __init__(self, folder: str, rank: str, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._size = world_size
        self._process = os.getpid()
        self._writing = threading.Lock()
        self._last = b""

    def write_periodically(self) -> None:
        """Write the record whenever it has changed, until all ranks are asked to write."""
        looked, every = time.monotonic(), _EVERY_SECONDS
        while not os.path.exists(self._path(NOW)):
            if time.monotonic() - looked > every:
                every = _EVERY_SECONDS if self._write_if_new() else min(2 * every, _MOST_EVERY_SECONDS)
                looked = time.monotonic()
            time.sleep(_LOOK_SECONDS)
        self._write_if_new()
        self._create_file(DONE.format(self._rank))

    def write_at_exit(self) -> None:
        """Write the record at the end of the process; after an exception, let the other ranks write, too."""
        if os.getpid() != self._process:  # a fork of the rank
            return
        self._write_if_new()
        if hasattr(sys, "last_value"):
            self._create_file(NOW)
            end = time.monotonic() + _MOST_SECONDS
            done = [self._path(DONE.format(rank)) for rank in range(self._size)]
            while time.monotonic() < end and not all(map(os.path.exists, done)):
                time.sleep(_LOOK_SECONDS)

    def _write_if_new(self) -> bool:
        """Write the record of the flight recorder if it has changed; return True if it has."""
        with self._writing:
            dump = _recorder_dump()
            is_new = bool(dump) and dump != self._last
            if is_new:
                path = self._path(_RECORD.format(self._rank))
                with open(path + ".part", "wb") as file:
                    file.write(dump)
                os.replace(path + ".part", path)
                self._last = dump
            return is_new

    def _create_file(self, name: str) -> None:
        with open(self._path(name), "wb"):
            pass

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _recorder_dump() -> bytes:
    """Return the dump of torch's flight recorder; empty before the program has imported torch.distributed."""
    module: Any = sys.modules.get("torch._C._distributed_c10d")
    read = getattr(module, _READER, None)
    if read is None:
        return b""
    try:
        return bytes(read())
    except (TypeError, RuntimeError):  # a torch with one recorder per backend
        return bytes(read(backend="gloo"))
