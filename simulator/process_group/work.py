"""The handle of a communication call: torch's `Work`. While a rank waits for it, other ranks run."""

# torch's stubs say `result() -> list[Tensor]`; the coalesced calls have lists of lists.
# mypy: disable-error-code="override,assignment"

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack as _dispatch_modes
from torch._C import _len_torch_function_stack as _function_modes
from torch._C._distributed_c10d import Work

from ddpsim.simulator.accesses import Access, Accesses, AccessMode
from ddpsim.simulator.calls import Phase
from ddpsim.simulator.kernel.requests import (
    CALLBACKS,
    AskOthersDeliver,
    Block,
    Checkpoint,
    Poll,
    ReportAccesses,
    ReportLockUse,
    WakeTask,
)
from ddpsim.simulator.matching.slots import call_object
from ddpsim.simulator.process_group.arguments import time_limit
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.rank_thread import PendingCall
from ddpsim.simulator.transport.modes import restore_modes, suspend_modes
from ddpsim.simulator.waits import LockWait, futures_object

NO_TIMEOUT = timedelta(0)


class SimulatedWork(Work):
    """The handle that issuing a call returns. The C++ Reducer uses it, too: it waits for the handle's future."""

    def __init__(self, host: Host, pending: PendingCall, result: Sequence[Any], limit: timedelta) -> None:
        super().__init__()
        self.pending = pending
        self._limit = limit
        self._host = host
        self._result = result
        self._future: torch.futures.Future[Sequence[Any]] | None = None
        self.lacks_result = False
        """True for a call that on gloo has neither result nor future."""
        if pending.poisoned is not None and pending.call.origin.phase is not Phase.USER:
            pending.when_delivered.append(self._reveal_results)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return True once the call is complete; raise RuntimeError if `timeout` passes first in virtual time.

        Also raises the error because of which the data could not be moved. The caller's torch modes do not see the
        wait, as on gloo.
        """
        if _dispatch_modes() or _function_modes():
            with suspend_modes():
                return self._wait(timeout)
        return self._wait(timeout)

    def _wait(self, timeout: timedelta) -> bool:
        pending = self.pending
        self._mark_waited()
        if timeout is not NO_TIMEOUT:
            timeout = time_limit("wait", timeout)
        if timeout <= NO_TIMEOUT:
            self._host.wait_for_calls((pending,))
        elif not self._host.wait_for_calls((pending,), timeout.total_seconds()):
            if not pending.call.is_point_to_point:
                raise RuntimeError("Operation timed out!")
            milliseconds = round(timeout.total_seconds() * 1000)
            raise RuntimeError(f"Timed out waiting {milliseconds}ms for {pending.call.operation} operation to complete")
        if pending.poisoned is not None:
            self._reveal_results()
        if pending.error is not None:
            raise pending.error
        return True

    def await_completion(self) -> None:
        """Wait now, so a later wait in C++ finds the call complete. Hazard checks do not take it for the program's."""
        with suspend_modes():
            self._host.wait_for_calls((self.pending,))
        if self.pending.error is not None and not self.pending.waited:  # else a hook has met it, and may have caught it
            raise self.pending.error

    def _reveal_results(self) -> None:
        """Write the results into the program's own tensors, see Note [Poison] in poison.py."""
        if (held := self.pending.poisoned) is not None:
            self.pending.poisoned = None
            held.reveal_results()

    def is_completed(self) -> bool:
        """True once the call is complete. If it is not, return False after other ranks have run.

        gloo sees that a message is complete in `wait` alone, and does not see that a reduce_scatter is.
        """
        with suspend_modes():
            is_seen = not self.lacks_result or (self.pending.waited and self.pending.call.is_point_to_point)
            is_complete = self._host.is_complete(self.pending, is_blind=not is_seen)
            if not is_seen:
                return False
            if is_complete:
                self._mark_waited()
        if is_complete:
            self._reveal_results()
        return is_complete

    def _mark_waited(self) -> None:
        if not self.pending.waited:
            self.pending.waited = True
            self._host.hazards.call_settled(self.pending)

    def is_success(self) -> bool:
        """True once the call is complete and its data has moved."""
        return self.is_completed() and self.pending.error is None

    def exception(self) -> Exception | None:
        """Return the error because of which the data could not be moved; None without one."""
        return self.pending.error

    def synchronize(self) -> None:
        """Wait until the call is complete."""
        self.wait()

    block_current_stream = synchronize  # as a wait of a GPU stream would make sure

    def result(self) -> Sequence[Any]:
        """Return the tensors of the call, once it is complete."""
        if self.lacks_result:
            raise RuntimeError("result() not implemented.")
        if not self.pending.is_complete:
            raise RuntimeError(
                "Work needs to be completed before calling result(). Should call wait() before result()."
            )
        self._reveal_results()
        return self._result

    if hasattr(Work, "timeout"):  # since torch 2.14

        @property
        def timeout(self) -> timedelta:
            """The time-out that the group had when the call was made."""
            return self._limit

    def source_rank(self) -> int:
        """Return the group rank that sent the received message; -1 before the receive was waited for."""
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
        """Return a future of the call's tensors. It is set on a thread of the rank that issued the call."""
        if self.lacks_result:
            raise RuntimeError("Work::getFuture not implemented.")
        if self.pending.call.origin.by_hook:
            self._host.hazards.call_settled(self.pending)  # the wrapper waits for it, unless the backward fails
        if self._future is None:
            origin = self.pending.call.origin  # that of a bucket without a hook stays in C++, without callbacks
            if origin.phase is not Phase.BUCKET or origin.by_hook or origin.shadow:
                self._host.watch_completion(self.pending)
            self._future = torch.futures.Future(devices=_gpu_devices(self._result) or None)
            self._future.hangs_on = self.pending  # type: ignore[attr-defined]  # for `future_is_done`
            if self._host.is_observed and self._host.is_rank_thread():
                self._host.running_thread.of.with_future.append(self.pending.call)
            if self.pending.is_delivered:
                self._set_future()
            else:
                self.pending.when_delivered.append(self._set_future)
        return self._future

    def _set_future(self) -> None:
        future = self._future
        assert future is not None
        self._host.hazards.call_settled(self.pending)
        self._reveal_results()
        with restore_modes():  # the future's callbacks belong to the program
            if self.pending.error is None:
                future.set_result(self._result)
            else:
                future.set_exception(self.pending.error)  # type: ignore[arg-type]  # torch's stub


def future_is_done(host: Host, future: Any, original: Callable[[Any], bool]) -> bool:
    """Return whether a native future is done. If it is not, return False after other ranks have run.

    A future of one of the rank's calls is treated as the call is (`is_completed`). Which calls another future depends
    on is not known: it may be chained to any call of which the program made a future, or be set by another thread. So
    the callbacks of all completed calls run before the answer is False, and an exploration is told of all of those
    calls.

    It must not depend on which calls the rank believes open: a rank that is a process learns of completions later.
    """
    if not host.is_rank_thread():
        return original(future)
    pending = getattr(future, "hangs_on", None)
    if pending is not None and pending.owner is host.running_thread.of:
        with suspend_modes():
            host.is_complete(pending)
        return original(future)
    looks: Accesses = tuple([Access(call_object(call), AccessMode.READ) for call in host.running_thread.of.with_future])
    if host.running_thread.of.has_started_threads:
        looks += (Access(futures_object(host.running_thread.rank), AccessMode.READ),)
    found = original(future)
    for look in (Checkpoint, Poll):
        if not found:
            with suspend_modes():
                host.send_request(look(looks))
            found = original(future)
    if looks:
        host.send_request(ReportAccesses(looks))
    return found


def note_callback(host: Host, future: Any) -> None:
    """Tell the exploration of schedules that a program adds a callback to a native future, which runs now if the future
    is set. When a callback of a call runs hangs on when the other ranks make the call, at any step of this rank."""
    if not host.is_observed or not host.is_rank_thread():
        return
    origins = [call.origin for call in host.running_thread.of.with_future]
    if any(origin.phase is Phase.USER and not origin.by_hook for origin in origins):
        host.send_request(ReportLockUse(CALLBACKS))
    host.report_shared_access(Access(futures_object(host.running_thread.rank), AccessMode.WRITE))


def set_future(host: Host, future: Any, set_now: Callable[[], None]) -> None:
    """Set a native future. If the program does so, and another thread of the rank may check, set or await the future,
    let other threads run before, and wake those that wait."""
    if not host.is_rank_thread() or not host.running_thread.of.has_started_threads:
        return set_now()
    if not hasattr(future, "hangs_on"):
        access = Access(futures_object(host.running_thread.rank), AccessMode.WRITE)
        with suspend_modes():
            host.send_request(Checkpoint((access,)))
            host.report_shared_access(access)
    set_now()
    for number in host.running_thread.of.awaiting_futures:
        host.send_request(WakeTask(number))
    return None


class BufferedSend(SimulatedWork):
    """A send whose message has been copied, so the sender need not wait for the receive."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return True at once: the message has been copied."""
        self._mark_waited()
        return True

    def await_completion(self) -> None:
        """Do nothing: the message has been copied."""

    def is_completed(self) -> bool:
        """Return True."""
        self._mark_waited()
        return True

    def result(self) -> Sequence[Any]:
        """Return the tensors that were sent."""
        return self._result

    def get_future(self) -> torch.futures.Future[Sequence[Any]]:
        """Return a future that is set already."""
        self._mark_waited()
        future: torch.futures.Future[Sequence[Any]] = torch.futures.Future(devices=_gpu_devices(self._result) or None)
        future.set_result(self._result)
        return future


class FailedWork(Work):
    """The handle of a call that the backend rejected after it was issued. No other rank learns of the call."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Raise the error of the backend's worker thread."""
        raise self._error

    synchronize = wait
    block_current_stream = wait
    result = wait

    def is_completed(self) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def is_success(self) -> bool:
        """Return False."""
        return False

    def exception(self) -> Exception:
        """Return the error that `wait` raises."""
        return self._error

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that holds the exception."""
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
        """Return the exception of the first call that has one."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        """Return the tensors of all calls."""
        results: list[Any] = [work.result() for work in self._works]
        return [tensor for result in results for tensor in result]

    def get_future(self) -> torch.futures.Future[list[Any]]:
        """Return a future of the tensors of all calls."""
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda future: [tensor for each in future.value() for tensor in each.value()]
        )


def wait_for_future(host: Host, future: Any, is_done: Callable[[Any], bool]) -> None:
    """Wait until a native future is done, and let other ranks run meanwhile.

    It is not known on which calls the future depends (a communication hook may chain anything). But only completions of
    the rank's own calls can finish it, or other threads of the rank. So this waits until any of them is complete or any
    future is set, runs the callbacks of completed calls, and checks the future again.
    """
    me = host.running_thread
    look = Access(futures_object(me.rank), AccessMode.READ)
    host.send_request(Checkpoint((look,) if me.of.has_started_threads else ()))
    while True:
        host.report_shared_access(look)
        if is_done(future):
            return
        if me.of.has_started_threads and not hasattr(future, "hangs_on"):
            me.of.awaiting_futures.append(me.number)
            try:
                host.send_request(Block(LockWait(look.object, "a future", site=current_user_site())))
            finally:
                me.of.awaiting_futures.remove(me.number)
        elif open_calls := me.of.open_calls():
            host.wait_for_calls(open_calls)
        elif host.send_request(AskOthersDeliver()):
            host.send_request(Poll())  # another thread of the rank may finish it
        else:
            return  # the future has nothing to do with the simulation: the native wait handles it


def _gpu_devices(result: Sequence[Any]) -> list[int | str | torch.device]:
    tensors = [tensor for item in result for tensor in (item if isinstance(item, list) else (item,))]
    return sorted({tensor.device for tensor in tensors if tensor.is_cuda}, key=str)
