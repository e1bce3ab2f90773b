"""The handle of a call: torch's `Work`, waiting cooperatively."""

# torch's stubs say `result() -> list[Tensor]`; the coalesced calls have lists of lists.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack as _dispatch_modes
from torch._C import _len_torch_function_stack as _function_modes
from torch._C._distributed_c10d import Work

from ddpsim.simulator.accesses import Access, Accesses, Mode, Object
from ddpsim.simulator.calls import Origin, Phase
from ddpsim.simulator.kernel.requests import Checkpoint, OthersDeliver, Poll, Touch
from ddpsim.simulator.matching.slots import call_object
from ddpsim.simulator.runtime.host import Host, Pending
from ddpsim.simulator.transport.modes import with_modes_back, without_modes

NO_TIMEOUT = timedelta(0)


class SimulatedWork(Work):
    """What issuing a call returns. C++ honours it too: the Reducer waits on the future this hands out."""

    def __init__(self, host: Host, pending: Pending, result: Sequence[Any]) -> None:
        super().__init__()
        self.pending = pending
        self._host = host
        self._result = result
        self._future: torch.futures.Future[Sequence[Any]] | None = None
        pending.receive_completion = self._receive_completion
        self._is_delivered = False

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return True once the call is complete; raise RuntimeError if `timeout` passes first in virtual time.

        Raises what the transport said if it could not move the data. The caller's modes see nothing of it, as on gloo.
        """
        if _dispatch_modes() or _function_modes():
            with without_modes():
                return self._wait(timeout)
        return self._wait(timeout)

    def _wait(self, timeout: timedelta) -> bool:
        pending = self.pending
        if not pending.waited:
            pending.waited = True
            self._host.hazards.settled(pending)
        if timeout is NO_TIMEOUT or timeout <= NO_TIMEOUT:
            self._host.wait((pending,))
        elif not self._host.wait((pending,), timeout.total_seconds()):
            if not pending.call.is_point_to_point:
                raise RuntimeError("Operation timed out!")
            milliseconds = round(timeout.total_seconds() * 1000)
            raise RuntimeError(f"Timed out waiting {milliseconds}ms for {pending.call.operation} operation to complete")
        if pending.poisoned is not None:
            self._reveal()
        if pending.error is not None:
            raise pending.error
        return True

    def complete(self) -> None:
        """As `wait`, in the place of a wait in C++ that is still to come: the program itself has not waited by this."""
        with without_modes():
            self._host.wait((self.pending,))
        if self.pending.error is not None:
            raise self.pending.error

    def _reveal(self) -> None:
        """Let the program have the results, see Note [Poison] in poison.py."""
        if (held := self.pending.poisoned) is not None:
            self.pending.poisoned = None
            held.reveal()

    def is_completed(self) -> bool:
        """True once the call is complete. A poll in vain lets the other ranks run."""
        pending = self.pending
        with without_modes():
            is_complete = self._host.is_complete(pending)
            if is_complete and not pending.waited:
                pending.waited = True
                self._host.hazards.settled(pending)
        if is_complete:
            self._reveal()
        return is_complete

    def is_success(self) -> bool:
        """True once the call is complete and its data moved."""
        return self.is_completed() and self.pending.error is None

    def exception(self) -> Exception | None:
        """What the transport said if it could not move the data."""
        return self.pending.error

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`: data on a GPU is moved on the stream that waits."""
        self.wait()

    def result(self) -> Sequence[Any]:
        """The tensors of the call, once it is complete."""
        if not self.pending.is_complete:
            raise RuntimeError(
                "Work needs to be completed before calling result(). Should call wait() before result()."
            )
        self._reveal()
        return self._result

    def source_rank(self) -> int:
        """Group rank that a receive got its message from; -1 before it was waited for."""
        pending = self.pending
        if pending.call.operation != "recv":
            raise RuntimeError(
                "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."
            )
        if pending.source is None or not pending.waited:
            return -1
        return pending.members.index(pending.source)

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[Sequence[Any]]:
        """A future of the tensors, set on the owner's thread when the completion is delivered there."""
        if self.pending.call.origin.by_hook:
            self._host.hazards.settled(self.pending)  # the wrapper waits for it, unless the backward fails
        if self._future is None:
            if not _is_the_reducers_alone(self.pending.call.origin):
                self._host.watch(self.pending)
            self._future = torch.futures.Future(devices=_devices(self._result) or None)
            self._future.hangs_on = self.pending  # type: ignore[attr-defined]  # for `is_done`
            if self._host.is_observed and self._host.is_rank_thread():
                self._host.me.of.with_future.append(self.pending.call)
            if self._is_delivered:
                self._finish(self._future)
        return self._future

    def _receive_completion(self) -> None:
        self._is_delivered = True
        pending = self.pending
        if pending.poisoned is not None and pending.call.origin.phase is not Phase.USER:
            self._reveal()
        if self._future is not None:
            self._finish(self._future)

    def _finish(self, future: torch.futures.Future[Sequence[Any]]) -> None:
        self._host.hazards.settled(self.pending)
        self._reveal()
        with with_modes_back():  # as it calls what the program has hung on it
            if self.pending.error is None:
                future.set_result(self._result)
            else:
                future.set_exception(self.pending.error)  # type: ignore[arg-type]  # torch's stub


def is_done(host: Host, future: Any, original: Callable[[Any], bool]) -> bool:
    """Look whether a native future is done. To look in vain lets the other ranks run.

    A future of a call of the rank is looked at as the call is (`is_completed`). What another one hangs on is not known:
    it may be chained to any call that the program made a future of, or be set by another thread. So the rank takes what
    has come before it says that it looked in vain; and who explores is told of all of those calls.

    What is asked must not depend on which calls the rank takes for open: a rank that is a process hears of it later.
    """
    if not host.is_rank_thread():
        return original(future)
    pending = getattr(future, "hangs_on", None)
    if pending is not None and pending.owner is host.me.of:
        with without_modes():
            host.is_complete(pending)
        return original(future)
    looks: Accesses = tuple([Access(call_object(call), Mode.READ) for call in host.me.of.with_future])
    if host.me.of.has_started_threads:
        looks += (Access(_futures_of(host.me.rank), Mode.READ),)
    found = original(future)
    for look in (Checkpoint, Poll):
        if not found:
            with without_modes():
                host.ask(look(looks))
            found = original(future)
    if looks:
        host.ask(Touch(looks))
    return found


def stand_before_set(host: Host, future: Any) -> None:
    """A choice point before a program sets a native future which another thread of the rank may look at, or set."""
    is_of_call = hasattr(future, "hangs_on")
    if host.is_rank_thread() and host.me.of.has_started_threads and not is_of_call:
        access = Access(_futures_of(host.me.rank), Mode.WRITE)
        with without_modes():
            host.ask(Checkpoint((access,)))
            host.ask(Touch((access,)))


def _futures_of(rank: int) -> Object:
    """Those that a rank's threads set themselves."""
    return ("futures", rank)


def _is_the_reducers_alone(origin: Origin) -> bool:
    """True for a bucket without a hook: its future stays in C++, and nothing hangs on it. (For shadows, join waits.)"""
    return origin.phase is Phase.BUCKET and not origin.by_hook and not origin.shadow


class BufferedSend(SimulatedWork):
    """A send whose message has been copied: whoever sent it need not wait for the receive."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """True, at once."""
        self._settle()
        return True

    def complete(self) -> None:
        """Nothing is to be waited for."""

    def is_completed(self) -> bool:
        """True."""
        self._settle()
        return True

    def is_success(self) -> bool:
        """True."""
        return self.is_completed()

    def result(self) -> Sequence[Any]:
        """The tensors that were sent."""
        return self._result

    def get_future(self) -> torch.futures.Future[Sequence[Any]]:
        """A future that is set."""
        self._settle()
        future: torch.futures.Future[Sequence[Any]] = torch.futures.Future(devices=_devices(self._result) or None)
        future.set_result(self._result)
        return future

    def _settle(self) -> None:
        if not self.pending.waited:
            self.pending.waited = True
            self._host.hazards.settled(self.pending)


class FailedWork(Work):
    """The handle of a call that the backend refused after it was issued: no other rank hears of it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Raise what the backend's worker thread found."""
        raise self._error

    synchronize = wait
    block_current_stream = wait
    result = wait

    def is_completed(self) -> bool:
        """True: there is nothing to wait for."""
        return True

    def is_success(self) -> bool:
        """False."""
        return False

    def exception(self) -> Exception:
        """What `wait` raises."""
        return self._error

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that holds the exception."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_exception(self._error)
        return future


class JointWork(Work):
    """The handle of several calls that were issued between _start_coalescing and _end_coalescing."""

    def __init__(self, works: Sequence[SimulatedWork | FailedWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return True once all calls are complete."""
        for work in self._works:
            work.wait(timeout)
        return True

    synchronize = wait
    block_current_stream = wait

    def is_completed(self) -> bool:
        """True once all calls are complete."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """True once all calls have succeeded."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """The first call's that has one."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        """The tensors of all calls."""
        results: list[Any] = [work.result() for work in self._works]
        return [tensor for result in results for tensor in result]

    def get_future(self) -> torch.futures.Future[list[Any]]:
        """A future of the tensors of all calls."""
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda future: [tensor for each in future.value() for tensor in each.value()]
        )


def wait_for_future(host: Host, future: Any, is_done: Callable[[Any], bool]) -> None:
    """Wait cooperatively until a native future is done.

    Which calls it hangs on is not known (a communication hook chains what it likes), but only completions of the
    rank's own calls can finish it: so wait until any of them is complete, deliver it, and look again.
    """
    host.ask(Checkpoint())
    while not is_done(future):
        if open_calls := host.me.of.open():
            host.wait(open_calls)
        elif host.ask(OthersDeliver()):
            host.ask(Poll())  # what finishes it runs on another thread of the rank
        else:
            return  # not ours: let the native wait tell


def _devices(result: Sequence[Any]) -> list[int | str | torch.device]:
    tensors = [tensor for item in result for tensor in (item if isinstance(item, list) else (item,))]
    return sorted({tensor.device for tensor in tensors if tensor.is_cuda}, key=str)
