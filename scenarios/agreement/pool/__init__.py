"""Real ranks: functions run on real processes with real gloo, many sets of them, one after another and side by side.

    with GlooPool() as pool:
        for job, outcomes in pool.run([Job(function, world_size=3, still_seconds=0.5), ...]):
            ...

Loading torch takes seconds; a process that has it loaded forks another in milliseconds. So one process is kept that
has it, the server, and every rank of every job is a fork of it. No process runs two jobs: what a broken program leaves
behind (a dead connection, a thread that waits, memory overwritten) ends with its processes, and nothing is repaired.

Outcomes are what `agreement/outcome.py` says. This package knows no programs and no simulator but its errors.
"""

from ddpsim.scenarios.agreement.pool.job import Job
from ddpsim.scenarios.agreement.pool.pool import GlooPool
from ddpsim.scenarios.agreement.pool.server_link import PoolError

__all__ = ["GlooPool", "Job", "PoolError"]
