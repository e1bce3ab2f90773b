"""torch's guard of CUDA devices on a machine without any, which has to outlive the ranks' threads.

Fake tensors, with which DTensor computes shapes, have a build for CUDA put a guard that does nothing in the place of
the real one. In torch 2.11 that guard belongs to the thread that asks first, and torch goes on with it after the
thread's end: the process dies at the first fake tensor of the next simulation. So the thread that simulates asks first.

The guard says that there is one device, and the first backward of a process starts a thread for each device that there
is then; from there on no fork of the process can go backward (Engine::start_device_threads in
torch/csrc/autograd/engine.cpp), and ranks as processes are forks. So a backward comes before the guard.
"""

from __future__ import annotations

import torch


def keep_device_guard() -> None:
    """Have it put in place now, where fake tensors would; it is nothing in a build for CPUs, or with a device."""
    if torch.version.cuda is not None and torch.cuda.device_count() == 0:
        with torch.inference_mode(False):
            torch.zeros((), device="cpu", requires_grad=True).backward()
        torch._C._ensureCUDADeviceGuardSet()
