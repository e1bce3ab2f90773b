"""What a process owns, each rank owns; and what a rank does leaves no mark on the process.

`Isolation` swaps the state of a process at every context switch; each kind of state has a file. `VirtualTime`
replaces the clocks of the `time` module inside ranks.
"""

from ddpsim.simulator.runtime.isolation.isolation import Isolation
from ddpsim.simulator.runtime.isolation.virtual_time import VirtualTime

__all__ = ["Isolation", "VirtualTime"]
