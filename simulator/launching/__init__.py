"""Starting the processes of a program's ranks, as torchrun, `mp.spawn` or Python do.

A program (`program.py`) is a file or a module that each rank runs as `__main__`. Its processes are forked from
*servers*: fresh Pythons of different hash seeds that have torch loaded (`servers.py`, and `server.py` for their
side). A program that starts its ranks itself runs as its own launcher: `launch.py` is the coordinator's side of it,
and `launcher.py` the side of the process. What the ranks then do is in `simulator/rank_processes`.

Begin in `program_ranks.py`.
"""
