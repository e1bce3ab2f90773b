"""Messages that all ranks of a run together print once."""

import mmap
import os
import sys
from collections.abc import Callable

_GPUS, _COMPILE, _BUILD = range(3)


class FirstUseAnnouncement:
    """Prints lines on standard error; the first rank that has a line prints it."""

    def __init__(self, file: int | None = None) -> None:
        """Share the record of printed lines between ranks, in a file in memory; a new file if `file` is None."""
        self.file = os.memfd_create("said") if file is None else file
        os.ftruncate(self.file, mmap.PAGESIZE)
        self._said = mmap.mmap(self.file, mmap.PAGESIZE)
        self.wait: Callable[[], None] = lambda: None
        """A function that is called before this rank checks whether it is the first with a line."""

    def close(self) -> None:
        """Close the file in this process."""
        self._said.close()
        os.close(self.file)

    def announce_gpus(self, asked_for: str) -> None:
        """Print that the program gets virtual GPUs, and why."""
        self._print_once(
            _GPUS,
            f"the program asks for {asked_for} and this machine has no GPU: it gets virtual ones, which compute on "
            "the CPU (--gpus N sets their number)",
        )

    def announce_no_compilation(self) -> None:
        """Print that torch.compile does nothing on virtual GPUs."""
        self._print_once(_COMPILE, "torch.compile is left out on virtual GPUs: functions run as they are written")

    def announce_build(self) -> None:
        """Print that the library of the virtual GPUs is being built."""
        self._print_once(_BUILD, "building the virtual GPUs, once for this version of torch (10 to 30 s)")

    def _print_once(self, number: int, line: str) -> None:
        if not self._said[number]:
            self.wait()
        if not self._said[number]:
            self._said[number] = 1
            print(f"ddpsim: {line}", file=sys.stderr, flush=True)
