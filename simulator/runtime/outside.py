"""A wait of a rank for something outside the simulation, during which other ranks run."""

from _thread import get_native_id
from collections.abc import Callable
from time import monotonic, process_time  # bound here: inside a rank, the functions of `time` are virtual
from typing import Protocol, TypeVar

from ddpsim.simulator.kernel.requests import AwaitOutside, ReadClock
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.stopwatch import has_child_processes
from ddpsim.simulator.waits import OutsideWait

T = TypeVar("T")

_AT_FIRST_SECONDS = 1.0
"""The real seconds for which a rank waits for child processes or threads before others run: most need less, and then
the order of the ranks does not depend on their speed."""

_BUSY_SHARE = 0.1
"""While the process uses more than this share of a core, something in it computes, and may take any time."""


class MakeWait(Protocol):
    """A function that describes the wait of a rank."""

    def __call__(self, *, may_last: bool) -> OutsideWait:
        """Return the wait; it ends at no limit of ddpsim's if it `may_last`."""


def wait_outside(
    host: Host,
    look_for: Callable[[float], T | None],
    as_wait: MakeWait,
    timeout: float | None = None,
    *,
    is_for_threads: bool = False,
) -> T | None:
    """Return what `look_for` returns, once that is not None; None if the time-out passes first, in virtual time.

    `look_for` waits for so many real seconds at most. `is_for_threads`: threads of this process end the wait.
    """
    start, used = monotonic(), process_time()
    has_children = has_child_processes("self", get_native_id())
    if has_children or is_for_threads:
        at_first = _AT_FIRST_SECONDS if timeout is None else min(timeout, _AT_FIRST_SECONDS)
        if (found := look_for(at_first)) is not None:
            return found
    me, is_first = host.running_thread, True
    until = None if timeout is None else host.send_request(ReadClock()) + timeout
    looked = start
    me.is_outside = True
    try:
        while True:
            now = monotonic()
            computes = is_for_threads and process_time() - used > _BUSY_SHARE * (now - start)
            wait = as_wait(may_last=has_children or computes)
            allowed = host.send_request(AwaitOutside(wait, now - looked, until, is_first))
            looked, is_first = monotonic(), False
            found = look_for(allowed or 0.0)
            if found is not None or allowed is None:
                return found
    finally:
        me.is_outside = False
