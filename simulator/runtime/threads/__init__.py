"""Threads that ranks start. Each belongs to its rank, and runs only while it has the baton.

During a run, `RankThreads` replaces Python's threads and locks. Conditions, events, semaphores, barriers, queues,
timers, futures and executors are built on these in Python, so they are simulated, too.
"""

from ddpsim.simulator.runtime.threads.thread_body import ThreadError, thread_findings
from ddpsim.simulator.runtime.threads.thread_life import RankThreads

__all__ = ["RankThreads", "ThreadError", "thread_findings"]
