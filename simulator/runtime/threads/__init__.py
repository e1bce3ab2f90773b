"""Threads that ranks start: each belongs to its rank, and runs only when it has the baton.

`Threads` replaces what Python makes threads and their locks of while an execution runs; everything that Python builds
on these (conditions, events, semaphores, barriers, queues, timers, futures, executors) follows.
"""

from ddpsim.simulator.runtime.threads.thread_errors import ThreadError, thread_findings
from ddpsim.simulator.runtime.threads.thread_life import Threads

__all__ = ["ThreadError", "Threads", "thread_findings"]
