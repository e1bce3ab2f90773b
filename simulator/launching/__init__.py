"""Starts the processes of a program's ranks, as torchrun, `mp.spawn` or Python do.

A program (`script.py`) is a file or a module that each rank runs as `__main__`. *Servers* fork its processes: they are
Pythons with different hash seeds that have loaded torch (`servers.py`; `server.py` runs in them). A program that starts
its ranks itself runs as its own launcher: `launch.py` is for the coordinator, and `launcher.py` runs in the launcher.
`simulator/rank_processes` runs the ranks.

Begin in `program_ranks.py`.
"""
