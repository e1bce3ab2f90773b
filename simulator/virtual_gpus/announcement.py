"""What is said once for all ranks of a run, by whichever is first."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable

_GPUS, _COMPILE = range(2)


class Announcement:
    """Lines that ranks print on standard error, each once."""

    def __init__(self, file: int | None = None) -> None:
        """What has been said is noted in a file of memory that all ranks have; a new one unless it is given."""
        self.file = os.memfd_create("said") if file is None else file
        os.ftruncate(self.file, mmap.PAGESIZE)
        self._said = mmap.mmap(self.file, mmap.PAGESIZE)
        self._wait: Callable[[], None] = lambda: None

    def wait_before(self, wait: Callable[[], None]) -> None:
        """Call something before it is decided who is first."""
        self._wait = wait

    def close(self) -> None:
        """Let go of the file here."""
        self._said.close()
        os.close(self.file)

    def say_gpus(self, asked_for: str) -> None:
        """There are virtual GPUs because the program asked for something."""
        self._say(
            _GPUS,
            f"the program asks for {asked_for} and this machine has no GPU: it gets virtual ones, which compute on "
            "the CPU (--gpus N says how many)",
        )

    def say_not_compiled(self) -> None:
        """The program asked for a compiler."""
        self._say(_COMPILE, "torch.compile is left out on virtual GPUs: functions run as they are written")

    def _say(self, number: int, line: str) -> None:
        if not self._said[number]:
            self._wait()
        if not self._said[number]:
            self._said[number] = 1
            print(f"ddpsim: {line}", file=sys.stderr, flush=True)
