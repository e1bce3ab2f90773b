"""What is said once for all ranks of a run, by whichever is first."""

from __future__ import annotations

import mmap
import sys

_GPUS, _COMPILE = range(2)


class Announcement:
    """Lines that ranks print on standard error, each once. Made before ranks are forked."""

    def __init__(self) -> None:
        self._said = mmap.mmap(-1, mmap.PAGESIZE)

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
            self._said[number] = 1
            print(f"ddpsim: {line}", file=sys.stderr, flush=True)
