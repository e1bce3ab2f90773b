"""The handle of a call: torch's `Work`, waiting cooperatively."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from simulator.runtime.execution import Execution
from simulator.runtime.rank_thread import Pending


class SimulatedWork(Work):
    """What issuing a call returns. C++ honours it too: the Reducer waits on the future this hands out."""

    def __init__(self, execution: Execution, pending: Pending, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._execution = execution
        self._pending = pending
        self._result = result
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        pending.receive_completion = self._receive_completion
        self._is_delivered = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return True once the call is complete; raise RuntimeError if `timeout` passes first in virtual time."""
        self._pending.waited = True
        seconds = timeout.total_seconds() or None
        if not self._execution.wait((self._pending,), seconds):
            milliseconds = round((seconds or 0.0) * 1000)
            raise RuntimeError(f"Timed out waiting {milliseconds}ms for {self._pending.call.operation} operation to complete")
        return True

    def is_completed(self) -> bool:
        """True once the call is complete. A poll in vain lets the other ranks run."""
        if not self._pending.is_complete:
            self._execution.poll()
        else:
            self._execution.checkpoint()
        if self._pending.is_complete:
            self._pending.waited = True
        return self._pending.is_complete

    def is_success(self) -> bool:
        """As `is_completed`: a call that fails ends the whole run."""
        return self.is_completed()

    def exception(self) -> None:
        """None: a call that fails ends the whole run."""

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`: data on a GPU is moved on the stream that waits."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors of the call."""
        return self._result

    def source_rank(self) -> int:
        """Group rank that a receive got its message from."""
        source = self._pending.source
        assert source is not None, "only a complete recv has a source"
        return self._execution.slots.members(self._pending.call.group).index(source)

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors, set on the owner's thread when the completion is delivered there."""
        if self._future is None:
            devices = sorted({tensor.device for tensor in self._result if tensor.is_cuda}, key=str)
            self._future = torch.futures.Future(devices=devices or None)
            if self._is_delivered:
                self._future.set_result(self._result)
        return self._future

    def _receive_completion(self) -> None:
        self._is_delivered = True
        if self._future is not None:
            self._future.set_result(self._result)


def wait_for_future(execution: Execution, future: Any, is_done: Callable[[Any], bool]) -> None:
    """Wait cooperatively until a native future is done.

    Which calls it hangs on is not known (a communication hook chains what it likes), but only completions of the rank's own
    calls can finish it: so wait until any of them is complete, deliver it, and look again.
    """
    execution.checkpoint()
    while not is_done(future):
        pendings = list(execution.me.pending)
        if not pendings:
            return  # not ours: let the native wait tell
        execution.wait(pendings)
