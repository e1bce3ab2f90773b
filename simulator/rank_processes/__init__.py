"""Ranks as processes of their own, under the same kernel as ranks that are threads.

Whoever runs the execution is its *coordinator*: it has the kernel, and a process for each rank. A rank runs until its
next request, sends it (`messages.py`), and sleeps until it is answered. Requests are served in the order of the policy;
where it is certain what the answer will be a rank is given it before (`advance.py`), and computes beside the others. In
the rank a host of threads serves the rank's own threads as ever; what it takes for the kernel is a `RemoteKernel`.
Tensors travel through memory that rank and coordinator share (`parcels.py`).

Ranks of a function are forked from the coordinator; `simulator/launching` starts those of a program.

Begin in `coordinator.py`; the other side is `rank_process.py`.
"""
