"""Runs each rank in a process of its own, under the same kernel as ranks that are threads.

The process that runs the execution is the *coordinator*: it has the kernel, and one process for each rank. A rank runs
until its next request, sends it (`messages.py`), and sleeps until the answer comes. The policy orders the requests. An
answer that is certain is sent early, and that rank computes in parallel with the others (`speculation.py`). Inside the
rank a host of threads serves the rank's own threads; it uses a `RemoteKernel` in place of the kernel. Tensors travel
through memory that rank and coordinator share (`parcels.py`).

Ranks of a function are forked from the coordinator; `simulator/launching` starts those of a program.

Begin in `coordinator.py`; the other side is `rank_process.py`.
"""
