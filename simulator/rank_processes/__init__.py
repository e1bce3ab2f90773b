"""Runs each rank in a process of its own, under the same kernel as ranks that are threads.

The process that runs the execution is the *coordinator*: it has the kernel. A rank runs until its next request, sends
it (`messages.py`), and sleeps until the answer comes. The policy orders the requests. An answer that is certain is sent
early, and that rank computes in parallel with others (`speculation.py`). In a rank's process a `RemoteKernel` replaces
the kernel. Tensors are copied through memory that rank and coordinator share (`parcels.py`).

The coordinator forks the ranks of a function; `simulator/launching` starts those of a program.

Begin in `coordinator.py`; the other side is `rank_process.py`.
"""
