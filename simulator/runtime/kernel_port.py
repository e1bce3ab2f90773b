"""The kernel's interface for the host of rank threads: implemented by the kernel, and by a proxy in rank processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import Reply, Request
from ddpsim.simulator.kernel.states import RunLife
from ddpsim.simulator.kernel.tasks import RankRecord, Task


class KernelRunView(Protocol):
    """The execution's state that a host reads. In a rank process it is the state at the last answer."""

    @property
    def ranks(self) -> Sequence[RankRecord]:
        """The ranks that the host runs."""

    @property
    def tasks(self) -> Mapping[int, Task]:
        """By number: the host's tasks that have not ended, and the main task of every rank."""

    @property
    def started(self) -> int:
        """The number of the next task."""

    @property
    def steps(self) -> int:
        """The number of steps so far."""

    @property
    def is_observed(self) -> bool:
        """True if an exploration records what each step accesses."""

    @property
    def life(self) -> RunLife:
        """Whether the execution is running, stopping or ended."""


class KernelInterface(Protocol):
    """The kernel's functions that a host calls; `Kernel` documents each."""

    @property
    def run(self) -> KernelRunView:
        """The state of the execution so far."""

    def handle(self, request: Request) -> Answer:
        """Serve a request of the running task."""

    def watch_completion(self, handle: int) -> bool:
        """Note that something depends on a call's completion from now on. True if it is to be delivered now."""

    def reply(self, said: Reply | None) -> Answer:
        """Continue the running task's request with a reply."""

    def drop_request(self) -> None:
        """Give up the running task's request."""

    def resume_task(self, task: Task) -> Answer:
        """Continue a task of this host that has received the baton."""

    def give_baton(self, number: int | None) -> None:
        """Note that the host passes the baton to one of its tasks, or to none."""

    def is_unwinding(self, task: Task) -> bool:
        """True if a task is being unwound, or will be when it gets the baton."""
