"""Replaces `queue.SimpleQueue`, which is native, inside ranks: each queue operation is one step of the run.

The order of a put and a waiting get does not matter: the first thread that asks gets the first item. So a queue between
two threads adds no interleaving to explore. Only for a get that does not wait it matters when an item arrives.
"""

import queue
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpsim.simulator.accesses import Access, AccessMode, Object
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.kernel.requests import Block, Checkpoint, WakeTask, WriteNote
from ddpsim.simulator.runtime.rank_thread import RankThread
from ddpsim.simulator.runtime.threads.lock_steps import LockSteps
from ddpsim.simulator.runtime.threads.waiting import describe_wait, is_in_destructor
from ddpsim.simulator.waits import LockWait

_RealQueue: Any = queue.SimpleQueue  # bound here: it is replaced during a run


@dataclass(eq=False)
class _WaitingConsumer:
    """A thread that waits for an item of the queue, and the item once it has arrived."""

    thread: RankThread
    item: Any = None


class RankSimpleQueue:
    """The queue that `queue.SimpleQueue()` returns on a rank's thread."""

    def __init__(self, steps: LockSteps, maker: RankThread, *, is_external: bool = False) -> None:
        """`is_external`: threads outside the simulation put the items into the queue."""
        self._is_external = is_external
        self._steps = steps
        self._real = _RealQueue()
        """The native queue with the items, which threads outside the simulation use, too."""
        self._waiting: list[_WaitingConsumer] = []
        """The threads that wait for an item, in the order in which they asked."""
        self._puts = 0
        name = (maker.number, maker.locks_made)
        maker.locks_made += 1
        self._object: Object = ("lock", *name)
        self._content = Access(self._object, AccessMode.CONTRIBUTE)
        self._put_order = Access(("order", "put", *name), AccessMode.WRITE)
        self._get_order = Access(("order", "get", *name), AccessMode.WRITE)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item into the queue, which is never full."""
        me, steps = self._steps.calling_rank_thread(), self._steps
        if me is None:
            self._real.put((None, item))
            return
        steps.choice_point_before(me, (self._put_order, self._content))
        steps.report_accesses(me, self._put_order, self._content)
        while self._waiting:
            consumer = self._waiting.pop(0)
            if consumer.thread.is_waiting:  # else its time-out has just woken it
                consumer.item = item
                steps.host.send_request(WakeTask(consumer.thread.number))
                return
        self._puts += 1
        key: Object = (*self._object, self._puts)
        self._real.put((key if steps.record_release(me, key) else None, item))

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item; raise queue.Empty if no item comes before the time-out."""
        me = self._steps.calling_rank_thread()
        if me is None:
            return self._real.get(block, timeout)[1]
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        may_wait = block and timeout != 0
        self._choice_point_before_get(me, may_wait=may_wait)
        if not self._real.empty():
            key, item = self._real.get_nowait()
            if key is not None:
                self._steps.record_acquire(me, key)
            return item
        if not may_wait:
            raise queue.Empty
        if self._steps.only_external_thread_can_release(me, is_external=self._is_external):
            found = self._steps.wait_for_external_thread(me, self._get_in_time, timeout)
            if found is None:
                raise queue.Empty
            return found[1]
        return self._wait_for_item(me, timeout)

    def put_nowait(self, item: Any) -> None:
        """Put an item into the queue, as `put` does."""
        self.put(item)

    def get_nowait(self) -> Any:
        """Take the oldest item without waiting; raise queue.Empty if there is none."""
        return self.get(block=False)

    def empty(self) -> bool:
        """True if the queue has no item."""
        return self.qsize() == 0

    def qsize(self) -> int:
        """Return the number of items. If it is 0, other threads run before this returns."""
        me = self._steps.calling_rank_thread()
        if me is not None:
            look = Access(self._object, AccessMode.READ)
            self._steps.choice_point_before(me, (look,), is_in_vain=self._real.empty())
            self._steps.report_accesses(me, look)
        return int(self._real.qsize())

    def wake_after_external_release(self) -> bool:
        """Give an item to the thread that has waited longest, if a thread outside the simulation has put one in."""
        waiting = [consumer for consumer in self._waiting if consumer.thread.is_waiting]
        if not waiting or self._real.empty():
            return False
        self._waiting.remove(waiting[0])
        waiting[0].item = self._real.get_nowait()[1]
        self._steps.host.send_request(WakeTask(waiting[0].thread.number, from_outside=True))
        return True

    def _choice_point_before_get(self, me: RankThread, *, may_wait: bool) -> None:
        if self._steps.host.is_unwinding(me):
            if not is_in_destructor(sys._getframe(2)):
                self._steps.host.send_request(Checkpoint())  # this raises RankUnwound
            return
        accesses: Sequence[Access] = (self._get_order, self._content)
        if not may_wait:
            accesses = (Access(self._object, AccessMode.READ), *accesses)
        self._steps.choice_point_before(me, tuple(accesses), is_in_vain=not may_wait and self._real.empty())
        self._steps.report_accesses(me, *accesses)

    def _get_in_time(self, seconds: float) -> Any:
        try:
            return self._real.get(True, seconds)
        except queue.Empty:
            return None

    def _wait_for_item(self, me: RankThread, timeout_seconds: float | None) -> Any:
        host, consumer = self._steps.host, _WaitingConsumer(me)
        what, site = describe_wait(sys._getframe(1), "an item of a queue")
        host.send_request(WriteNote(EventKind.WAIT, what))
        self._waiting.append(consumer)
        self._steps.waited.append(self)
        try:
            in_time: bool = host.send_request(Block(LockWait(self._object, what, None, site), timeout_seconds))
        finally:
            self._steps.waited.remove(self)
            if consumer in self._waiting:
                self._waiting.remove(consumer)
        self._steps.report_accesses(me, self._content if in_time else Access(self._object, AccessMode.READ))
        if not in_time and not self._real.empty():  # put in at the time-out, before this thread ran
            consumer.item, in_time = self._real.get_nowait()[1], True
        host.send_request(WriteNote(EventKind.DONE, what if in_time else f"{what} timed out"))
        if not in_time:
            raise queue.Empty
        return consumer.item
