"""Gives each rank its own copy of the state of a process, and restores the process after the run.

`Isolation` swaps that state at every context switch; each kind of state has a file. `VirtualTime` replaces the clocks
of the `time` module inside ranks.
"""

from ddpsim.simulator.runtime.isolation.isolation import Isolation
from ddpsim.simulator.runtime.isolation.virtual_time import VirtualTime

__all__ = ["Isolation", "VirtualTime"]
