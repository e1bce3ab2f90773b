"""The kernel's interface for the host that runs ranks as threads.

The kernel implements it; in rank processes a proxy does.
"""

from typing import Protocol

from ddpsim.simulator.kernel.answers import Answer
from ddpsim.simulator.kernel.requests import Reply, Request
from ddpsim.simulator.kernel.states import RunLifecycle
from ddpsim.simulator.kernel.tasks import RankRecord, Task


class KernelRunView(Protocol):
    """The run's state that a host, which runs the ranks, reads. In a rank process: as of the kernel's last answer."""

    ranks: list[RankRecord]
    tasks: dict[int, Task]
    """By number: the tasks that have not ended, and the main task of every rank. It is a rank's program or thread."""
    steps: int
    is_observed: bool
    """True if an exploration of schedules records what each step reads and writes."""
    life: RunLifecycle
    """Whether the run is going on, stopping or over."""

    @property
    def started(self) -> int:
        """The number that the next started thread gets."""


class KernelInterface(Protocol):
    """The kernel's functions that a host, which runs the ranks, calls; `Kernel` documents each."""

    @property
    def run(self) -> KernelRunView:
        """The state of the run so far."""

    def handle(self, request: Request) -> Answer:
        """Take a request of the running program or thread and return the kernel's answer."""

    def watch_completion(self, handle: int) -> bool:
        """Note that the program depends on a call's completion from now on. True if its callbacks have to run now."""

    def reply(self, said: Reply | None) -> Answer:
        """Pass the host's reply (a result that the kernel asked for) on, and return the kernel's next answer."""

    def drop_request(self) -> None:
        """Give up the running rank's request, as the host could not do what the kernel asked for."""

    def resume_task(self, task: Task) -> Answer:
        """Return the answer for a task (a rank's program or thread) of this host whose turn it is."""

    def give_baton(self, number: int | None) -> None:
        """Note which of the host's tasks (programs and threads of ranks) runs next; None for none."""

    def is_unwinding(self, task: Task) -> bool:
        """True if a task (a rank's program or thread) is being ended early, or will be when it runs next."""
