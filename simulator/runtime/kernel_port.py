"""The kernel as whoever hosts threads of ranks sees it: the kernel itself, or what stands for it in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import Reply, Request
from ddpsim.simulator.kernel.states import Life
from ddpsim.simulator.kernel.tasks import RankRecord, Task


class RunPort(Protocol):
    """What a host reads of the execution. In another process than the kernel's it is as of the last answer."""

    @property
    def ranks(self) -> Sequence[RankRecord]:
        """Those that the host runs."""

    @property
    def tasks(self) -> Mapping[int, Task]:
        """The tasks that the host runs and that have not ended, and every rank's program, by number."""

    @property
    def started(self) -> int:
        """The number of the next task."""

    @property
    def steps(self) -> int:
        """How many steps there were."""

    @property
    def is_observed(self) -> bool:
        """Somebody explores, and wants to know what each step touches."""

    @property
    def life(self) -> Life:
        """How far the execution is."""


class KernelPort(Protocol):
    """What a host of threads asks; `Kernel` says what each does."""

    @property
    def run(self) -> RunPort:
        """What has come of the execution so far."""

    def handle(self, request: Request) -> Answer:
        """Serve a request of the running task."""

    def watch(self, handle: int) -> bool:
        """Something hangs on the completion of a call from here on. True if it is to be delivered now."""

    def reply(self, said: Reply | None) -> Answer:
        """Go on with the running task's request."""

    def drop(self) -> None:
        """Give up the running task's request."""

    def resume(self, task: Task) -> Answer:
        """A task of this host has got the baton."""

    def give_baton(self, number: int | None) -> None:
        """The host hands the baton to a task of its own, or to nobody."""

    def is_unwinding(self, task: Task) -> bool:
        """True if a task has the baton, or is going to get it, only to leave."""
