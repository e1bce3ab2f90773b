"""Ranks as processes of their own, under the same kernel as ranks that are threads.

Whoever runs the execution is its *coordinator*: it has the kernel, forks a process for each rank, and lets one of them
go on at a time. A rank runs until its next request, sends it (`messages.py`), and sleeps until it is answered. In the
rank a host of threads serves the rank's own threads as ever; what it takes for the kernel is a `RemoteKernel`. Tensors
travel through memory that rank and coordinator share (`arena.py`).

Begin in `coordinator.py`; the other side is `rank_process.py`.
"""
