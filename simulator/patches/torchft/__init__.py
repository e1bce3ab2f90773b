"""What torchft has in Rust, in C++ and behind sockets, in Python, so that a replica group waits in the simulation.

`quorums.py` decides, without threads; `servers.py` has the servers and their clients, `checkpoints.py` the server of
checkpoints; `install.py` puts all in the place of torchft's own while a run lasts.
"""
