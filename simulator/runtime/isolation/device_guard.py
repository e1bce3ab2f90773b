"""Makes torch's CUDA device guard outlive the ranks' threads, on a machine without CUDA devices.

DTensor computes shapes with fake tensors. In a CUDA build these install a no-op device guard. In torch 2.11 that guard
belongs to the first thread that needs it, and torch uses it after the thread's end: the process crashes at the first
fake tensor of the next simulation. So the thread that runs the simulation installs it first.

The guard reports one device. The first backward of a process starts a thread for each reported device, and after that
no fork of the process can run a backward (Engine::start_device_threads in torch/csrc/autograd/engine.cpp). Ranks as
processes are forks. So a backward is run before the guard is installed.
"""

from __future__ import annotations

import torch


def keep_device_guard() -> None:
    """Install the guard on the calling thread. Does nothing in a CPU build of torch, or with a CUDA device."""
    if torch.version.cuda is not None and torch.cuda.device_count() == 0:
        with torch.inference_mode(False):
            torch.zeros((), device="cpu", requires_grad=True).backward()
        torch._C._ensureCUDADeviceGuardSet()
